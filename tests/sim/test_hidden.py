"""Two of seven follow the protocol and yet bind honest members, by selective or outdated messages.

They show statements to some members only, or old statements to all. None of it is late or convicts them. Without them
29 versions come in these thirty intervals; with them more than half have to come (docs/adr/0049).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from coordinator.adversary.collusion import mischief_of
from coordinator.core.actions import Send
from coordinator.core.events import Received
from coordinator.round.exchange import GIVEN_MAX
from coordinator.simulator.invariants import Watcher
from coordinator.wire.messages import Join, Message, NeedNote
from dht.identity import PeerId
from dht.statement import Statement
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, machine, run_to_version, run_until, swarm

INTERVALS = 30
Filter = Callable[[PeerId, PeerId, Message], bool]


class Band:
    """A world of seven at version 2, two of them hostile from then on."""

    def __init__(self, seed: int, ground: bool = False) -> None:
        """`ground`: the hostile peers are the ones whose keys sort first."""
        self.world = swarm(7, seed=seed)
        run_to_version(self.world, 2)
        self.hostile = sorted(self.world.peers, key=lambda peer: peer.me)[:2] if ground else self.world.peers[-2:]
        self.ids = frozenset(peer.me for peer in self.hostile)
        self.honest = [peer for peer in self.world.peers if peer.me not in self.ids]
        assert isinstance(self.world.watcher, Watcher)
        self.world.watcher.hostile |= self.ids

    def told(self, version: int) -> set[PeerId]:
        """Return three of the five honest peers, different ones for each version."""
        return {self.honest[(version + number) % len(self.honest)].me for number in range(3)}

    def own(self, by: PeerId, message: Message) -> Statement | None:
        """Return the message if it is a hostile peer's own statement, else None."""
        if isinstance(message, Statement) and by in self.ids and message.sender in self.ids:
            return message
        return None

    def versions(self, shows: Filter) -> int:
        """Return the versions made under this filter, after checking that no honest peer is banned."""
        before = machine(self.honest[0]).chain.version
        self.world.network.filter = shows
        self.world.run(INTERVALS * INTERVAL_SECONDS)
        for peer in self.honest:
            assert peer.engine is not None
            assert not peer.engine.core.bans.held.keys() - self.ids
        return machine(self.honest[0]).chain.version - before


@pytest.mark.parametrize("kind", ["roster", *extra(["bundle"])])
def test_a_group_that_is_shown_to_some_of_its_members(kind: str) -> None:
    """Members that vote there are bound, and the others, which would abstain, never hear of it."""
    band = Band(seed=1)

    def shows(by: PeerId, to: PeerId, message: Message) -> bool:
        """Hide the hostile peers' votes, too."""
        own = band.own(by, message)
        if own is None or own.context.kind not in (kind, "vote"):
            return True
        return own.context.kind == kind and to in band.told(own.context.version) | band.ids

    assert band.versions(shows) > 15  # 11 and 4 if members do not pass them on


def test_a_proposal_that_is_shown_to_some_and_voted_for_before_them() -> None:
    band = Band(seed=0)
    led: set[tuple[int, str]] = set()

    def shows(by: PeerId, to: PeerId, message: Message) -> bool:
        own = band.own(by, message)
        if own is None or own.context.kind not in ("proposal", "vote"):
            return True
        place = (own.context.version, own.sender)
        if own.context.kind == "proposal":
            led.add(place)
        return place in led and to in band.told(own.context.version)

    assert band.versions(shows) > 15  # 13 if members pass on only an unheard proposer's statement


def test_results_that_only_the_first_keys_could_give() -> None:
    """Attackers choose keys that sort first; the leader's vote reaches three, its accomplice's the other two."""
    band = Band(seed=1, ground=True)
    inputs: set[bytes] = set()
    leaders: dict[bytes, str] = {}

    def shows(by: PeerId, to: PeerId, message: Message) -> bool:
        own = band.own(by, message)
        if own is None:
            return True
        group, told = own.context.group, band.told(own.context.version)
        if own.context.kind == "bundle":
            inputs.add(own.digest)
            leaders[group] = own.sender
        if own.context.kind == "result" and group in inputs:
            return to in told | band.ids
        if own.context.kind == "vote":
            others = {peer.me for peer in band.honest} - told
            return group in leaders and to in (told if leaders[group] == own.sender else others)
        return True

    assert band.versions(shows) > 15  # 9 if members ask the voter whose key sorts first


def test_old_joins_that_are_shown_again() -> None:
    """A join shown by another peer says nothing about where its signer asks now."""
    band = Band(seed=9)
    for peer in band.hostile:
        peer.mischief = replace(mischief_of(peer.signer, ["never_gather"], ()), accomplices=band.ids - {peer.me})
    first: dict[bytes, dict[PeerId, tuple[int, Statement]]] = defaultdict(dict)

    def repeat(by: PeerId, joins: Collection[Statement]) -> None:
        for pause_seconds, join, peer in product((0.05, 0.3, 0.6), joins, band.honest):
            if peer.me != join.sender:
                band.world.clock.after(pause_seconds, partial(band.world.network.send, by, peer.me, join, None))

    def shows(by: PeerId, to: PeerId, message: Message) -> bool:
        """Hide nothing; but when a peer asks into a later attempt, show all peers everyone's first joins again."""
        asks = isinstance(message, Statement) and message.context.kind == "join" and by == message.sender
        if to in band.ids and by not in band.ids and asks:
            attempt, joins = message.read(Join).attempt, first[message.context.group]
            if attempt > joins.setdefault(by, (attempt, message))[0]:
                repeat(to, [join for _, join in joins.values()])
        return True

    assert band.versions(shows) > 15  # 1 if old joins count as the honest peers' current ones


def test_a_member_that_asks_without_end_is_given_little() -> None:
    world = swarm(4)
    run_to_version(world, 2)
    giver, asker = world.peers[0], world.peers[-1]

    def holds_results() -> bool:
        attempt = machine(giver).attempt
        return attempt is not None and bool(attempt.exchange.results) and asker.me in attempt.group.voters

    run_until(world, holds_results, 60 * INTERVAL_SECONDS)
    attempt = machine(giver).attempt
    assert attempt is not None
    assert giver.engine is not None
    partition, turn = next(iter(attempt.exchange.results))
    note = NeedNote(what="result", group=attempt.group.key.roster_id, partition=partition, turn=turn)
    given = [
        action
        for _ in range(1000)
        for action in giver.engine.handle(Received(asker.me, note, None), world.clock.now)
        if isinstance(action, Send) and action.payload is not None
    ]
    assert len(given) == GIVEN_MAX
