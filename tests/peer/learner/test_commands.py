"""Commands whose copies take longer than steps, as on a GPU: here they arrive when a test says so."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.learner.channel import Channel
from peer.learner.commands import LearnerCommands
from peer.learner.device_copies import Arrival, DeviceCopies
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.learner.messages import AdoptFragment, Done, Message, Refused, Save, SnapshotTaken, TakeSnapshot
from peer.learner.shared_memory import SharedSlots
from peer.model.build import parameter_specs
from peer.numerics.fragments import split_fragments
from tests.disk import file_size_limit

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=40),
    data=DataSpec(context_tokens=16, sequences_per_step=2),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
FRAGMENTS = split_fragments(parameter_specs(CONFIG.model), 3)
TOKENS_PER_STEP = 32


class Windows:
    def batch(self, window: int) -> Tensor:
        return torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(window))


class SlowCrossings(DeviceCopies):
    """Copies whose data are garbage until `arrive`."""

    def __init__(self) -> None:
        self._copies: list[Callable[[], object]] = []
        self._landed = 0
        self._begun = 0

    def room(self, shared: Tensor) -> Tensor:
        return torch.full_like(shared, torch.nan)

    def send(self, values: Tensor, shared: Tensor) -> Arrival:
        return self._later(lambda: shared.copy_(values))

    def fetch(self, *shared: Tensor) -> tuple[tuple[Tensor, ...], Arrival]:
        fetched = tuple(self.room(one) for one in shared)
        return fetched, self._later(lambda: [ours.copy_(one) for ours, one in zip(fetched, shared, strict=True)])

    def wait(self) -> None:
        self.arrive()

    def arrive(self, count: int | None = None) -> None:
        landing, self._copies = self._copies[:count], self._copies[len(self._copies[:count]) :]
        for copy in landing:
            copy()
        self._landed += len(landing)

    def _later(self, copy: Callable[[], object]) -> Arrival:
        self._copies.append(copy)
        self._begun += 1
        turn = self._begun
        return lambda: self._landed >= turn


@dataclass
class Desk:
    """A learner with commands, and the peer's end of its socket."""

    peers_end: Channel
    learners_end: Channel
    crossings: SlowCrossings = field(default_factory=SlowCrossings)
    slots: SharedSlots = field(default_factory=lambda: SharedSlots.create(FRAGMENTS, 1))
    learner: Learner = field(default_factory=lambda: make_learner(CONFIG, Windows()))

    def __post_init__(self) -> None:
        self.commands = LearnerCommands(self.learner, self.slots, self.learners_end, self.crossings)

    def heard(self) -> list[Message]:
        return self.peers_end.receive(0.0)


@pytest.fixture
def desk() -> Iterator[Desk]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Desk(Channel(ours), Channel(theirs))


def test_steps_go_on_while_a_snapshot_is_copied(desk: Desk) -> None:
    desk.learner.step()
    before = parameters_of(desk.learner)[1]
    desk.commands.begin(TakeSnapshot(ticket=1, fragment=1, slot=0), resting=False)
    desk.learner.step()
    desk.commands.go_on()
    assert desk.heard() == []
    desk.crossings.arrive()
    desk.commands.go_on()
    (taken,) = desk.heard()
    assert isinstance(taken, SnapshotTaken)
    assert (taken.at_step, taken.steps, taken.tokens) == (1, 1, TOKENS_PER_STEP)
    assert torch.equal(desk.slots.slot(0, 1), before)


def test_an_anchor_is_adopted_between_the_steps_after_its_arrival(desk: Desk) -> None:
    desk.learner.step()
    reference = parameters_of(desk.learner)[0]
    anchor = reference * 0.5 + 0.001
    desk.slots.slot(1, 0).copy_(anchor)
    desk.slots.slot(2, 0).copy_(reference)
    desk.commands.begin(
        AdoptFragment(ticket=2, fragment=0, slot=1, reference=2, counted_steps=1, counted_tokens=TOKENS_PER_STEP),
        resting=False,
    )
    desk.learner.step()
    desk.commands.go_on()
    now = parameters_of(desk.learner)[0]
    assert desk.learner.counters(0).steps == 2
    desk.crossings.arrive()
    desk.commands.go_on()
    assert desk.heard() == [Done(ticket=2, at_step=2)]
    assert desk.learner.counters(0).steps == 1
    assert torch.equal(parameters_of(desk.learner)[0], now - reference + anchor)


