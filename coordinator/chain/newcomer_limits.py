"""Limits on newcomers, and on peers of one network, in a group (design §9, docs/adr/0017). Pure functions.

Keys cost nothing, and a third of a group can stop it. So every member holds a roster to two limits, which follow from
the chain and from the joins in the roster; a leader fills its roster within them. If a member sees that a peer calls
from a network that its join does not name, the peer counts in that network, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from coordinator.run.manifest import TrustSpec
from dht.identity import PeerId

Networks = Mapping[PeerId, Set[bytes]]


@dataclass(frozen=True, slots=True)
class NewcomerLimits:
    """The limits of one group. `known` are the active set, which has no peer on probation, and the founders."""

    trust: TrustSpec
    leader: PeerId
    known: Set[PeerId]
    founders: Set[PeerId]
    networks: Networks = field(default_factory=dict)

    def admitted(self, order: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return as many of these as a roster may have, in the same order; the leader stays first, then known peers."""
        members = tuple(order)
        while surplus := self._surplus(members):
            members = tuple(peer for peer in members if peer not in surplus)
        return members

    def refusal(self, members: Sequence[PeerId]) -> str | None:
        """Return why a roster may not have these members; None if it may."""
        if self._of_one_network(members):
            return "has too many members of one network"
        return "has too many newcomers" if self._newcomers(members) else None

    def _surplus(self, members: Sequence[PeerId]) -> Set[PeerId]:
        """Return members that have to go; with fewer members, more of them may have to."""
        return self._of_one_network(members) or self._newcomers(members)

    def _newcomers(self, members: Sequence[PeerId]) -> Set[PeerId]:
        newcomers = [peer for peer in members if peer not in self.known]
        return frozenset(newcomers[most_newcomers(self.trust.newcomers_share, len(members)) :])

    def _of_one_network(self, members: Sequence[PeerId]) -> Set[PeerId]:
        order = sorted(members, key=lambda peer: (peer != self.leader, peer not in self.known))
        bounded = {peer: own for peer, own in self.networks.items() if peer not in self.founders}
        return beyond(order, most_of(self.trust.network_share, len(members)), bounded)


def beyond(order: Sequence[PeerId], most: int, networks: Networks) -> Set[PeerId]:
    """Return the peers that, taken in order, are beyond the first `most` of a network; those without one never are."""
    count, surplus = dict[bytes, int](), set[PeerId]()
    for peer in order:
        own = networks.get(peer, frozenset())
        if any(count.get(network, 0) >= most for network in own):
            surplus.add(peer)
            continue
        count.update({network: count.get(network, 0) + 1 for network in own})
    return surplus


def most_newcomers(share: float, members: int) -> int:
    """Return how many of so many members may be newcomers; with a share below 1, never all."""
    return members if share == 1 else min(most_of(share, members), members - 1)


def most_of(share: float, members: int) -> int:
    """Return how many of so many members this share is, rounded down, but at least one."""
    return max(int(share * members), 1)
