"""The nonces of one member in one group: committed before any result exists, revealed one by one in its checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.round.outcome import nonce_hash


@dataclass(slots=True)
class Nonces:
    """Two nonces: one for the check before a redo, one for the check after it. A member draws leaves by both."""

    by_phase: tuple[bytes, bytes]
    shown: set[int] = field(default_factory=set)

    @property
    def hashes(self) -> tuple[bytes, bytes]:
        """Hashes of the nonces, for the commitment."""
        before, after = self.by_phase
        return nonce_hash(before), nonce_hash(after)

    def show(self, phase: int) -> bytes:
        """Return the nonce that a check of this phase reveals for the coin."""
        self.shown.add(phase)
        return self.by_phase[phase]

    @property
    def joined(self) -> bytes:
        """The seed for drawing leaves, from both nonces: one of them may be public by the time a result comes."""
        return b"".join(self.by_phase)

    @property
    def all_shown(self) -> bool:
        """Whether both nonces are public, so that any peer may know which leaves this member draws."""
        return len(self.shown) == len(self.by_phase)
