"""Every certificate that any peer was seen to hold, and which of them count in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.views.network_view import CertificateView

CERTIFICATES_KEPT = 1 << 18  # the oldest are forgotten first; what they contradicted is not


@dataclass(frozen=True, slots=True)
class Seen:
    """A certificate, and when it was first seen, in seconds of the run."""

    certificate: CertificateView
    seconds: float


@dataclass(slots=True)
class SeenCertificates:
    """Fed with what peers tell; the sum of all, no matter who dies."""

    by_digest: dict[str, Seen] = field(default_factory=dict)  # in the order in which they came
    _children: dict[tuple[int, str], set[str]] = field(default_factory=dict)  # full ones, by fragment and parent
    conflicts: set[tuple[int, int]] = field(default_factory=set)
    """Fragments and versions with two full certificates for one parent, which must never be (design §6.5, 1a).

    Branches of which one is minor are none: the smaller side comes back (§6.3).
    """

    def see(self, certificates: Iterable[CertificateView], seconds: float) -> None:
        """A peer told of these."""
        for one in certificates:
            if one.digest in self.by_digest:
                continue
            self.by_digest[one.digest] = Seen(one, seconds)
            if not one.minor:
                siblings = self._children.setdefault((one.fragment, one.parent), set())
                siblings.add(one.digest)
                if len(siblings) > 1:
                    self.conflicts.add((one.fragment, one.version))
            if len(self.by_digest) > CERTIFICATES_KEPT:
                oldest = self.by_digest.pop(next(iter(self.by_digest))).certificate
                self._children.pop((oldest.fragment, oldest.parent), None)

    def lineage(self, heads: Mapping[int, tuple[int, str]]) -> list[Seen]:
        """The certificates that lead to these heads (version and digest, by fragment), in the order they were seen.

        What nobody showed is missing, and below such a gap a version counts only if no other branch has one too.
        """
        versions: dict[tuple[int, int], list[Seen]] = {}
        for one in self.by_digest.values():
            versions.setdefault((one.certificate.fragment, one.certificate.version), []).append(one)
        found = []
        for fragment, (newest, head) in heads.items():
            wanted: str | None = head
            for version in range(newest, 0, -1):
                candidates = versions.get((fragment, version), [])
                if wanted is not None:
                    candidates = [one for one in candidates if one.certificate.digest == wanted]
                certain = candidates if len(candidates) == 1 else []
                found += certain
                wanted = certain[0].certificate.parent if certain else None
        return sorted(found, key=lambda one: one.seconds)
