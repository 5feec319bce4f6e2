"""The simulator can fail: each core broken on purpose is caught by the check made for it (design §6.5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from coordinator.adversary.lies import CHANGES
from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Action, Adopt, Included, NotIncluded, Send
from coordinator.core.vote_locks import VoteLocks
from coordinator.engine.engine import Engine
from coordinator.engine.version_round import VersionRound
from coordinator.group.joining import Joining
from coordinator.round.attempt import Attempt
from coordinator.round.vote_phases import VotePhase
from coordinator.round.voting import Voting
from coordinator.simulator.faults import FAULT_POINTS
from coordinator.simulator.invariants import InvariantError, Watcher
from coordinator.simulator.simulation import World
from coordinator.trust import statement_slots
from coordinator.wire.messages import Commit, Join
from dht.statement import make_statement
from tests.sim import test_scenarios as scenarios
from tests.sim.worlds import (
    INTERVAL_SECONDS,
    PACE,
    Drop,
    Tape,
    leader,
    machine,
    run_to_version,
    run_until,
    statement_of,
    swarm,
    version,
)


def lose_all(world: World, kind: str) -> Drop:
    world.network.filter = drop = Drop(lambda _, to, message: statement_of(message, kind))
    return drop


def test_votes_that_do_not_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "locked", lambda self, now: False)
    world = swarm(3)
    run_to_version(world, 2)
    lose_all(world, "vote")
    with pytest.raises(InvariantError, match="breaks the promise of its vote"):
        world.run(4 * PACE.round_seconds)


def test_votes_that_a_restart_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoteLocks, "restore", lambda self, record, now: None)
    with pytest.raises(InvariantError, match="breaks the promise of its vote"):
        scenarios.test_a_vote_that_was_written_keeps_its_voter_out_of_another_majority()


def test_a_vote_after_an_abstention(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Voting.abstain

    def forgetful(self: Voting) -> list[Action]:
        actions = honest(self)
        if self.phase is VotePhase.ABSTAINED:
            self.phase = VotePhase.SILENT
        return actions

    monkeypatch.setattr(Voting, "abstain", forgetful)
    world = swarm(5)
    run_to_version(world, 2)
    last = next(peer for peer in world.peers if peer is not leader(world))
    world.network.filter = Drop(
        lambda _, to, message: statement_of(message, "vote") or (to == last.me and statement_of(message, "result"))
    )
    run_until(world, lambda: last.me in set().union(*world.watcher.abstained.values()), 60.0)  # type: ignore[attr-defined]
    lose_all(world, "vote")
    with pytest.raises(InvariantError, match="in a group in which it abstained"):
        world.run(PACE.round_seconds)


def test_a_certificate_with_too_few_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.chain.certificate.votes_needed", lambda voters: voters // 2 + 1)
    world = swarm(5)
    silent = {peer.me for peer in world.peers[:2]}
    world.network.filter = Drop(lambda sender, to, message: sender in silent and statement_of(message, "vote"))
    with pytest.raises(InvariantError, match="5 voters has 3 votes"):
        world.run(20.0)


def test_minorities_whose_certificates_count_as_full() -> None:
    world = swarm(4, PACE.model_copy(update={"min_share": 0.0, "quorum": 2}))
    world.watcher.min_share = 0.5  # type: ignore[attr-defined]
    run_to_version(world, 2)
    scenarios.split(world, [0, 1], [2, 3])
    with pytest.raises(InvariantError, match="has two versions 3"):
        world.run(60.0)


def test_a_fork_that_no_hostile_voter_explains() -> None:
    """Each of the two groups has a hostile member, but no hostile peer voted in both."""
    world = swarm(4, PACE.model_copy(update={"min_share": 0.0, "quorum": 2}))
    assert isinstance(world.watcher, Watcher)
    world.watcher.min_share = 0.5
    world.watcher.hostile |= {world.peers[0].me, world.peers[2].me}
    run_to_version(world, 2)
    scenarios.split(world, [0, 1], [2, 3])
    with pytest.raises(InvariantError, match="has two versions 3"):
        world.run(60.0)


def test_a_join_that_is_signed_anew_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Joining.ask

    def forgetful(self: Joining, contributes: bool, now: float) -> list[Action]:
        self.own.said.clear()
        return honest(self, contributes, now)

    monkeypatch.setattr(Joining, "ask", forgetful)
    world = swarm(4)
    scenarios.split(world, [0], [1], [2], [3])
    with pytest.raises(InvariantError, match="contradicts itself in a join"):
        world.run(30.0)


@pytest.mark.parametrize("hostile", [True, False])
def test_only_honest_peers_are_held_to_what_they_said(hostile: bool) -> None:
    """A two-faced peer gets its own second version back in a bundle, and shows it to peers that ask what it heard."""
    world = swarm(4)
    run_to_version(world, 2)
    suspect, other = [peer for peer in world.peers if peer is not leader(world)][:2]  # a leader sends itself nothing
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile |= {suspect.me} if hostile else set()
    tape = Tape(world)
    run_to_version(world, 3)
    said = next(one for one in tape.statements("commit") if one.sender == suspect.me)
    face = make_statement(suspect.signer, said.context, CHANGES["commit"](said.read(Commit)))
    with nullcontext() if hostile else pytest.raises(InvariantError, match="contradicts itself in a commit"):
        world.acts(suspect, Send(other.me, face))


def test_restarts_that_look_like_contradictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """If joins did not carry the boot nonce, a peer that restarts would be convicted."""
    nameless = {**statement_slots._SLOTS, "join": lambda statement: (statement.read(Join).attempt,)}
    monkeypatch.setattr(statement_slots, "_SLOTS", nameless)
    world = swarm(4)
    run_to_version(world, 2)
    lose_all(world, "roster")
    world.run(INTERVAL_SECONDS)  # until every peer has sent its join
    last = next(peer for peer in world.peers if peer is not leader(world))
    last.crash()
    last.start()
    with pytest.raises(InvariantError, match=r"contradicts itself in a join|which is honest"):
        world.run(4 * PACE.round_seconds)


def broken_adoption(change: Callable[[Attempt, Adopt], Adopt]) -> Callable[[Attempt, Certificate], Adopt | None]:
    honest = Attempt.adoption

    def adoption(self: Attempt, certificate: Certificate) -> Adopt | None:
        adopt = honest(self, certificate)
        return None if adopt is None else change(self, adopt)

    return adoption


def test_work_that_is_certified_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = broken_adoption(lambda _, adopt: replace(adopt, ours=NotIncluded()))
    monkeypatch.setattr(Attempt, "adoption", forgets)
    world = swarm(4)
    run_to_version(world, 3)
    with pytest.raises(InvariantError, match="count twice"):
        world.settle(60.0)


def test_work_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was left out treats its snapshot as included."""

    def included(attempt: Attempt, adopt: Adopt) -> Adopt:
        counted = adopt.certificate.outcome.included_in(attempt.core.me)
        return replace(adopt, ours=Included(attempt.group.key, counted))

    takes_all = broken_adoption(included)
    monkeypatch.setattr(Attempt, "adoption", takes_all)
    world = swarm(5)
    run_to_version(world, 2)
    late = next(peer for peer in world.peers if peer is not leader(world))
    world.network.filter = Drop(lambda sender, to, message: sender == late.me and statement_of(message, "commit"))
    run_to_version(world, 3)
    with pytest.raises(InvariantError, match="steps as certified"):
        world.settle(60.0)


