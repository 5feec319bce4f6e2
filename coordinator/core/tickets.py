"""Who asks into a group where more peers are there than a group takes (design §10, docs/adr/0042). Pure functions.

Seven eighths of a full roster are members of the newest one, as far as these join: so more than `min_share` of the
active set is in it, and the set stays small. For the other seats the rest of the active set asks, and of all others
whom a public draw names, so that a leader is not asked by the whole swarm and everybody's turn comes. In a swarm that
fits into one group everybody asks.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from dht.identity import PeerId
from dht.statement import digest_of

NEW_SEATS = PEERS_PER_GROUP_MAX // 8  # of a full roster, for peers outside the newest one
TICKETS = 4 * NEW_SEATS  # drawn per version, on average: some of those drawn are gone, behind or busy
DRAW_BYTES = 8


def is_full(roster: Set[PeerId]) -> bool:
    """Whether all seats of a roster are taken that its members keep."""
    return len(roster) >= PEERS_PER_GROUP_MAX - NEW_SEATS


def has_ticket(beacon: bytes, peer: PeerId, known: Set[PeerId], population: float) -> bool:
    """Whether this peer asks for a seat in the next version; `population`: how many could.

    Those `known` ask in any case: nobody may be kept out by keys that only say to be there.
    """
    if population <= PEERS_PER_GROUP_MAX or peer in known:
        return True
    draw = int.from_bytes(digest_of(b"muster-ticket", beacon, peer.encode())[:DRAW_BYTES], "big")
    return draw * (population - len(known)) < TICKETS * 2.0 ** (8 * DRAW_BYTES)


def seated(order: Sequence[PeerId], newest: Set[PeerId]) -> tuple[PeerId, ...]:
    """Who of the joined, given in beacon order, gets a seat; in the same order."""
    if len(order) <= PEERS_PER_GROUP_MAX:
        return tuple(order)
    staying = [peer for peer in order if peer in newest][: PEERS_PER_GROUP_MAX - NEW_SEATS]
    others = [peer for peer in order if peer not in staying][: PEERS_PER_GROUP_MAX - len(staying)]
    chosen = {*staying, *others}
    return tuple(peer for peer in order if peer in chosen)
