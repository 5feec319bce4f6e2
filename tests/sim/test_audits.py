"""Audits in whole worlds: one finds a reducer that no spot check sees, and audits harm no honest peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.adversary.mischief import Mischief
from coordinator.core.actions import Inspect
from coordinator.core.events import Finding, Inspected
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.tensors import VirtualTensors
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, Tape, machine, run_to_version, run_until, swarm, version


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make spot checks miss all altered leaves."""
    honest: Callable[[VirtualTensors, Inspect], Inspected] = VirtualTensors.inspect

    def inspect(self: VirtualTensors, action: Inspect) -> Inspected:
        found = honest(self, action)
        return found if action.whole else replace(found, finding=Finding.CONFIRMED, refutation=None)

    monkeypatch.setattr(VirtualTensors, "inspect", inspect)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("share", [0.3, *extra([0.0])])
def test_a_reducer_that_alters_unseen_leaves_is_banned_afterwards(share: float) -> None:
    world = swarm(6, trust=TrustSpec(audit_share=share))
    run_to_version(world, 2)
    culprit = world.peers[-1]
    culprit.mischief = Mischief(culprit.signer, cheats=True)
    world.watcher.hostile.add(culprit.me)  # type: ignore[attr-defined]
    honest = world.peers[:-1]

    def banned() -> bool:
        return all(culprit.me in peer.engine.core.bans for peer in honest if peer.engine is not None)

    if not share:
        run_to_version(world, 10, 40 * INTERVAL_SECONDS)
        assert not banned()
        return
    run_until(world, banned, 40 * INTERVAL_SECONDS)
    run_to_version(world, version(world.peers[0]) + 6, 60 * INTERVAL_SECONDS)
    assert culprit.me not in machine(world.peers[0]).chain.active_set()


def test_honest_reducers_pass_also_when_members_leave() -> None:
    world = swarm(5, trust=TrustSpec(audit_share=1.0))
    tape = Tape(world)
    run_to_version(world, 4)
    world.crash(world.peers[-1])
    run_to_version(world, 8, 40 * INTERVAL_SECONDS)
    passed = [tell.details["passed"] for _, _, tell in tape.told("audited")]
    assert passed.count(True) >= 10
    assert False not in passed
    world.settle(120.0)
