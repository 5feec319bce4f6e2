"""Leaders that make members vouch for results they could not inspect, or lock them out of voting (docs/adr/0054).

The hostile peers are fewer than a third and know each other. One of them leads, and sends its bundle to some members
very late. These sign their checks while they still inspect all results, so they doubt none. Each test uses such checks
in another way. In groups that none of them leads they are honest.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial

import pytest

from coordinator.core.actions import Action, Reduce, Send
from coordinator.core.events import Event, Finding, Reduced
from coordinator.group.group import InputSet
from coordinator.round.attempt import Attempt
from coordinator.round.leader import Leader
from coordinator.round.outcome import read_checks
from coordinator.round.spot_checks import SpotChecks
from coordinator.round.voting import Voting
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import Message, Redo
from coordinator.wire.openings import OpeningNote
from dht.identity import PeerId
from dht.statement import Statement
from tests.extra import extra
from tests.sim.test_inspection import cheat, perturbed
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, statement_of, swarm, version

SECONDS = 80.0
FAULT_FREE_VERSIONS = SECONDS / INTERVAL_SECONDS
RETRY_SECONDS = 0.01


class Blind(SpotChecks):
    """Spot checks that confirm every result."""

    __slots__ = ()

    def decide(self, gone: Set[PeerId], now: float) -> list[Action]:
        actions = super().decide(gone, now)
        for case in self.cases.values():
            case.finding = Finding.CONFIRMED
        return actions


class Voteless(Voting):
    """A voting role that sends its vote to nobody, not even itself."""

    __slots__ = ()

    def on_vote_recorded(self) -> list[Action]:
        return []


class Steered(Leader):
    """A leader that does nothing by itself after the bundle; see `Plotter.steer`."""

    __slots__ = ()

    def decide(self, phase: int, gone: Set[PeerId], now: float) -> list[Action]:
        return super().decide(phase, gone, now) if self.exchange.inputs is None else []


class Plotter(VirtualPeer):
    """A hostile peer: members that it `delays` get its bundle only when checks are due; it may hide openings."""

    __slots__ = ()
    late_share = 0.518  # of the deadline; checks are signed at CHECK_SHARE

    def plots(self) -> list[Attempt]:
        """Return the attempts with all peers that a hostile one leads."""
        all_in = [one for one in machine(self).rounds.all() if len(one.group.members) == len(self.world.directory)]
        return [one for one in all_in if one.group.leader in watcher_of(self.world.watch).hostile]

    def plot(self, message: Message) -> Attempt | None:
        """Return the plotted attempt of a message, which names the roster or the input set."""
        place = message.context.group if isinstance(message, Statement) else getattr(message, "group", None)
        inputs = ((one, one.exchange.inputs) for one in self.plots())
        return next((one for one, of in inputs if place in (one.group.key.roster_id, of and of.digest)), None)

    def honest(self, attempt: Attempt) -> list[PeerId]:
        return [member for member in attempt.group.members if member not in watcher_of(self.world.watch).hostile]

    def delays(self, attempt: Attempt, to: PeerId) -> bool:
        return to == self.honest(attempt)[0]

    def hides(self, action: Send) -> bool:
        return isinstance(action.message, OpeningNote) and self.plot(action.message) is not None

    def starved(self, attempt: Attempt) -> list[PeerId]:
        """Return the members whose checks the proposal leaves out."""
        return []

    def lie(self, attempt: Attempt, action: Reduce, honest: Reduced) -> Reduced:
        return honest

    def reduce(self, made: set[bytes], action: Reduce, honest: Reduced) -> Reduced:
        """Return the result that it claims; add a made-up root to `made`."""
        attempt = next((one for one in self.plots() if one.group.key == action.key), None)
        told = honest if attempt is None else self.lie(attempt, action, honest)
        made.update(root for root in [told.root] if root is not None and told is not honest)
        return told

    def steer(self, attempt: Attempt, inputs: InputSet) -> list[Action]:
        """Propose by the others' checks once all have checked."""
        first = [one for one in attempt.leader_role.checks.values() if one.check.phase == 0]
        heard = [one for one in first if one.sender not in self.starved(attempt)]
        enough = len(heard) == len(attempt.group.members) - len(self.starved(attempt))
        return attempt.leader_role._propose(inputs, heard) if enough else []

    def handle(self, event: Event) -> None:
        super().handle(event)
        for attempt in self.plots():
            inputs, leader_role = attempt.exchange.inputs, attempt.leader_role
            attempt.inspection.__class__, leader_role.__class__ = Blind, Steered
            if leader_role.leads and inputs is not None and leader_role.proposal is None:
                for action in self.steer(attempt, inputs):
                    self._perform(action)

    def _send(self, action: Send) -> None:
        attempt = self.plot(action.message) if statement_of(action.message, "bundle") else None
        if attempt is not None and self.delays(attempt, action.to):
            delay_seconds = attempt.timeline.at(self.late_share) - self.world.clock.now
            self.world.clock.after(max(delay_seconds, 0.0), partial(super()._send, action))
        elif not self.hides(action):
            super()._send(action)


