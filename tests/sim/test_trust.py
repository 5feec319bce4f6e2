"""Hostile peers in whole worlds: all honest peers ban each one, versions go on, and no honest peer is banned."""

from __future__ import annotations

import random

import pytest

from coordinator.adversary.collusion import TRICKS
from coordinator.adversary.mischief import Mischief
from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Action, Send, Tell
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.trust.evidence import verify
from coordinator.wire.messages import ConvictionsNote, EvidenceNote
from examples.attacks.turncoat import HONEST_VERSIONS
from peer.attacks.protocol import mischief_named
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, machine, run_to_version, run_until, swarm, version

ROUNDS_TO_BAN = 24  # a leader's mischief waits until its key leads, which one of six does within so many rounds
ROUND_KINDS = ("join", "roster", "commit", "bundle", "result", "check", "proposal", "vote")


def hostile_world(mischief: dict[str, object], count: int = 6, seed: int = 0) -> tuple[World, VirtualPeer]:
    """Return a swarm at version 2 in which one peer, not the organiser, is hostile from now on."""
    world = swarm(count, seed=seed)
    run_to_version(world, 2)
    culprit = world.peers[-1]
    culprit.mischief = Mischief(culprit.signer, **mischief)  # type: ignore[arg-type]
    world.watcher.hostile.add(culprit.me)  # type: ignore[attr-defined]
    return world, culprit


def honest(world: World, culprit: VirtualPeer) -> list[VirtualPeer]:
    return [peer for peer in world.peers if peer is not culprit]


def banned_by_all(world: World, culprit: VirtualPeer) -> bool:
    return all(culprit.me in peer.engine.core.bans for peer in honest(world, culprit) if peer.engine is not None)


@pytest.mark.parametrize("kind", ROUND_KINDS)
def test_a_peer_that_says_two_things_is_banned_by_all(kind: str) -> None:
    world, culprit = hostile_world({"two_faced": frozenset({kind})})
    run_until(world, lambda: banned_by_all(world, culprit), 3 * ROUNDS_TO_BAN * INTERVAL_SECONDS)
    assert version(world.peers[0]) <= 2 + ROUNDS_TO_BAN
    reached = version(world.peers[0])
    run_to_version(world, reached + 6, 60 * INTERVAL_SECONDS)
    for peer in honest(world, culprit):
        assert culprit.me not in machine(peer).chain.active_set()


def test_the_example_of_an_attack_is_honest_first_and_banned_then() -> None:
    world, culprit = hostile_world({})
    peers = [peer.me for peer in world.peers]
    culprit.mischief = mischief_named("examples.attacks.turncoat.Turncoat", culprit.signer, peers)
    run_to_version(world, HONEST_VERSIONS)
    assert not banned_by_all(world, culprit)
    run_until(world, lambda: banned_by_all(world, culprit), ROUNDS_TO_BAN * INTERVAL_SECONDS)
    reached = version(world.peers[0])
    run_to_version(world, reached + 6, 60 * INTERVAL_SECONDS)


@pytest.mark.parametrize(
    "mischief",
    [{"garbles": True}, {"takes_back": True}, {"cheats": True}],
    ids=["garbage", "takes back", "cheats"],
)
def test_garbage_false_results_and_votes_taken_back_are_banned(mischief: dict[str, object]) -> None:
    world, culprit = hostile_world(mischief)
    run_until(world, lambda: banned_by_all(world, culprit), 3 * ROUNDS_TO_BAN * INTERVAL_SECONDS)
    run_to_version(world, version(world.peers[0]) + 5, 60 * INTERVAL_SECONDS)
    assert all(culprit.me not in machine(peer).chain.active_set() for peer in honest(world, culprit))
    culprit.crash()
    world.quiesce(120.0)


def test_a_certificate_lists_the_conviction_and_the_chain_leaves_the_key_out() -> None:
    world, culprit = hostile_world({"two_faced": frozenset({"check"})})
    run_until(world, lambda: banned_by_all(world, culprit), 3 * ROUNDS_TO_BAN * INTERVAL_SECONDS)
    run_to_version(world, version(world.peers[0]) + 2, 60 * INTERVAL_SECONDS)
    listing = [one for one in machine(world.peers[0]).chain.certificates if one.convictions]
    (conviction,) = {conviction for one in listing for conviction in one.convictions}
    assert conviction.peer == culprit.me
    evidence = world.peers[1].engine.core.bans.evidence(conviction.evidence)  # type: ignore[union-attr]
    assert evidence is not None
    assert verify(evidence, machine(world.peers[1]).chain.rules, None).peer == culprit.me


def test_a_ban_outlives_a_restart_and_reaches_a_newcomer() -> None:
    world, culprit = hostile_world({"two_faced": frozenset({"vote"})}, count=7)
    newcomer, reader = world.peers[0], world.peers[1]
    newcomer.crash()
    run_until(
        world,
        lambda: all(culprit.me in peer.engine.core.bans for peer in world.peers[1:-1] if peer.engine is not None),
        3 * ROUNDS_TO_BAN * INTERVAL_SECONDS,
    )
    reader.crash()
    reader.start()
    assert reader.engine is not None
    assert culprit.me in reader.engine.core.bans
    assert not reader.engine.core.presence.is_live(culprit.me, world.clock.now)
    newcomer.start()
    run_until(world, lambda: banned_by_all(world, culprit), 10 * INTERVAL_SECONDS)