def test_a_state_that_is_not_the_certified_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Voting, "holds", lambda self, certificate: True)
    world = swarm(5)
    run_to_version(world, 2)
    last = next(peer for peer in world.peers if peer is not leader(world))
    world.network.filter = Drop(lambda _, to, message: to == last.me and statement_of(message, "proposal"))
    with pytest.raises(InvariantError, match="adopts another state than certified"):
        world.run(4 * PACE.round_seconds)


def test_a_memory_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.engine.version_round.PAST_ATTEMPTS_MAX", 100)
    world = swarm(3)
    run_to_version(world, 1)
    world.network.filter = Drop(lambda _, to, message: statement_of(message, "check"))
    with pytest.raises(InvariantError, match="keeps too much"):
        world.run(100 * PACE.round_seconds)


def test_a_group_that_is_never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VersionRound, "_give_up", lambda self, attempt, reason, now: [])
    world = swarm(4)
    run_to_version(world, 2)
    lose_all(world, "check")
    with pytest.raises(InvariantError, match="a group whose deadline has passed"):
        world.run(3 * PACE.round_seconds)


def test_a_storm_of_reminders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.round.attempt.RETRY_SHARE", 0.0005)
    world = swarm(3)
    run_to_version(world, 1)
    lose_all(world, "vote")
    world.run(2 * PACE.round_seconds)
    world.network.heal()
    with pytest.raises(InvariantError, match="messages for"):
        world.quiesce(60.0)


@pytest.mark.slow
def test_rivals_that_are_never_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.engine.branch_rules.fragments_won", lambda ours, theirs, banned: frozenset())
    with pytest.raises(AssertionError, match="not true after"):
        scenarios.test_two_halves_become_one_lineage_again(PACE, 0)


def test_lineages_that_differ_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.engine.branch_rules.fragments_won", lambda ours, theirs, banned: frozenset())
    world = swarm(4)
    run_to_version(world, 3)
    scenarios.split(world, [0, 1], [2, 3])
    world.run(60.0)
    with pytest.raises(InvariantError, match="different lineages"):
        world.settle(60.0)


def test_a_minority_that_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.engine.branch_rules.takes_minor", lambda machines, machine, rival, now: True)
    with pytest.raises(AssertionError):
        scenarios.test_a_minor_version_before_its_time_leads_nobody_away(monkeypatch)


def test_a_swarm_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_open", lambda self, now: [])
    with pytest.raises(InvariantError, match="no progress after healing"):
        swarm(4).settle(60.0)


def test_the_fault_points_are_reached() -> None:
    """A trap that never springs would make every scenario about deaths empty."""
    world = swarm(5)
    reached: set[str] = set()
    world.listener = lambda _, action: reached.update(name for name, strikes in FAULT_POINTS.items() if strikes(action))
    run_to_version(world, 2)
    assert reached == set(FAULT_POINTS)
    assert version(world.peers[0]) == machine(world.peers[0]).held
