"""The cost of an idle fragment to a peer at every event, counted in function calls."""

from __future__ import annotations

import sys
from collections.abc import Callable

from coordinator.core.events import Progress
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.peer import VirtualPeer
from coordinator.views.round_traces import RoundTraces
from peer.rounds.counters import RunCounters
from tests.sim.worlds import STEPS_PER_SECOND, run_until, swarm

FEW, MANY = 4, 24
CALLS_MAX = 40  # calls of Python functions for one more fragment


def test_a_fragment_at_rest_costs_an_event_few_calls() -> None:
    assert (_calls_at_an_event(MANY) - _calls_at_an_event(FEW)) / (MANY - FEW) <= CALLS_MAX


def _calls_at_an_event(fragments: int) -> int:
    """Count the calls of `peer.rounds.driver` for an event that changes nothing, in a swarm with some versions."""
    pace = PaceSpec(fragments=fragments, steps_per_version=24, overlap=2, quorum=2, min_group=2, round_seconds=8.0)
    world = swarm(3, pace)
    peer = world.peers[0]
    assert peer.engine is not None
    engine = peer.engine
    run_until(world, lambda: all(machine.chain.version for machine in engine.machines) and not engine.in_flight, 600)
    counters, traces, now = RunCounters(fragments), RoundTraces(engine), world.clock.now
    counters.follow(engine.machines)

    def event() -> None:
        actions = engine.handle(Progress(_steps(peer, now), STEPS_PER_SECOND), now)
        assert not actions
        traces.follow(actions, now)
        counters.follow(engine.machines)
        engine.next_deadline(now)

    event()
    return _calls(event)


def _steps(peer: VirtualPeer, now: float) -> int:
    return peer.tensors.learner.steps(now)


def _calls(work: Callable[[], None]) -> int:
    count = 0

    def note(frame: object, what: str, argument: object) -> None:
        nonlocal count
        count += what == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
