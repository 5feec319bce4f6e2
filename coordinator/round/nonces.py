"""The nonces of one member in one group: committed to before any result exists, shown one by one in its checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.round.outcome import nonce_hash


@dataclass(slots=True)
class Nonces:
    """One for the check before a redo, one for that after it. What a member draws follows from both."""

    by_phase: tuple[bytes, bytes]
    shown: set[int] = field(default_factory=set)

    @property
    def hashes(self) -> tuple[bytes, bytes]:
        """What a commitment holds of them."""
        before, after = self.by_phase
        return nonce_hash(before), nonce_hash(after)

    def show(self, phase: int) -> bytes:
        """What a check of this phase reveals for the coin."""
        self.shown.add(phase)
        return self.by_phase[phase]

    @property
    def joined(self) -> bytes:
        """What leaves are drawn by: one of them may be in a check by the time a result comes."""
        return b"".join(self.by_phase)

    @property
    def all_shown(self) -> bool:
        """Whether anybody may know by now what this member draws."""
        return len(self.shown) == len(self.by_phase)
