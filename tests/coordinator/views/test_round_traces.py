"""A peer's traces of its rounds, recorded from the simulator's peers."""

from __future__ import annotations

import random

import pytest

from coordinator.core.actions import RoundVoided
from coordinator.engine.engine import Engine
from coordinator.run.manifest import PaceSpec
from coordinator.simulator import chaos
from coordinator.simulator.chaos import STRIKES, draw_world
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.simulation import World
from coordinator.views.network_view import PHASES, RoundView
from coordinator.views.round_traces import ELSEWHERE, ROUNDS_KEPT, RoundTraces
from coordinator.wire.messages import Message
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator import rigs
from tests.coordinator.tracing import TracedWorld
from tests.extra import extra

PACE = PaceSpec(fragments=2, steps_per_version=8, quorum=2, min_group=2, round_seconds=8.0)
UNIX = 1e9  # unix time of a virtual peer's clock at 0


def world_of(count: int, pace: PaceSpec = PACE) -> TracedWorld:
    """Return a traced world of peers that have started."""
    links = LinkFaults(delay_min_seconds=0.005, delay_max_seconds=0.03)
    world = TracedWorld(pace, [2.0] * count, list(range(count)), seed=3, faults=links)
    for peer in world.peers:
        peer.start()
    return world


def check_phases(view: RoundView) -> None:
    """Check that phases come in the order of a round, without gaps."""
    names = [phase.name for phase in view.phases]
    assert names == [name for name in PHASES if name in names]
    for before, after in zip(view.phases, view.phases[1:], strict=False):
        assert before.end_unix_seconds == after.start_unix_seconds
        assert before.end_unix_seconds > before.start_unix_seconds


def test_rounds_that_certify_are_told_from_the_join_to_the_certificate() -> None:
    world = world_of(4)
    assert world.run_until_versions(10, 200.0)
    world.quiesce(60.0)
    certified = {one.digest.hex(): one for one in world.watcher.certified.values()}
    seen: set[str] = set()
    for peer in world.peers:
        views = world.traces_of(peer).views()
        assert {view.digest for view in views} == certified.keys()
        for view in views:
            outcome = certified[view.digest].outcome
            check_phases(view)
            assert (view.fragment, view.version, view.attempt) == (outcome.fragment, outcome.version, outcome.attempt)
            assert view.outcome == "certified"
            assert view.reporter == peer.me
            assert view.leader in view.members
            assert sorted(view.members) == sorted(outcome.roster)
            seen |= {phase.name for phase in view.phases}
            assert UNIX <= view.phases[0].start_unix_seconds <= UNIX + world.clock.now
    assert seen == set(PHASES)
    leads = [view for peer in world.peers for view in world.traces_of(peer).views() if view.leader == peer.me]
    assert all("grace" in {phase.name for phase in view.phases} for view in leads)  # the leader knows of the quorum


def test_a_peer_that_commits_too_late_is_named() -> None:
    world = world_of(4)
    mute = world.peers[3].me

    def without_commits(sender: PeerId, to: PeerId, message: Message) -> bool:
        return not (sender == mute and isinstance(message, Statement) and message.context.kind == "commit")

    world.network.filter = without_commits
    assert world.run_until_versions(4, 200.0)
    world.network.filter = None
    world.quiesce(60.0)
    views = world.traces_of(world.peers[0]).views()
    certified = [view for view in views if view.outcome == "certified" and view.leader != mute and mute in view.members]
    missing = [view for view in certified if not any(c.peer == mute for c in _outcome(world, view).contributors)]
    assert missing
    assert all(mute in view.late for view in missing)


def _outcome(world: World, view: RoundView):
    return next(one.outcome for one in world.watcher.certified.values() if one.digest.hex() == view.digest)


def last_voids(world: TracedWorld) -> list[str]:
    """Return `last_void` of every peer's fragments, after checking that it is the last reason in the traces."""
    said = []
    for peer in world.peers:
        assert peer.engine is not None
        traces = world.traces_of(peer)
        for machine in peer.engine.machines:
            made = (machine.index, machine.chain.version + 1)
            void = [one.reason for one in traces.views() if (one.fragment, one.version) == made and one.reason]
            said.append(traces.last_void(machine))
            assert said[-1] == (void[-1] if void else "")
    return said