class Starver(Plotter):
    """A plotter that delays one member and lets a third doubt.

    The rest get its made-up result only with the proposal, which leaves out their checks.
    """

    __slots__ = ()

    def starved(self, attempt: Attempt) -> list[PeerId]:
        return self.honest(attempt)[1 + (len(attempt.group.members) - 1) // 3 :]

    def lie(self, attempt: Attempt, action: Reduce, honest: Reduced) -> Reduced:
        return perturbed(action, honest)

    def _send(self, action: Send) -> None:
        attempt = self.plot(action.message) if statement_of(action.message, "result") else None
        if attempt is None or attempt.verdict.followed is not None or action.to not in self.starved(attempt):
            super()._send(action)
        elif self.world.clock.now < attempt.timeline.end:
            self.world.clock.after(RETRY_SECONDS, partial(self._send, action))


class Backdater(Plotter):
    """A plotter that delays all, orders a redo of its made-up result, and proposes that result all the same.

    The redo is justified, as the result lacks the plotter's own input.
    """

    __slots__ = ()
    late_share = 0.514  # so that they all still get the results before they sign

    def delays(self, attempt: Attempt, to: PeerId) -> bool:
        return to != self.me

    def lie(self, attempt: Attempt, action: Reduce, honest: Reduced) -> Reduced:
        inputs = attempt.exchange.inputs
        if inputs is None or action.turn > 0:
            return honest
        kept = tuple(member for member, peer in enumerate(inputs.peers) if peer != self.me)
        return replace(perturbed(action, honest), included=kept)

    def steer(self, attempt: Attempt, inputs: InputSet) -> list[Action]:
        leader_role, everybody = attempt.leader_role, attempt.group.voters
        if leader_role.redo is None:
            all_in, own = leader_role.checks.keys() == everybody, attempt.group.reducers.index(self.me)
            return leader_role._order_redo(inputs, (own,), list(leader_role.checks.values())) if all_in else []
        before = read_checks(leader_role.redo.read(Redo).checks, attempt.group, inputs, self.world.verifier)
        again = {one.sender for one in leader_role.checks.values() if one.check.phase == 1}
        return leader_role._propose(inputs, list(before)) if again | {self.me} == everybody else []


class Hider(Plotter):
    """A plotter that delays one, and opens honestly to all but that one.

    As hostile peers do not vote, the vote of that one is needed.
    """

    __slots__ = ()

    def hidden_from(self, attempt: Attempt) -> list[PeerId]:
        return self.honest(attempt)[:1]

    def hides(self, action: Send) -> bool:
        attempt = self.plot(action.message) if isinstance(action.message, OpeningNote) else None
        return attempt is not None and action.to in self.hidden_from(attempt)

    def handle(self, event: Event) -> None:
        super().handle(event)
        for attempt in self.plots():
            attempt.verdict.__class__ = Voteless


class Dimmer(Hider):
    """A hider that opens neither to that one nor to as many as may doubt.

    If doubters do not count, too few are convinced.
    """

    __slots__ = ()

    def hidden_from(self, attempt: Attempt) -> list[PeerId]:
        return self.honest(attempt)[: 1 + len(attempt.group.members) // 3]


def watcher_of(world: object) -> Watcher:
    assert isinstance(world, World)
    assert isinstance(world.watcher, Watcher)
    return world.watcher


def seize(world: World, kind: type[Plotter]) -> set[bytes]:
    """Make as many peers hostile of this kind as can be; return the set of roots that they will make up."""
    made: set[bytes] = set()
    for culprit in world.peers[-((len(world.peers) - 1) // 3) :]:
        culprit.__class__ = kind
        assert isinstance(culprit, Plotter)
        cheat(culprit, partial(culprit.reduce, made))
    return made


def certified_roots(world: World) -> list[bytes | None]:
    """Return the root of every partition of every version; None if it is frozen."""
    every = (partition for one in watcher_of(world).certified.values() for partition in one.outcome.partitions)
    return [None if partition is None else partition.root for partition in every]


def check_nothing_made_up(world: World, kind: type[Plotter]) -> None:
    made = seize(world, kind)
    world.run(SECONDS)
    assert made, "one of them has led"
    assert made.isdisjoint(certified_roots(world))
    assert version(world.peers[0]) >= 0.3 * FAULT_FREE_VERSIONS  # each plot voids an attempt, the second a long one


@pytest.mark.parametrize(("count", "seed"), [(4, 0), *extra([(7, 1), (4, 1), (7, 0)])])
def test_members_do_not_vote_for_a_result_that_one_could_not_inspect_and_a_third_doubt(count: int, seed: int) -> None:
    """Once doubters and starved members voted for it, so such a leader's made-up result was certified."""
    check_nothing_made_up(swarm(count, seed=seed), Starver)


@pytest.mark.parametrize("seed", [0, *extra([1, 2])])
def test_a_redo_does_not_hide_what_nobody_could_look_into(seed: int) -> None:
    """Once voters judged by their checks after a redo, though the proposal used the ones before it."""
    check_nothing_made_up(swarm(4, seed=seed), Backdater)


@pytest.mark.parametrize(("kind", "share", "deadlines"), [(Hider, 0.6, 2), (Dimmer, 0.3, 4)])
@pytest.mark.parametrize(("count", "seed"), [(4, 0), *extra([(4, 1), (7, 0), (7, 1)])])
def test_a_member_that_is_shown_no_right_leaves_follows_the_others(
    count: int, seed: int, kind: type[Hider], share: float, deadlines: int
) -> None:
    """Once it did not vote, and all others, which had voted, were locked for three deadlines each time."""
    world, hidden = swarm(count, seed=seed), list[Send]()
    seize(world, kind)

    def note(peer: VirtualPeer, action: Action) -> None:
        if isinstance(peer, Hider) and isinstance(action, Send) and peer.hides(action):
            hidden.append(action)

    world.listener = note
    longest, last = 0.0, world.clock.now
    while world.clock.now < SECONDS:
        before = version(world.peers[0])
        world.run(0.25)
        longest = max(longest, world.clock.now - last)
        last = world.clock.now if version(world.peers[0]) > before else last
    assert hidden, "one of them has led"
    assert longest < deadlines * PACE.round_seconds
    assert version(world.peers[0]) >= share * FAULT_FREE_VERSIONS  # two rounds in seven take one or two whole deadlines
