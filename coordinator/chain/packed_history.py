"""The certificates that a chain keeps: the newest ones decoded, older ones as their encoded bytes.

A decoded certificate takes seven times its encoded bytes, and a peer keeps a thousand of every fragment for peers that
were away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from coordinator.chain.certificate import Certificate

OPEN_MAX = 16  # the newest, kept decoded: rounds look at these; waypoints and lineages rarely look further


class PackedHistory(Sequence[Certificate]):
    """A sequence of certificates, oldest first, to which newer ones are added and from which the oldest are dropped."""

    __slots__ = ("_digests", "_open", "_packed")

    def __init__(self, certificates: Iterable[Certificate] = ()) -> None:
        self._digests: list[bytes] = []
        self._packed: list[bytes] = []
        self._open: list[Certificate] = []
        for one in certificates:
            self.append(one)

    def __len__(self) -> int:
        return len(self._digests)

    @overload
    def __getitem__(self, index: int) -> Certificate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Certificate]: ...
    def __getitem__(self, index: int | slice) -> Certificate | list[Certificate]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        packed = len(self._packed)
        return Certificate.from_wire(self._packed[place]) if place < packed else self._open[place - packed]

    @property
    def digests(self) -> Sequence[bytes]:
        """All digests in order; no certificate is decoded for it."""
        return self._digests

    def append(self, certificate: Certificate) -> None:
        """Add the newest certificate."""
        self._digests.append(certificate.digest)
        self._open.append(certificate)
        if len(self._open) > OPEN_MAX:
            self._packed.append(self._open.pop(0).to_wire())

    def keep(self, count: int) -> None:
        """Drop all but the newest `count` certificates."""
        surplus = max(0, len(self) - count)
        packed = min(surplus, len(self._packed))
        del self._digests[:surplus], self._packed[:packed], self._open[: surplus - packed]

    def copy(self) -> PackedHistory:
        """Return a copy that does not change when this one grows."""
        return self.first(len(self))

    def first(self, count: int) -> PackedHistory:
        """Return a copy of the oldest `count` certificates; both share the encoded ones."""
        packed = min(count, len(self._packed))
        found = PackedHistory()
        found._digests, found._packed = self._digests[:count], self._packed[:packed]
        found._open = self._open[: count - packed]
        return found
