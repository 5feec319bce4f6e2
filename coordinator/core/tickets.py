"""Tickets: which peers ask for a seat when more peers train than fit into a group (design §10, docs/adr/0042). Pure.

Seven eighths of a full roster are members of the newest one, as far as these join. So it holds more than `min_share`
of the active set, and the set stays small. For the other seats the rest of the active set asks, and the peers
that a public draw names. So a leader is not asked by the whole swarm, and every peer gets its turn. In a swarm that
fits into one group every peer asks.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from dht.identity import PeerId
from dht.statement import digest_of

NEW_SEATS = PEERS_PER_GROUP_MAX // 8  # seats of a full roster for peers outside the newest one
TICKETS = 4 * NEW_SEATS  # drawn per version, on average: some of those drawn are gone, behind or busy
DRAW_BYTES = 8


def is_full(roster: Set[PeerId]) -> bool:
    """Whether a roster fills all seats that its members keep in the next one."""
    return len(roster) >= PEERS_PER_GROUP_MAX - NEW_SEATS


def has_ticket(beacon: bytes, peer: PeerId, known: Set[PeerId], population: float) -> bool:
    """Whether this peer asks for a seat in the next version; `population` is the number of peers that could ask.

    The `known` peers always ask: keys that merely claim to be live cannot keep them out.
    """
    if population <= PEERS_PER_GROUP_MAX or peer in known:
        return True
    draw = int.from_bytes(digest_of(b"muster-ticket", beacon, peer.encode())[:DRAW_BYTES], "big")
    return draw * (population - len(known)) < TICKETS * 2.0 ** (8 * DRAW_BYTES)


def seated(order: Sequence[PeerId], newest: Set[PeerId]) -> tuple[PeerId, ...]:
    """Return the peers of `order`, the joined peers in beacon order, that get a seat; in the same order."""
    if len(order) <= PEERS_PER_GROUP_MAX:
        return tuple(order)
    staying = [peer for peer in order if peer in newest][: PEERS_PER_GROUP_MAX - NEW_SEATS]
    others = [peer for peer in order if peer not in staying][: PEERS_PER_GROUP_MAX - len(staying)]
    chosen = {*staying, *others}
    return tuple(peer for peer in order if peer in chosen)
