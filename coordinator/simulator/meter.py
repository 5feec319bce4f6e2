"""Counts of messages, bytes and signature checks of every virtual peer while a world runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.core.actions import Action, Adopt, Encode, Included, Send
from coordinator.simulator.observer import EventCounter
from coordinator.wire.messages import Message, PartNote
from dht.identity import PeerId, Verifier
from dht.statement import Statement

SIZES_KEPT = 4096

if TYPE_CHECKING:
    from coordinator.simulator.peer import VirtualPeer


@dataclass(slots=True)
class Meter(EventCounter):
    """Per peer: messages, their bytes without payloads, fragments as payloads, signatures checked."""

    sent: Counter[PeerId] = field(default_factory=Counter)
    received: Counter[PeerId] = field(default_factory=Counter)
    sent_bytes: Counter[PeerId] = field(default_factory=Counter)
    received_bytes: Counter[PeerId] = field(default_factory=Counter)
    fragments_sent: dict[PeerId, float] = field(default_factory=lambda: defaultdict(float))
    fragments_received: dict[PeerId, float] = field(default_factory=lambda: defaultdict(float))
    worked: Counter[int] = field(default_factory=Counter)  # by version: peers that know their work is in it
    checks: Counter[PeerId] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[str] = field(default_factory=Counter)
    received_kinds: Counter[tuple[PeerId, str]] = field(default_factory=Counter)  # bytes by receiver and kind
    _shares: dict[bytes, float] = field(default_factory=dict)  # share of a fragment per payload, by roster or input set
    _sizes: dict[int, tuple[Message, int]] = field(default_factory=dict)  # sizes of messages that go to many peers

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count one action."""
        EventCounter.acts(self, peer, action)
        if isinstance(action, Encode):
            self._shares[action.key.roster_id] = 1 / action.partitions
        elif isinstance(action, Adopt):
            self.worked[action.certificate.version] += isinstance(action.ours, Included) and any(action.ours.counted)
        if not isinstance(action, Send):
            return
        size = self._bytes(action.message)
        kind = action.message.context.kind if isinstance(action.message, Statement) else type(action.message).__name__
        if kind == "bundle" and isinstance(action.message, Statement):
            self._shares[action.message.digest] = self._shares.get(action.message.context.group, 0.0)
        self.kinds[kind] += 1
        self.kind_bytes[kind] += size
        self.received_kinds[action.to, kind] += size
        for counter, who, amount in (
            (self.sent, peer.me, 1),
            (self.received, action.to, 1),
            (self.sent_bytes, peer.me, size),
            (self.received_bytes, action.to, size),
        ):
            counter[who] += amount
        if action.payload is not None:
            share = self._share(action.message)
            self.fragments_sent[peer.me] += share
            self.fragments_received[action.to] += share

    def busiest(self) -> dict[str, int]:
        """Return the bytes by kind, largest first, of the peer that receives the most."""
        who = max(self.received_bytes, key=lambda peer: self.received_bytes[peer], default=None)
        kinds = Counter({kind: size for (peer, kind), size in self.received_kinds.items() if peer == who})
        return dict(kinds.most_common())

    def _share(self, message: Message) -> float:
        """Return the share of a fragment in a message's payload: one partition of its group or cell."""
        if isinstance(message, PartNote):
            return self._shares[message.group]
        assert isinstance(message, Statement)  # a result, which names the input set and so the bundle
        return self._shares[message.context.group]

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
    """A verifier that counts checks for the `current` peer, which handles an event at the moment."""

    inner: Verifier
    meter: Meter
    current: PeerId | None = None

    def verify(self, peer_id: PeerId, data: bytes, signature: bytes) -> bool:
        if self.current is not None:
            self.meter.checks[self.current] += 1
        return self.inner.verify(peer_id, data, signature)
