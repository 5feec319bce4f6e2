"""How much of one group strangers may make up, and peers of one network (design §9, docs/adr/0017). Pure functions.

Keys cost nothing, and a third of a group can stop it. So every member holds a roster to two bounds, which follow from
the chain and from what the joins in the roster say; a leader fills its roster within them. Where a member sees that
somebody calls from another network than its join names, that one counts there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from coordinator.run.manifest import TrustSpec
from dht.identity import PeerId

Networks = Mapping[PeerId, Set[bytes]]


@dataclass(frozen=True, slots=True)
class NewcomerLimits:
    """The bounds of one group. `known` are the active set, in which nobody is on probation, and the founders."""

    trust: TrustSpec
    leader: PeerId
    known: Set[PeerId]
    founders: Set[PeerId]
    networks: Networks = field(default_factory=dict)

    def admitted(self, order: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """As many of these as a roster may have, in the same order: first the leader stays, then known peers."""
        members = tuple(order)
        while surplus := self._surplus(members):
            members = tuple(peer for peer in members if peer not in surplus)
        return members

    def refusal(self, members: Sequence[PeerId]) -> str | None:
        """Why no roster may have these members; None if one may."""
        if self._of_one_network(members):
            return "has too many members of one network"
        return "has too many newcomers" if self._newcomers(members) else None

    def _surplus(self, members: Sequence[PeerId]) -> Set[PeerId]:
        """Who has to go at least; with fewer members, more of them may have to."""
        return self._of_one_network(members) or self._newcomers(members)

    def _newcomers(self, members: Sequence[PeerId]) -> Set[PeerId]:
        newcomers = [peer for peer in members if peer not in self.known]
        return frozenset(newcomers[most_newcomers(self.trust.newcomers_share, len(members)) :])

    def _of_one_network(self, members: Sequence[PeerId]) -> Set[PeerId]:
        order = sorted(members, key=lambda peer: (peer != self.leader, peer not in self.known))
        bounded = {peer: own for peer, own in self.networks.items() if peer not in self.founders}
        return beyond(order, most_of(self.trust.network_share, len(members)), bounded)


def beyond(order: Sequence[PeerId], most: int, networks: Networks) -> Set[PeerId]:
    """Who of these, taken in order, is beyond the first `most` of a network; who has none never is."""
    count, surplus = dict[bytes, int](), set[PeerId]()
    for peer in order:
        own = networks.get(peer, frozenset())
        if any(count.get(network, 0) >= most for network in own):
            surplus.add(peer)
            continue
        count.update({network: count.get(network, 0) + 1 for network in own})
    return surplus


def most_newcomers(share: float, members: int) -> int:
    """How many of so many members may be newcomers: where there is a bound, never all."""
    return members if share == 1 else min(most_of(share, members), members - 1)


def most_of(share: float, members: int) -> int:
    """How many of so many members this share is; one at least."""
    return max(int(share * members), 1)
