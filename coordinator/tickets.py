"""Who asks into a group where more peers are there than a group takes (design §10). Pure functions.

Seven eighths of a full roster are members of the newest one, as far as these join: so more than `min_share` of the
active set is in it, and the set stays small. The other seats go by a public draw, so that a leader is not asked by the
whole swarm and everybody's turn comes. In a swarm that fits into one group everybody asks.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from coordinator.manifest import PEERS_PER_GROUP_MAX
from dht.identity import PeerId
from dht.statement import digest_of

NEW_SEATS = PEERS_PER_GROUP_MAX // 8  # of a full roster, for peers outside the newest one
TICKETS = 4 * NEW_SEATS  # drawn per version, on average: some of those drawn are gone, behind or busy
DRAW_BYTES = 8


def has_ticket(beacon: bytes, peer: PeerId, newest: Set[PeerId], population: float) -> bool:
    """Whether this peer asks for a seat in the next version; `population`: how many could."""
    if population <= PEERS_PER_GROUP_MAX or peer in newest:
        return True
    draw = int.from_bytes(digest_of(b"muster-ticket", beacon, peer.encode())[:DRAW_BYTES], "big")
    return draw * population < TICKETS * 2.0 ** (8 * DRAW_BYTES)


def seated(order: Sequence[PeerId], newest: Set[PeerId]) -> tuple[PeerId, ...]:
    """Who of the joined, given in beacon order, gets a seat; in the same order."""
    if len(order) <= PEERS_PER_GROUP_MAX:
        return tuple(order)
    staying = [peer for peer in order if peer in newest][: PEERS_PER_GROUP_MAX - NEW_SEATS]
    others = [peer for peer in order if peer not in staying][: PEERS_PER_GROUP_MAX - len(staying)]
    chosen = {*staying, *others}
    return tuple(peer for peer in order if peer in chosen)
