"""Honest peers are credited in full, although credit has limits on what a peer may claim (docs/adr/0035)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.extra import extra
from tests.sim.worlds import run_until, swarm, version

VERSIONS = 24


@pytest.mark.parametrize("rates", [(1, 8), (1, 2, 4, 8), *extra([((1, 1, 8),), ((1, 1, 1, 8),), ((0.5, 1, 2, 4, 4),)])])
def test_speeds_up_to_eight_times_apart_are_credited_in_full(rates: Sequence[float]) -> None:
    world = swarm(len(rates), rates=rates)
    run_until(world, lambda: version(world.peers[0]) >= VERSIONS, 1000.0)
    for certificate in world.watcher.certified.values():
        outcome = certificate.outcome
        assert outcome.credited() == {one.peer: one.tokens for one in outcome.included()}
