"""Messages that come too early in a group or a cell: kept within limits, and read once they can be judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.core.actions import Action
from coordinator.round.exchange import Exchange
from coordinator.wire.messages import PartNote, Result
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

EARLY_MESSAGES_MAX = 256
EARLY_OF_ONE_MAX = 32  # per sender, so that none fills the room of all: several times what an honest peer sends
EARLY_BYTES_OF_ONE_MAX = 2 << 20  # per sender, likewise

Receive = Callable[[PeerId, Statement | PartNote, bytes | None, float], list[Action]]


@dataclass(slots=True)
class EarlyMessages:
    """Early messages of one group or cell.

    Statements of `kinds` wait for the input set, without which we cannot read them. Parts and results of a second turn
    wait until we know of that turn.
    """

    exchange: Exchange
    kinds: frozenset[str]
    kept: list[tuple[PeerId, Statement | PartNote, bytes | None]] = field(default_factory=list)
    closed: bool = False

    def __len__(self) -> int:
        return len(self.kept)

    def holds_back(self, sender: PeerId, message: Statement | PartNote, root: bytes | None) -> bool:
        """Return whether this message has to wait; keep it if there is room."""
        waits = self._is_early(message)
        if waits and not self.closed and len(self.kept) < EARLY_MESSAGES_MAX and self._has_room(sender, message):
            self.kept.append((sender, message, root))
        return waits

    def _has_room(self, sender: PeerId, message: Statement | PartNote) -> bool:
        sizes = [_body_bytes(kept) for by, kept, _ in self.kept if by == sender]
        return len(sizes) < EARLY_OF_ONE_MAX and sum(sizes) + _body_bytes(message) <= EARLY_BYTES_OF_ONE_MAX

    def close(self) -> None:
        """Drop all waiting messages and keep no more, as their turn will never come."""
        self.kept, self.closed = [], True

    def _is_early(self, message: Statement | PartNote) -> bool:
        exchange = self.exchange
        if isinstance(message, PartNote):
            return exchange.inputs is None or (message.turn == 1 and not exchange.redone)
        if exchange.inputs is None or message.context.kind != "result":
            return message.context.kind in self.kinds and exchange.inputs is None
        return not exchange.redone and not exchange.awaits(message, message.read(Result))

    def replay(self, receive: Receive, now: float) -> list[Action]:
        """Deliver the kept messages again; a message that is still too early is kept once more."""
        actions: list[Action] = []
        kept, self.kept = self.kept, []
        for sender, message, root in kept:
            try:
                actions += receive(sender, message, root, now)
            except PeerError:
                continue  # false or out of place; it would have been refused on arrival, too
        return actions


def _body_bytes(message: Statement | PartNote) -> int:
    return len(message.body) if isinstance(message, Statement) else 0
