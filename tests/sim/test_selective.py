"""Hostile members that give a result, or open it, to chosen members only (docs/adr/0055).

They are fewer than a third and know each other. Each honest member misses too little for a redo or a ban. All together
should leave too few voters, or too few members that have seen a false leaf. Only `Opener` leads its attack and makes up
results. The others reduce and lead honestly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from coordinator.core.actions import Adopt, Inspect, Reduce, Send
from coordinator.core.events import Event, Finding, Inspected, Reduced
from coordinator.round.attempt import Attempt
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.simulator.tensors import VirtualTensors
from coordinator.wire.messages import Check, PartNote, Proposal
from coordinator.wire.openings import OpeningNote, drawn_leaves, leaves_per_voter
from dht.identity import PeerId
from dht.statement import Statement
from tests.extra import extra
from tests.sim.test_inspection import perturbed
from tests.sim.test_vouching import FAULT_FREE_VERSIONS, SECONDS, Blind, Plotter, Voteless, certified_roots, seize
from tests.sim.worlds import INTERVAL_SECONDS, PACE, Tape, machine, statement_of, swarm, version

LONG_SECONDS = 240.0
LEAVES = 600  # pretended leaves of a result; in the simulator it has one
LEAF_BYTES, BUTTERFLY_BYTES = 1 << 10, 10**9  # with these every voter draws as many leaves as it wants


class Chooser(Plotter):
    """A plotter that withholds its result from some members and its openings from others, and does not vote.

    It does so in groups with any leader.
    """

    __slots__ = ()

    def plots(self) -> list[Attempt]:
        return list(machine(self).rounds.all())

    def ungiven(self, attempt: Attempt) -> list[PeerId]:
        """Return the members that do not get its results: as many as two thirds can do without."""
        honest = self.honest(attempt)
        hostile = len(attempt.group.members) - len(honest)
        return honest[: len(honest) + hostile - attempt.group.votes_needed]

    def unshown(self, attempt: Attempt) -> list[PeerId]:
        """Return the members that get no openings: these, and as many more as may doubt."""
        return self.honest(attempt)[: len(self.ungiven(attempt)) + len(attempt.group.members) // 3]

    def delays(self, attempt: Attempt, to: PeerId) -> bool:
        return False

    def hides(self, action: Send) -> bool:
        message, attempt = action.message, self.plot(action.message)
        if attempt is None:
            return False
        if isinstance(message, OpeningNote):
            reducer = attempt.group.reducer(message.partition, attempt.exchange.redone)
            return reducer not in self.honest(attempt) and action.to in self.unshown(attempt)
        return statement_of(message, "result") and action.to in self.ungiven(attempt)

    def handle(self, event: Event) -> None:
        VirtualPeer.handle(self, event)
        for attempt in self.plots():
            attempt.inspection.__class__, attempt.verdict.__class__ = Blind, Voteless


class Laggard(Chooser):
    """A chooser that gives a third its result only with the proposal, which waits for a redo and then for its check."""

    __slots__ = ()
    recheck_share = 0.79  # of the deadline; at 0.8 a proposal after a redo is due even with silent members

    def ungiven(self, attempt: Attempt) -> list[PeerId]:
        others = [member for member in self.honest(attempt) if member != attempt.group.leader]
        return others[: len(attempt.group.members) // 3]

    def unshown(self, attempt: Attempt) -> list[PeerId]:
        return self.ungiven(attempt)

    def hides(self, action: Send) -> bool:
        message, attempt = action.message, self.plot(action.message)
        if attempt is None or not isinstance(message, PartNote) or message.turn > 0:
            return super().hides(action)
        given = [member for member in self.honest(attempt) if member not in self.ungiven(attempt)]
        return action.to in given[:1]  # so this one's result lacks an input and is reduced again

    def _send(self, action: Send) -> None:
        message, attempt = action.message, self.plot(action.message)
        if attempt is not None and isinstance(message, Statement) and is_recheck(message):
            delay_seconds = attempt.timeline.at(self.recheck_share) - self.world.clock.now
            self.world.clock.after(max(delay_seconds, 0.0), partial(super()._send, action))
        else:
            super()._send(action)


class Exposer(Chooser):
    """A chooser that gives its result to all but an honest leader, and opens it to nobody."""

    __slots__ = ()

    def plots(self) -> list[Attempt]:
        return [attempt for attempt in super().plots() if attempt.group.leader in self.honest(attempt)]

    def ungiven(self, attempt: Attempt) -> list[PeerId]:
        return [attempt.group.leader]

    def unshown(self, attempt: Attempt) -> list[PeerId]:
        return self.honest(attempt)


class Opener(Plotter):
    """A leader that makes up some leaves of its result, and opens it only to members that draw none of these."""

    __slots__ = ()
    false_share = 0.0  # of the leaves

    def delays(self, attempt: Attempt, to: PeerId) -> bool:
        return False

    def lie(self, attempt: Attempt, action: Reduce, honest: Reduced) -> Reduced:
        return perturbed(action, honest) if self.me == attempt.group.leader else honest

    def hides(self, action: Send) -> bool:
        message, attempt = action.message, self.plot(action.message)
        if attempt is None or not isinstance(message, OpeningNote):
            return False
        if attempt.group.reducers[message.partition] != attempt.group.leader:
            return False
        held = attempt.exchange.results.get((message.partition, 0))
        if self.me != attempt.group.leader or held is None:
            return True
        return draws_false(message.seed, len(attempt.group.voters), held.result.root, self.false_share)

    def starved(self, attempt: Attempt) -> list[PeerId]:
        """Return as many doubters as a proposal can do without."""
        own = attempt.group.reducers.index(self.me)
        doubters = [sender for sender, one in attempt.leader_role.checks.items() if own in one.check.doubts]
        return doubters[: len(attempt.group.voters) - attempt.group.votes_needed]


def is_recheck(statement: Statement) -> bool:
    return statement_of(statement, "check") and statement.read(Check).phase == 1


def draws_false(seed: bytes, voters: int, root: bytes, false_share: float) -> bool:
    """Whether this seed draws a made-up leaf of a result."""
    wanted = leaves_per_voter(voters, voters, voters, LEAF_BYTES, BUTTERFLY_BYTES)
    false = drawn_leaves(root, LEAVES, int(false_share * LEAVES))
    return not set(drawn_leaves(seed, LEAVES, wanted)).isdisjoint(false)


def make_up(false_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make false results have LEAVES leaves, of which this share is false; a draw without a false one finds nothing."""
    inspect_all = VirtualTensors.inspect

    def inspect(tensors: VirtualTensors, action: Inspect) -> Inspected:
        found = inspect_all(tensors, action)
        if found.finding is not Finding.REFUTED or action.whole or action.leaf is not None:
            return found
        if draws_false(action.seed, action.voters, action.root, false_share):
            return found
        return replace(found, finding=Finding.CONFIRMED, refutation=None)

    monkeypatch.setattr(VirtualTensors, "inspect", inspect)
    monkeypatch.setattr(Opener, "false_share", false_share)