def test_checks_in_the_wrong_shape_prove_nothing_when_leaders_die_and_their_author_proposes() -> None:
    """A second proposer shows its own check in the form that it sent: another one would convict it."""
    world, culprit = hostile_world(dict(TRICKS["misshapen_checks"]))
    source, others = random.Random(0), honest(world, culprit)
    for _ in range(12):
        victim = source.choice(others)
        victim.crash()
        world.run(source.uniform(3, 6))
        victim.start()
        world.run(source.uniform(2, 8))
    alive = [peer.engine.core for peer in world.peers if peer.engine is not None]
    assert not any(peer.me in core.bans for core in alive for peer in world.peers)


def test_false_evidence_convicts_nobody_and_goes_no_further() -> None:
    """Peers ignore the sender from then on and do not pass its slander on, and versions go on."""
    world, culprit = hostile_world({})
    victims = frozenset(peer.me for peer in world.peers[:2])
    culprit.mischief = Mischief(culprit.signer, slanders=True, victims=victims)
    told: set[str] = set()
    spread: list[object] = []

    def listen(peer: VirtualPeer, action: Action) -> None:
        if isinstance(action, Tell) and action.event == "false_evidence":
            told.add(str(action.details["peer"]))
        if isinstance(action, Send) and isinstance(action.message, EvidenceNote | ConvictionsNote):
            spread.append((peer.me, action.message))

    world.listener = listen
    run_to_version(world, 10, 80 * INTERVAL_SECONDS)
    assert told == {culprit.me}
    assert spread == []
    assert not any(peer.engine.core.bans.held for peer in world.peers if peer.engine is not None)
    world.quiesce(120.0)


def test_a_leader_that_frames_a_member_gets_no_group() -> None:
    world, culprit = hostile_world({})
    culprit.mischief = Mischief(culprit.signer, frames=True, victims=frozenset({world.peers[0].me}))
    chain = machine(world.peers[1]).chain

    def led() -> list[Certificate]:
        """Return the versions since it frames others whose first attempt the culprit led."""
        return [one for one in chain.after(3, 100) if chain.truncated(one.version - 1).leaders()[0] == culprit.me]

    run_until(world, lambda: bool(led()), 120 * INTERVAL_SECONDS)
    assert not any(one.convictions for one in chain.certificates)
    assert all(one.outcome.attempt > 0 for one in led())


@pytest.mark.parametrize("kind", ["vote", *extra(["result"])])
def test_two_colluders_are_banned_as_well(kind: str) -> None:
    world, first = hostile_world({"two_faced": frozenset({kind})}, count=7)
    second = world.peers[-2]
    second.mischief = Mischief(second.signer, frozenset({kind}))
    world.watcher.hostile.add(second.me)  # type: ignore[attr-defined]
    others = world.peers[:-2]
    for culprit in (first, second):
        run_until(
            world,
            lambda culprit=culprit: all(culprit.me in peer.engine.core.bans for peer in others if peer.engine),  # type: ignore[misc]
            4 * ROUNDS_TO_BAN * INTERVAL_SECONDS,
        )
    run_to_version(world, version(world.peers[0]) + 5, 60 * INTERVAL_SECONDS)
    assert not machine(world.peers[0]).chain.active_set() & {first.me, second.me}


SELDOM = {"two_redos", "two_abstentions"}  # these runs have no redo and no abstention
ABOVE = {name for name in TRICKS if name.startswith("two_")} - SELDOM | {"false_results", "garbage_commits"}
"""Mischief that the first tests of this file cover, too."""

PROVEN = ABOVE | {
    "vote_and_abstain",
    "count_twice",
    "expired_joins",  # its own rosters show the honest join that it has not sent
}

UNPROVEN = {  # one for each harm without proof that no other quick test covers; the others are slow
    "grind_coin",
    "raised_shares",
    "refute_everything",
    "void_proposals",
    "vote_for_all",
}
AT_ONCE = sorted(PROVEN - ABOVE | UNPROVEN)


@pytest.mark.parametrize("name", [*AT_ONCE, *extra(sorted(TRICKS.keys() - AT_ONCE))])
def test_every_attack_on_the_protocol_costs_its_key_or_nothing(name: str) -> None:
    """Provable faults are proven to all; others are outvoted. Versions go on, and no honest peer is banned."""
    world, culprit = hostile_world({}, seed=2)  # its key leads by then, and has been asked into the groups
    culprit.mischief = mischief_named(name, culprit.signer, [peer.me for peer in world.peers])
    run_to_version(world, 2 + ROUNDS_TO_BAN, 4 * ROUNDS_TO_BAN * INTERVAL_SECONDS)
    assert banned_by_all(world, culprit) == (name in PROVEN)
    culprit.crash()
    world.outcasts.add(culprit.me)
    run_to_version(world, 4 + ROUNDS_TO_BAN, 20 * INTERVAL_SECONDS)
    world.quiesce(120.0)
