"""Models of other families train in the lab as they are: described, cut, merged and adopted like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.lab.laboratory import Laboratory
from peer.lab.options import LabOptions, lab_config
from peer.lab.replay import replay_tape
from peer.model.description import describe
from peer.model.located import located
from peer.rounds.tape import TapeWriter
from tests.peer.adapting import adapter_run, write_base
from tests.peer.lab import small

STEPS = 64


def lab_of(**model: Any) -> Laboratory:
    spec = ModelSpec.model_validate({"hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 16} | model)
    outer = small.BASE.outer.model_copy(update={"merge": "robust_rda", "contribution_codec": "int8"})
    base: RunConfig = small.BASE.model_copy(update={"model": spec, "outer": outer})
    described = describe(base)
    options = LabOptions(lab_config(described.config, 3, STEPS, {}), 3, STEPS, eval_every_steps=STEPS, workers=1)
    with Laboratory(replace(options), small.text(), values=described.values) as lab:
        lab.run()
    return lab


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"family": "gpt2"}, {"family": "gpt2", "weights": "given"}], ids=["seeded", "given"])
def test_a_gpt2_learns(model: dict[str, Any]):
    lab = lab_of(**model)
    assert lab.curve[0].eval_loss == pytest.approx(5.5, abs=0.6)  # guessing among 256 letters: log 256 = 5.55
    assert lab.curve[-1].eval_loss < lab.curve[0].eval_loss - 1
    assert len({tuple(one.states) for one in lab.context.active.values()}) == 1  # and all learners hold the same bytes


def test_an_adapter_learns_and_its_tape_replays(tmp_path: Path):
    """The base is in four bits; the manifest on the tape does not say where it is."""
    base, tape = write_base(tmp_path / "base"), tmp_path / "tape.jsonl"
    data = small.BASE.data.model_copy(update={"context_tokens": 16})
    run = adapter_run(base, base_precision="nf4").model_copy(
        update={"data": data, "inner": small.BASE.inner, "outer": small.BASE.outer, "pace": small.BASE.pace}
    )
    described = describe(run)
    here = located(described.config, described.files.base)
    options = LabOptions(lab_config(here, 3, STEPS // 2, {}), 3, STEPS // 2, eval_every_steps=STEPS, workers=1)
    with TapeWriter(tape) as writer, Laboratory(options, small.text(), writer.write) as lab:
        lab.run()
    assert lab.curve[-1].eval_loss < lab.curve[0].eval_loss - 0.3  # the head is frozen, and knows nothing
    assert len({tuple(one.states) for one in lab.context.active.values()}) == 1
    assert lab.world.manifest.config == described.config.model_copy(
        update={name: getattr(options.config, name) for name in ("pace", "versions", "inner")}
    )
    replay_tape(tape, small.text(), str(base))  # raises if anything comes out differently
