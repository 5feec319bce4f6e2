"""What every virtual peer sends, gets and checks, counted while a world runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.actions import Action, Publish, Send
from coordinator.messages import Message
from coordinator.virtual.observer import Observer
from dht.identity import PeerId, Verifier
from dht.statement import Statement

SIZES_KEPT = 4096

if TYPE_CHECKING:
    from coordinator.virtual.peer import VirtualPeer


@dataclass(slots=True)
class Meter(Observer):
    """Per peer: messages, their bytes without payloads, payload shares of a fragment, signatures checked."""

    sent: Counter[PeerId] = field(default_factory=Counter)
    received: Counter[PeerId] = field(default_factory=Counter)
    sent_bytes: Counter[PeerId] = field(default_factory=Counter)
    received_bytes: Counter[PeerId] = field(default_factory=Counter)
    payloads_sent: Counter[PeerId] = field(default_factory=Counter)
    checks: Counter[PeerId] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[str] = field(default_factory=Counter)
    publications: int = 0  # of heads, to the record store
    _sizes: dict[int, tuple[Message, int]] = field(default_factory=dict)  # of messages on their way to many

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count one action."""
        Observer.acts(self, peer, action)
        self.publications += isinstance(action, Publish)
        if not isinstance(action, Send):
            return
        size = self._bytes(action.message)
        kind = action.message.context.kind if isinstance(action.message, Statement) else type(action.message).__name__
        self.kinds[kind] += 1
        self.kind_bytes[kind] += size
        for counter, who, amount in (
            (self.sent, peer.me, 1),
            (self.received, action.to, 1),
            (self.sent_bytes, peer.me, size),
            (self.received_bytes, action.to, size),
        ):
            counter[who] += amount
        if action.payload is not None:
            self.payloads_sent[peer.me] += 1

    def _bytes(self, message: Message) -> int:
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = (message, len(message.to_wire()))
            if len(self._sizes) >= SIZES_KEPT:
                self._sizes.clear()
            self._sizes[id(message)] = known
        return known[1]


@dataclass(slots=True)
class CountingVerifier:
    """Counts for whoever is handling an event at the moment."""

    inner: Verifier
    meter: Meter
    current: PeerId | None = None

    def verify(self, peer_id: PeerId, data: bytes, signature: bytes) -> bool:
        if self.current is not None:
            self.meter.checks[self.current] += 1
        return self.inner.verify(peer_id, data, signature)
