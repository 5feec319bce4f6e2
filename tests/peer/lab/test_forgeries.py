"""Reducers that sign false results, in labs with real tensors: they are banned, and nothing of it is ever applied."""

from __future__ import annotations

import pytest

from coordinator.core.actions import Reduce
from coordinator.core.events import Reduced
from peer.attacks.protocol import is_lab_attack
from peer.attacks.work import ForgingWork
from peer.attacks.zoo import AttackOrder
from tests.extra import extra
from tests.peer.lab import small

LEARNERS = 4
ROBUST = {"outer.merge": "robust_rda", "outer.contribution_codec": "int8", "outer.result_codec": "int8"}


@pytest.mark.parametrize("name", ["noisy_results", *extra(["selfish_results", "garbage_results"])])
def test_a_forger_is_banned_and_nothing_of_what_it_signed_is_applied(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: set[bytes] = set()

    class Forger(ForgingWork):
        """Remembers the roots of what it signed."""

        def reduce(self, action: Reduce) -> Reduced:
            reduced = super().reduce(action)
            signed.add(reduced.root or b"")
            return reduced

    monkeypatch.setattr("peer.lab.attackers.ForgingWork", Forger)
    order = AttackOrder.parse(f"{name}:1", is_lab_attack)
    lab, report = small.run(small.options(LEARNERS, 24, ROBUST, attacks=(order,)))
    [forger] = report.attackers
    assert signed
    assert [(ban.peer, ban.fault_class) for ban in report.bans] == [(forger, "A")]
    honest = [peer.engine for peer in lab.world.peers if peer.me != forger and peer.engine is not None]
    assert len(honest) == LEARNERS - 1
    certified = [one for engine in honest for machine in engine.machines for one in machine.chain.certificates]
    assert len(certified) > 2 * len(honest)
    applied = {part.root for one in certified for part in one.outcome.partitions if part is not None}
    assert applied.isdisjoint(signed)
    assert all([*engine.core.bans.held] == [forger] for engine in honest)
    assert report.agreement
