"""The banned keys that one peer knows, with the evidence for each (design §9): of a fault, or of an order.

Bans are held for good, on disk, too (`KeepEvidence`). They are local: they decide which peers we list, wait for and let
join. What all members of a fragment must agree on follows from its chain alone (`Chain.convicted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from coordinator.chain.certificate import CONVICTIONS_MAX, Conviction
from coordinator.trust.evidence import Evidence, Guilt
from coordinator.trust.orders import Orders
from dht.identity import PeerId

BANS_MAX = 256
BANS_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Ban:
    """One convicted key."""

    guilt: Guilt
    evidence: Evidence
    unix_seconds: float  # when we learnt of it

    @property
    def conviction(self) -> Conviction:
        return Conviction(peer=self.guilt.peer, evidence=self.evidence.digest)


@dataclass(slots=True)
class Bans:
    """One piece of evidence for each key, oldest first. Bounded: strangers' keys make room for known ones.

    Orders and faults have separate room.
    """

    held: dict[PeerId, Ban] = field(default_factory=dict)
    kept_bytes: int = 0
    orders: Orders = field(default_factory=Orders)
    given: dict[tuple[PeerId, PeerId], Ban] = field(default_factory=dict)  # the evidence for `orders.latest`
    revision: int = 0  # grows with every change that others may have to be told of

    def __contains__(self, peer: object) -> bool:
        return peer in self.held

    def add(self, ban: Ban, known: Collection[PeerId]) -> bool:
        """Keep verified evidence about a key that has none yet; False if there is no room even without strangers.

        `known` are the keys of the active sets. Strangers are dropped first: keys that convict themselves cost nothing.
        """
        size = len(ban.evidence.to_wire())
        faults = [peer for peer, held in self.held.items() if held.guilt.issued is None]
        strangers = [peer for peer in faults if peer not in known] if ban.guilt.peer in known else []
        count = len(faults)
        while count >= BANS_MAX or self.kept_bytes + size > BANS_BYTES_MAX:
            if not strangers:
                return False
            self.kept_bytes -= len(self.held.pop(strangers.pop(0)).evidence.to_wire())
            count -= 1
        self.held[ban.guilt.peer] = ban
        self.kept_bytes += size
        self.revision += 1
        return True

    def obey(self, given: Ban) -> frozenset[PeerId] | None:
        """Take up a verified order; returns the keys that it bans or lets in again, None if it is not new.

        A key that was convicted of a fault stays convicted, whatever is ordered.
        """
        issued = given.guilt.issued
        changed = frozenset() if issued is None else self.orders.add(issued)
        if issued is None or not changed:
            return None
        self.given.pop((issued.issuer, issued.subject), None)  # the newest is last
        self.given[issued.issuer, issued.subject] = given
        if len(self.given) > len(self.orders):
            self.given = {place: ban for place, ban in self.given.items() if self.orders.get(*place) is not None}
        self.revision += 1
        return frozenset(peer for peer in changed if self._settle(peer))

    def _settle(self, peer: PeerId) -> bool:
        """Make `held` agree with the orders about a key; returns whether that bans it or readmits it."""
        held, verdict = self.held.get(peer), self.orders.verdict(peer)
        if held is not None and held.guilt.issued is None:
            return False
        if verdict is None or not verdict.order.revoked:
            return self.held.pop(peer, None) is not None
        self.held[peer] = self.given[verdict.issuer, peer]
        return held is None

    def order_about(self, peer: PeerId) -> Ban | None:
        """Return the order that holds about a key, with its evidence; None if there is none."""
        verdict = self.orders.verdict(peer)
        return None if verdict is None else self.given[verdict.issuer, peer]

    def everything(self) -> list[Ban]:
        """Return all that others may lack: proofs of faults, and then orders, each oldest first."""
        return [*(ban for ban in self.held.values() if ban.guilt.issued is None), *self.given.values()]

    def evidence(self, digest: bytes) -> Evidence | None:
        """Return the evidence with this digest, if we keep it."""
        return next((ban.evidence for ban in self.everything() if ban.evidence.digest == digest), None)

    def lacks(self, conviction: Conviction) -> bool:
        """Whether another peer's evidence may be news: one proof of a fault is enough, but orders follow orders."""
        held = self.held.get(PeerId(conviction.peer))
        if held is not None and held.guilt.issued is None:
            return False
        return self.evidence(conviction.evidence) is None

    def among(self, peers: Iterable[PeerId]) -> tuple[Conviction, ...]:
        """Return the convictions of these peers, in order, as rosters and certificates list them."""
        listed = sorted(peer for peer in peers if peer in self.held)
        return tuple(self.held[peer].conviction for peer in listed[:CONVICTIONS_MAX])

    def to_tell(self, known: Collection[PeerId]) -> list[Conviction]:
        """Return the convictions and orders to tell others of: first about keys in active sets, then the newest."""
        newest_first = self.everything()[::-1]
        return [ban.conviction for ban in sorted(newest_first, key=lambda ban: ban.guilt.peer not in known)]