def plotted(world: World, kind: type[Plotter], seconds: float) -> Tape:
    """Return the tape of a run with as many hostile peers of this kind as can be."""
    seize(world, kind)
    tape = Tape(world)
    world.run(seconds)
    return tape


def longest_gap(tape: Tape) -> float:
    """Return the longest time in which an honest member adopted no version."""
    first = tape.world.peers[0]
    moved = [at for at, peer, action in tape.entries if peer is first and isinstance(action, Adopt)]
    return max(after - before for before, after in pairwise([0.0, *moved, tape.world.clock.now]))


@pytest.mark.parametrize(("count", "seed"), [(4, 0), *extra([(7, 0), (4, 1), (7, 1)])])
def test_a_result_that_a_third_misses_and_a_third_doubts_is_reduced_again(count: int, seed: int) -> None:
    """Neither was more than a third, so the result was proposed, but too few were convinced for others to follow."""
    tape = plotted(swarm(count, seed=seed), Chooser, SECONDS)
    assert longest_gap(tape) < 2 * PACE.round_seconds
    assert version(tape.world.peers[0]) >= 0.4 * FAULT_FREE_VERSIONS  # each takes a redo
    assert None not in certified_roots(tape.world)


@pytest.mark.parametrize(("count", "seed"), [(4, 0), *extra([(7, 0), (4, 1), (7, 1)])])
def test_a_member_that_gets_a_result_with_the_proposal_votes_in_time(count: int, seed: int) -> None:
    """Once it waited for openings until the attempt was over; all others had voted, and were locked for 3 deadlines."""
    tape = plotted(swarm(count, seed=seed), Laggard, LONG_SECONDS)
    assert longest_gap(tape) < 8 * PACE.round_seconds
    assert version(tape.world.peers[0]) >= 0.2 * LONG_SECONDS / INTERVAL_SECONDS  # each takes a whole deadline


@pytest.mark.parametrize(("count", "seed"), [(4, 0), *extra([(7, 0), (4, 1), (7, 1)])])
def test_a_leader_proposes_no_checks_from_before_its_own_redo(count: int, seed: int) -> None:
    """Once it proposed old checks before its own order reached it, and froze the partition of the redo."""
    tape = plotted(swarm(count, seed=seed), Exposer, SECONDS)
    redone = {(one.sender, one.context.group) for one in tape.statements("redo")}
    after = [one for one in tape.statements("proposal") if (one.sender, one.context.group) in redone]
    assert after, "it has been plotted"
    overtaken = [check for one in after for check in one.read(Proposal).checks if not is_recheck(check)]
    assert overtaken == []
    assert None not in certified_roots(tape.world)


@pytest.mark.slow
@pytest.mark.parametrize(("false_share", "held_share_max"), [(0.1, 0.2), (0.05, 0.6)])
def test_a_member_that_doubts_a_result_does_not_count_for_it(
    false_share: float, held_share_max: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of voters counted even with doubters: one of seven whose draw missed, with two hostile, was enough."""
    world = swarm(7, seed=1)
    make_up(false_share, monkeypatch)
    made = seize(world, Opener)
    world.run(LONG_SECONDS)
    held = made.intersection(certified_roots(world))
    assert made, "one of them has led"
    assert len(held) < held_share_max * len(made)