def test_void_rounds_say_why_and_who_was_silent() -> None:
    world = world_of(3)
    assert set(last_voids(world)) == {""}
    assert world.run_until_versions(2, 100.0)

    def no_votes(_: PeerId, __: PeerId, message: Message) -> bool:
        return not (isinstance(message, Statement) and message.context.kind in ("bundle", "vote"))

    world.network.filter = no_votes
    world.run(40.0)
    views = [view for peer in world.peers for view in world.traces_of(peer).views() if view.outcome == "void"]
    assert {"no certificate in time"} <= {view.reason for view in views}
    assert "no certificate in time" in last_voids(world)
    assert all(view.phases[-1].end_unix_seconds is not None for view in views)
    assert all(not view.digest for view in views)
    running = [view for peer in world.peers for view in world.traces_of(peer).views() if view.outcome == "running"]
    assert all(view.phases[-1].end_unix_seconds is None for view in running if view.phases)
    world.settle(200.0)
    last_voids(world)


def test_adoption_ends_a_round_and_those_before_it() -> None:
    world = world_of(2)
    assert world.run_until_versions(6, 200.0)
    one = world.traces_of(world.peers[0])
    adopting = [view for view in one.views() if view.fragment == 0 and view.outcome == "certified"]
    assert len(adopting) > 1
    assert all((view.phases[-1].name, view.phases[-1].end_unix_seconds) == ("adopt", None) for view in adopting)
    one.adopted(0, adopting[-1].version, world.clock.now + 1.0)
    ended = [view for view in one.views() if view.fragment == 0 and view.outcome == "certified"]
    assert all(view.phases[-1].end_unix_seconds == UNIX + world.clock.now + 1.0 for view in ended)
    other = [view for view in one.views() if view.fragment == 1 and view.outcome == "certified"]
    assert all(view.phases[-1].end_unix_seconds is None for view in other)


def test_only_the_newest_rounds_are_kept() -> None:
    world = world_of(2, PaceSpec(fragments=4, steps_per_version=4, quorum=2, min_group=2, round_seconds=8.0))
    assert world.run_until_versions(ROUNDS_KEPT + 10, 1000.0)
    views = world.traces_of(world.peers[0]).views()
    assert len(views) == ROUNDS_KEPT
    assert world.traces_of(world.peers[0]).views(3) == views[-3:]
    versions = [machine.chain.version for machine in world.peers[0].engine.machines]  # type: ignore[union-attr]
    assert {(view.fragment, view.version) for view in views[-8:]} >= set(enumerate(versions))


def test_a_round_that_is_forgotten_already_may_still_go_to_others() -> None:
    """A slow leader kept one fragment asking while the other had as many rounds as are kept: the peer ended."""
    own = rigs.core(0, pace=rigs.PACE.model_copy(update={"fragments": 2}))
    chains = [rigs.grown(rigs.chain_of(own, fragment), 1, rigs.PEERS[:4]) for fragment in range(2)]
    engine = Engine(own, chains, [1, 1], 0.0)
    traces = RoundTraces(engine)
    slow, fast = engine.machines
    slow.rounds.open(0.0)
    traces.follow([], 0.0)
    for number in range(ROUNDS_KEPT):
        fast.rounds.open(1.0 + number)
        traces.follow([], 1.0 + number)
        traces.follow([RoundVoided(1, 2, "no certificate in time")], 1.5 + number)
    assert {view.fragment for view in traces.views()} == {1}
    traces.follow(slow.learn(rigs.certificate(slow.chain, rigs.PEERS[1:5]), 99.0), 99.0)
    assert len(traces.views()) == ROUNDS_KEPT


@pytest.mark.parametrize("seed", [0, 1, *extra([2, 3, 4])])
def test_whatever_happens_traces_stay_true(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With crashes, partitions and bad links every round is traced in order, and every named version was certified."""
    print("seed", seed)
    monkeypatch.setattr(chaos, "World", TracedWorld)
    world, draw = draw_world(seed), random.Random(~seed)
    assert isinstance(world, TracedWorld)
    for peer in world.peers:
        peer.start()
    for _ in range(6):
        world.run(draw.uniform(0.5, 8.0))
        STRIKES[draw.choice(list(STRIKES))](world, draw)
    world.settle(600.0)
    certified = {one.digest.hex(): one for one in world.watcher.certified.values()}
    views = [view for one in world.traces.values() for view in one.views()]
    assert any(view.outcome == "certified" for view in views)
    for view in views:
        check_phases(view)
        assert (view.outcome == "certified") == (view.digest in certified)
        assert (view.outcome == "void") == (view.reason != "")
        if view.outcome == "certified":
            outcome = certified[view.digest].outcome
            assert (view.fragment, view.version) == (outcome.fragment, outcome.version)
            assert set(view.members) == set(outcome.roster)
        if view.reason == ELSEWHERE:
            assert any((one.fragment, one.version) == (view.fragment, view.version) for one in certified.values())