def test_errands_about_several_fragments_are_under_way_together_and_end_in_order(desk: Desk) -> None:
    for fragment in (2, 0, 1):
        desk.commands.begin(TakeSnapshot(ticket=fragment, fragment=fragment, slot=fragment), resting=False)
    desk.crossings.arrive(2)
    desk.commands.go_on()
    assert [message.ticket for message in desk.heard() if isinstance(message, SnapshotTaken)] == [2, 0]
    desk.commands.go_on(wait=True)
    assert [message.ticket for message in desk.heard() if isinstance(message, SnapshotTaken)] == [1]


def test_a_fragments_next_errand_waits_for_the_one_before(desk: Desk) -> None:
    anchor = torch.full((FRAGMENTS[0].elements,), 0.25)
    desk.slots.slot(1, 0).copy_(anchor)
    adopt = AdoptFragment(ticket=1, fragment=0, slot=1, reference=None)
    desk.commands.begin(adopt, resting=False)
    desk.commands.begin(TakeSnapshot(ticket=2, fragment=0, slot=0), resting=False)
    assert desk.heard() == [Done(ticket=1, at_step=0)]
    desk.commands.go_on(wait=True)
    assert torch.equal(desk.slots.slot(0, 0), anchor)


def test_saving_waits_for_all_before(desk: Desk, tmp_path: Path) -> None:
    desk.commands.begin(TakeSnapshot(ticket=1, fragment=0, slot=0), resting=False)
    desk.commands.begin(Save(ticket=2, path=str(tmp_path / "saved")), resting=False)
    desk.commands.begin(TakeSnapshot(ticket=3, fragment=1, slot=0), resting=False)
    desk.commands.begin(Save(ticket=4, path=str(tmp_path / "saved")), resting=False)
    tickets = [message.ticket for message in desk.heard() if isinstance(message, SnapshotTaken | Done)]
    assert tickets == [1, 2, 3, 4]


def test_a_learner_that_rests_copies_at_once(desk: Desk) -> None:
    desk.commands.begin(TakeSnapshot(ticket=1, fragment=0, slot=0), resting=True)
    assert [type(message) for message in desk.heard()] == [SnapshotTaken]
    assert torch.equal(desk.slots.slot(0, 0), parameters_of(desk.learner)[0])


def test_only_commands_that_cannot_be_done_are_refused(desk: Desk, tmp_path: Path) -> None:
    desk.commands.begin(TakeSnapshot(ticket=1, fragment=9, slot=0), resting=False)
    desk.commands.begin(Save(ticket=2, path=str(tmp_path / "absent" / "saved")), resting=False)
    desk.commands.begin(TakeSnapshot(ticket=3, fragment=0, slot=0), resting=False)
    desk.commands.begin(TakeSnapshot(ticket=4, fragment=0, slot=3), resting=False)
    desk.commands.go_on(wait=True)
    first, second, third, fourth = desk.heard()
    assert isinstance(first, Refused)
    assert first.reason == "there is no fragment 9"
    assert isinstance(second, Refused)
    assert isinstance(third, SnapshotTaken)
    assert isinstance(fourth, Refused)
    assert fourth.reason == "there is no slot 3"


def test_a_full_disk_is_told_and_keeps_what_was_saved_before(desk: Desk, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    desk.commands.begin(Save(ticket=1, path=str(saved)), resting=False)
    before = saved.read_bytes()
    with file_size_limit(len(before) // 2):
        desk.commands.begin(Save(ticket=2, path=str(saved)), resting=False)
    desk.commands.begin(TakeSnapshot(ticket=3, fragment=0, slot=0), resting=True)
    done, refused, goes_on = desk.heard()
    assert isinstance(done, Done)
    assert isinstance(refused, Refused)
    assert refused.reason == "File too large"
    assert isinstance(goes_on, SnapshotTaken)
    assert saved.read_bytes() == before
    assert os.listdir(tmp_path) == ["saved"]
