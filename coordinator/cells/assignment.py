"""Assignment of peers to cells when more peers train than fit into one group (docs/adr/0011). Pure functions.

A group of 32 makes every version, as in a small swarm. Its members are *heads*. A peer without a seat there is the
*ward* of a head drawn by the beacon, and contributes through it. A head with many wards deals them out to cells, whose
leaders pass the cells' merged work on to the head. So each peer is in one cell, a leader in two, and the height of the
tree grows with the logarithm of the swarm.
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

CELL_PEERS = 20  # peers in a cell, leader included; more only if a head has more than 31 times as many wards
HEADS_PER_WARD_MAX = 3  # heads that a ward may ask: the next one if the one before is gone
WARDS_PER_CELL_MAX = PEERS_PER_GROUP_MAX - 1
WARDS_MAX = WARDS_PER_CELL_MAX * PEERS_PER_GROUP_MAX  # wards of one head


def heads_of(chain: Chain) -> frozenset[PeerId]:
    """Return the members of the newest roster that keep their seats if all come (`tickets`); none at version 0."""
    if chain.version == 0:
        return frozenset()
    order = beacon_order(chain.beacon(), chain.newest_roster() - chain.convicted())
    return frozenset(order[: PEERS_PER_GROUP_MAX - NEW_SEATS])


def heads_for(beacon: bytes, peer: PeerId, heads: Set[PeerId]) -> tuple[PeerId, ...]:
    """Return the heads of a peer; the first live one counts. If a head drops out, only its own wards move."""

    def drawn(head: PeerId) -> bytes:
        return digest_of(b"muster-cell", beacon, head.encode(), peer.encode())

    return tuple(nlargest(HEADS_PER_WARD_MAX, heads, key=drawn))


@dataclass(frozen=True, slots=True)
class CellAssignment:
    """The cells of one head: the wards in its own cell, and the wards below each of these that leads a cell."""

    own: tuple[PeerId, ...]
    below: Mapping[PeerId, tuple[PeerId, ...]]

    @property
    def height(self) -> int:
        return 2 if self.below else 1

    @property
    def smallest(self) -> int:
        """Members of the smallest cell, its leader included."""
        return 1 + min(map(len, (self.own, *self.below.values())))


def assign_cells(order: Sequence[PeerId]) -> CellAssignment:
    """Assign wards, given in beacon order, to cells of equal size; the first wards are the leaders."""
    kept = order[:WARDS_MAX]
    if len(kept) <= WARDS_PER_CELL_MAX:
        return CellAssignment(tuple(kept), MappingProxyType({}))
    cells = min(-(-len(kept) // CELL_PEERS), WARDS_PER_CELL_MAX)
    below = {leader: tuple(kept[cells + index :: cells]) for index, leader in enumerate(kept[:cells])}
    return CellAssignment(tuple(below), MappingProxyType(below))


def assign_within_limits(order: Sequence[PeerId], head: PeerId, share: float, networks: Networks) -> CellAssignment:
    """Assign like `assign_cells`, but with at most this share of every cell, or one member, from one network.

    Surplus wards are left out this time. A `share` of 1 means no limit. The head counts as a member of its own cell.
    """
    while True:
        assigned = assign_cells(order)
        most = len(order) + 1 if share == 1 else most_of(share, assigned.smallest)
        surplus = beyond((head, *order), most, networks)
        if not surplus:
            return assigned
        order = [peer for peer in order if peer not in surplus]


def is_included(
    own: Contributor, leaders: Sequence[PeerId], cells: Sequence[CellYield], above: Sequence[Contributor]
) -> bool:
    """Whether the work `own` is part of the list `above`: in the first cell, whose leader is in the next, and so on.

    Together with the certificate the cells prove it to anybody.
    """
    if not cells or len(leaders) != len(cells) or own not in cells[0].contributors:
        return False
    lists = [*(cell.contributors for cell in cells[1:]), tuple(above)]
    return all(
        any(one.peer == leader and _contributes(one, cell) for one in listed)
        for leader, cell, listed in zip(leaders, cells, lists, strict=True)
    )


def _contributes(one: Contributor, cell: CellYield) -> bool:
    """Whether this entry of a list stands for the merged work of the cell."""
    return one.cell == cell.digest and (one.tokens, one.steps) == total(cell.contributors)
