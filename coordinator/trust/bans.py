"""Keys that lost their place, and the evidence for it, at one peer (design §9).

Held for good, on disk, too (`KeepEvidence`). Local: it decides whom we list, wait for and let join. What all members of
a fragment must agree on follows from its chain alone (`Chain.convicted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from coordinator.chain.certificate import CONVICTIONS_MAX, Conviction
from coordinator.trust.evidence import Evidence, Guilt
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
    """One piece of evidence for each key, oldest first. Bounded: strangers' keys make room for those that matter."""

    held: dict[PeerId, Ban] = field(default_factory=dict)
    kept_bytes: int = 0

    def __contains__(self, peer: object) -> bool:
        return peer in self.held

    def add(self, ban: Ban, known: Collection[PeerId]) -> bool:
        """Keep verified evidence about a key that has none yet; False if there is no room even without strangers.

        `known` are the keys of the active sets: making keys that convict themselves costs nothing.
        """
        size = len(ban.evidence.to_wire())
        strangers = (peer for peer in list(self.held) if peer not in known)
        while len(self.held) >= BANS_MAX or self.kept_bytes + size > BANS_BYTES_MAX:
            stranger = next(strangers, None) if ban.guilt.peer in known else None
            if stranger is None:
                return False
            self.kept_bytes -= len(self.held.pop(stranger).evidence.to_wire())
        self.held[ban.guilt.peer] = ban
        self.kept_bytes += size
        return True

    def evidence(self, digest: bytes) -> Evidence | None:
        """The evidence of this digest, if it is the one that we keep."""
        return next((ban.evidence for ban in self.held.values() if ban.evidence.digest == digest), None)

    def among(self, peers: Iterable[PeerId]) -> tuple[Conviction, ...]:
        """Convictions of these peers, in order, as rosters and certificates list them."""
        listed = sorted(peer for peer in peers if peer in self.held)
        return tuple(self.held[peer].conviction for peer in listed[:CONVICTIONS_MAX])

    def newest(self, known: Collection[PeerId]) -> tuple[Conviction, ...]:
        """Convictions to tell others of: first those in active sets, then the newest."""
        ages = {peer: age for age, peer in enumerate(reversed(self.held))}
        ordered = sorted(ages, key=lambda peer: (peer not in known, ages[peer]))
        return tuple(self.held[peer].conviction for peer in ordered[:CONVICTIONS_MAX])
