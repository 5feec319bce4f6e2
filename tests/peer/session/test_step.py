"""What a loop may give to `Session.step`: any library's numbers, and one sentence for what is none."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from dht.errors import UsageError
from peer.learner.channel import Channel
from peer.learner.commands import LearnerCommands
from peer.learner.loop import CommandLoop
from peer.learner.messages import SessionStart, Start, StepEntry, Steps
from peer.learner.module_adapter import ModuleAdapter
from peer.learner.shared_memory import SharedSlots
from peer.model.description import own_model
from peer.session.api import Place, Session, _prepared
from peer.storage.anchors import layouts_of

CONFIG = RunConfig(
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=4), pace=PaceSpec(fragments=1, overlap=1)
)


@dataclasses.dataclass
class Talk:
    """A session without a peer's process, and the peer's end of its socket."""

    session: Session
    peers_end: Channel

    def heard(self) -> list[StepEntry]:
        self.session._command_loop.report()
        reports = self.peers_end.receive(None)
        return [entry for report in reports if isinstance(report, Steps) for entry in report.entries]


@pytest.fixture
def talk() -> Iterator[Talk]:
    module = nn.Linear(8, 2)
    config = own_model(CONFIG, module).config
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = Session.__new__(Session)
        session._closed, session._buffers, session._last_at = False, None, time.monotonic()
        session.config, session._channel = config, Channel(ours)
        session._replica = ModuleAdapter(module, layouts_of(config), config)
        session._slots = SharedSlots.create(layouts_of(config), 1)
        session._command_loop = CommandLoop(
            session._replica,
            LearnerCommands(session._replica, session._slots, session._channel),
            session._channel,
            Start(config=config, run_key=b"run", peer_id="peer"),
        )
        yield Talk(session, Channel(theirs))
        session._slots.close_descriptor()


@pytest.mark.parametrize("tokens", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor([3.0]), 3.0])
def test_a_step_takes_whole_numbers_of_every_library(tokens: Any, talk: Talk) -> None:
    assert talk.session.step(tokens)
    assert talk.heard() == [StepEntry(step=1, loss=None, tokens=3)]
    assert talk.session._replica.count.tokens == 3


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (None, None),
        (2, 2.0),
        (np.float32(2), 2.0),
        (np.float64(2), 2.0),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.tensor(float("nan")), None),
        (np.float32("inf"), None),
    ],
)
def test_a_step_takes_losses_of_every_library(loss: Any, told: float | None, talk: Talk) -> None:
    assert talk.session.step(3, loss)
    assert talk.heard() == [StepEntry(step=1, loss=told, tokens=3)]


@pytest.mark.parametrize("tokens", [3.5, "3", None, float("nan"), torch.tensor([1, 2]), 0, 33])
def test_a_step_refuses_what_is_no_number_of_tokens_in_one_sentence(tokens: Any, talk: Talk) -> None:
    with pytest.raises(UsageError, match=r"has to be a whole number, not|reads 1 to 32 tokens, not"):
        talk.session.step(tokens)
    assert talk.session._replica.step_count == 0


@pytest.mark.parametrize("loss", ["low", torch.tensor([1.0, 2.0]), np.ones(2)])
def test_a_step_refuses_what_is_no_loss_in_one_sentence(loss: Any, talk: Talk) -> None:
    with pytest.raises(UsageError, match="loss has to be one number, not"):
        talk.session.step(3, loss)
    assert talk.session._replica.step_count == 0


def test_a_place_takes_a_port_of_another_library(tmp_path: Path) -> None:
    start, _ = _prepared(CONFIG, nn.Linear(8, 2), Place(port=np.int64(4000)), tmp_path)  # type: ignore[arg-type]
    assert SessionStart.from_wire(start.to_wire()).port == 4000
