"""What the fuzzer drives: a reader or a handler, and good inputs to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dht.errors import MusterError


@dataclass(frozen=True, slots=True)
class Target:
    """`read` may raise what is ours (MusterError) and nothing else; `prefix_bytes` of a seed are no msgpack."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    prefix_bytes: int = 0

    def try_input(self, data: bytes) -> bool:
        """True if it was accepted, False if it was refused; any other exception is a bug that this lets through."""
        try:
            self.read(data)
        except MusterError:
            return False
        return True
