"""Reducers that sign false results, in labs with real tensors: they are banned, and nothing of it is ever applied."""

from __future__ import annotations

from functools import partial

import pytest

from coordinator.actions import Reduce
from coordinator.events import Reduced
from coordinator.virtual.peer import Disk
from coordinator.virtual.tensors import VirtualLearner
from peer.attacks.forgery import FORGERIES
from peer.hostile import ForgingWork
from peer.lab.tensors import LabTensors, make_tensors
from peer.lab.workshop import Workshop
from tests.lab import small

LEARNERS = 4
ROBUST = {"outer.merge": "robust_rda", "outer.contribution_codec": "int8", "outer.result_codec": "int8"}


class Forger(ForgingWork):
    """Remembers the roots of what it signed."""

    def remember(self, roots: set[bytes]) -> None:
        self.roots = roots

    def reduce(self, action: Reduce) -> Reduced:
        reduced = super().reduce(action)
        self.roots.add(reduced.root or b"")
        return reduced


def with_forger(
    name: str, signed: dict[str, set[bytes]], shop: Workshop, learner: VirtualLearner, disk: Disk
) -> LabTensors:
    """As `make_tensors`; whoever comes first forges, and trains honestly."""
    made = make_tensors(shop, learner, disk)
    if signed.keys() <= {learner.peer}:
        work = Forger(FORGERIES[name], shop.config, made.anchors, shop.blobs, shop.worker)
        work.remember(signed.setdefault(learner.peer, set()))
        made._work = work
    return made


@pytest.mark.parametrize("name", ["noisy_results", "selfish_results", "garbage_results"])
def test_a_forger_is_banned_and_nothing_of_what_it_signed_is_applied(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: dict[str, set[bytes]] = {}
    monkeypatch.setattr("peer.lab.laboratory.make_tensors", partial(with_forger, name, signed))
    lab, report = small.run(small.options(LEARNERS, 24, ROBUST))
    [(forger, roots)] = signed.items()
    assert roots
    assert [(ban.peer, ban.fault_class) for ban in report.bans] == [(forger, "A")]
    honest = [peer.engine for peer in lab.world.peers if peer.me != forger and peer.engine is not None]
    assert len(honest) == LEARNERS - 1
    certified = [one for engine in honest for machine in engine.machines for one in machine.chain.certificates]
    assert len(certified) > 2 * len(honest)
    applied = {part.root for one in certified for part in one.outcome.partitions if part is not None}
    assert applied.isdisjoint(roots)
    assert all([*engine.core.bans.held] == [forger] for engine in honest)
    assert report.agreement
