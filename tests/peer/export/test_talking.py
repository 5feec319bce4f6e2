"""Training on conversations and exporting: the export answers word by word as the learner was taught, then stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coordinator.run.data_spec import CHAT, DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.chat import ASSISTANT, USER, ChatFormat
from peer.data.chat_lines import RowPacker
from peer.export.sampler import Sampler
from peer.learner.learner import make_learner, parameters_of
from tests.peer.exporting import CertifiedRun

CONTEXT, STEPS = 48, 160
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)
ANSWERS = {"Sky?": "Blue.", "Snow?": "White.", "Coal?": "Black.", "Grass?": "Green."}
CONFIG = RunConfig(
    model=ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=128),
    data=DataSpec(source=CHAT, context_tokens=CONTEXT, sequences_per_step=2, chat_template=TEMPLATE),
    inner=InnerSpec(optimizer="adamw", learning_rate=5e-3, warmup_steps=5),
    pace=PaceSpec(fragments=1, steps_per_version=4),
)


class Conversations:
    """Batches that hold all conversations, packed into sequences."""

    def __init__(self) -> None:
        chat, packer = ChatFormat(TEMPLATE), RowPacker(CONTEXT + 1)
        said = (
            [{"role": USER, "content": asked}, {"role": ASSISTANT, "content": told}] for asked, told in ANSWERS.items()
        )
        rows = [row for one in said for row in packer.add(chat.encode(chat.conversation(one)))]
        self._rows = torch.from_numpy(np.stack([*rows, *packer.finish()])).long()

    def batch(self, _window: int) -> Tensor:
        return self._rows


def test_a_model_answers_what_it_was_taught_and_stops(tmp_path: Path) -> None:
    learner = make_learner(CONFIG, Conversations())
    for _ in range(STEPS):
        learner.step()
    run = CertifiedRun(CONFIG)
    (anchor,) = parameters_of(learner)
    run.certify(run.chains[0], state=replace(run.states[0], anchor=anchor))
    sampler = Sampler.load(run.write(tmp_path / "export"))
    assert {asked: sampler.answer(asked, 40, 0, 0) for asked in ANSWERS} == ANSWERS
    assert sampler.answer("Sky?", 3, 0, 0) == "Blu"  # no more tokens than were asked for
