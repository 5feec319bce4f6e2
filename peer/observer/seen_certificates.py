"""Every certificate that any peer has shown, and which of them count in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.views.network_view import CertificateView

CERTIFICATES_KEPT = 1 << 18  # the oldest are forgotten first; the conflicts that they showed stay


@dataclass(frozen=True, slots=True)
class Seen:
    """A certificate, and when it was first seen, in seconds of the run."""

    certificate: CertificateView
    seconds: float


@dataclass(slots=True)
class SeenCertificates:
    """The union of the certificates that peers have shown, whether or not these peers still live."""

    by_digest: dict[str, Seen] = field(default_factory=dict)  # in the order of arrival
    _children: dict[tuple[int, str], set[str]] = field(default_factory=dict)  # full ones, by fragment and parent
    conflicts: set[tuple[int, int]] = field(default_factory=set)
    """Fragments and versions with two full certificates for one parent, which must never be (design §6.5, 1a).

    A minor certificate makes no conflict: the smaller side of a partition comes back (§6.3).
    """

    def see(self, certificates: Iterable[CertificateView], seconds: float) -> None:
        """Add the certificates that a peer shows."""
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
        """Return the certificates that lead to these heads (version and digest, by fragment), in the order seen.

        Certificates that no peer showed are missing. Below such a gap a version counts only if one branch has it.
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
