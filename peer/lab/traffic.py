"""Counts of every peer's traffic in a world, in bytes as real frames would have them, and of void rounds."""

from __future__ import annotations

from collections import Counter

from coordinator.core.actions import Action, RoundVoided, Send
from coordinator.simulator.peer import VirtualPeer
from coordinator.wire.messages import Message
from peer.net.frames import encode_header
from peer.storage.blobs import BlobStore


class LabTraffic:
    """A listener on a world that counts bytes and void rounds."""

    def __init__(self, blobs: BlobStore) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.void_rounds: Counter[str] = Counter()
        self._blobs = blobs
        self._last: tuple[Message, int] | None = None  # a message to many peers comes many times in a row

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count one action of a peer."""
        if isinstance(action, Send):
            payload = None if action.payload is None else self._blobs.get(action.payload)
            size = self._header_bytes(action.message) + len(payload or b"")
            self.sent[peer.me] += size
            self.received[action.to] += size
        elif isinstance(action, RoundVoided):
            self.void_rounds[peer.me] += 1

    def _header_bytes(self, message: Message) -> int:
        if self._last is None or self._last[0] is not message:
            self._last = (message, len(encode_header(message)))
        return self._last[1]
