"""Who brings its work through whom, where more peers train than fit into one group (docs/adr/0011). Pure functions.

A group of 32 makes every version, as in a small swarm. Its members are *heads*: who has no seat there brings its work
to one of them, which the beacon draws. A head of many deals them out to cells, whose leaders bring it what these come
to. So each peer is in one cell, leaders in two, and the height of it all grows with the logarithm of the swarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest
from types import MappingProxyType

from coordinator.chain.certificate import Contributor
from coordinator.chain.chain import Chain, beacon_order
from coordinator.chain.newcomer_limits import Networks, beyond, most_of
from coordinator.core.tickets import NEW_SEATS
from coordinator.round.cell_input import total
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import CellYield
from dht.identity import PeerId
from dht.statement import digest_of

CELL_PEERS = 20  # of a dealt cell, leader included; more only where a head has more than 31 times this
HEADS_PER_WARD_MAX = 3  # whom a ward may ask, one after the other as they are gone
WARDS_PER_CELL_MAX = PEERS_PER_GROUP_MAX - 1
WARDS_MAX = WARDS_PER_CELL_MAX * PEERS_PER_GROUP_MAX  # of one head


def heads_of(chain: Chain) -> frozenset[PeerId]:
    """Members of the newest roster that keep their seats if all come (`tickets`); nobody before there is a version."""
    if chain.version == 0:
        return frozenset()
    order = beacon_order(chain.beacon(), chain.newest_roster() - chain.convicted())
    return frozenset(order[: PEERS_PER_GROUP_MAX - NEW_SEATS])


def heads_for(beacon: bytes, peer: PeerId, heads: Set[PeerId]) -> tuple[PeerId, ...]:
    """Whose ward a peer may be: the first of these that is there. Who drops out of `heads` moves its own wards only."""

    def drawn(head: PeerId) -> bytes:
        return digest_of(b"muster-cell", beacon, head.encode(), peer.encode())

    return tuple(nlargest(HEADS_PER_WARD_MAX, heads, key=drawn))


@dataclass(frozen=True, slots=True)
class CellAssignment:
    """A head's wards: those in its own cell, and for each of them, where they lead one, those in theirs."""

    own: tuple[PeerId, ...]
    below: Mapping[PeerId, tuple[PeerId, ...]]

    @property
    def height(self) -> int:
        return 2 if self.below else 1

    @property
    def smallest(self) -> int:
        """Members of the smallest cell, its leader included."""
        return 1 + min(map(len, (self.own, *self.below.values())))


def deal(order: Sequence[PeerId]) -> CellAssignment:
    """Deal wards, given in beacon order, out to cells of equal size; the first ones lead them."""
    kept = order[:WARDS_MAX]
    if len(kept) <= WARDS_PER_CELL_MAX:
        return CellAssignment(tuple(kept), MappingProxyType({}))
    cells = min(-(-len(kept) // CELL_PEERS), WARDS_PER_CELL_MAX)
    below = {leader: tuple(kept[cells + index :: cells]) for index, leader in enumerate(kept[:cells])}
    return CellAssignment(tuple(below), MappingProxyType(below))


def deal_within(order: Sequence[PeerId], head: PeerId, share: float, networks: Networks) -> CellAssignment:
    """`deal`, with at most this share of every cell, or one member, of one network; the others come another time.

    `share` 1 is no bound. The head is in the cell above, and counts there.
    """
    while True:
        dealt = deal(order)
        most = len(order) + 1 if share == 1 else most_of(share, dealt.smallest)
        surplus = beyond((head, *order), most, networks)
        if not surplus:
            return dealt
        order = [peer for peer in order if peer not in surplus]


def brought(
    own: Contributor, leaders: Sequence[PeerId], cells: Sequence[CellYield], above: Sequence[Contributor]
) -> bool:
    """Whether this work is in what `above` lists: in the first cell, whose leader brought just that, and so on.

    Shown to anybody with the certificate, the cells prove it.
    """
    if not cells or len(leaders) != len(cells) or own not in cells[0].contributors:
        return False
    lists = [*(cell.contributors for cell in cells[1:]), tuple(above)]
    return all(
        any(one.peer == leader and _brings(one, cell) for one in listed)
        for leader, cell, listed in zip(leaders, cells, lists, strict=True)
    )


def _brings(one: Contributor, cell: CellYield) -> bool:
    """Whether this line of a list stands for what the cell has come to."""
    return one.cell == cell.digest and (one.tokens, one.steps) == total(cell.contributors)
