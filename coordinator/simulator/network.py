"""A network that delays, loses, repeats and reorders messages and partitions peers, from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.simulator.clock import VirtualClock
from coordinator.wire.messages import Message
from dht.identity import PeerId

ORDERED_SECONDS = 1e-6  # least time between two messages of one link, so that rounding cannot swap them
Deliver = Callable[[PeerId, Message, bytes | None], None]


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Faults of every link. Delays differ from message to message, so messages may overtake each other."""

    delay_min_seconds: float = 0.005
    delay_max_seconds: float = 0.05
    loss: float = 0.0
    duplication: float = 0.0
    ordered: bool = False  # messages between two peers keep their order, as on a stream


@dataclass(slots=True)
class VirtualNetwork:
    """A network between virtual peers. `sides` has each peer's partition; peers of equal sides can talk."""

    clock: VirtualClock
    random: random.Random
    faults: LinkFaults
    inboxes: dict[PeerId, Deliver] = field(default_factory=dict)
    sides: dict[PeerId, int] = field(default_factory=dict)
    blocked: set[tuple[PeerId, PeerId]] = field(default_factory=set)  # (sender, receiver): one direction only
    frozen: bool = False
    filter: Callable[[PeerId, PeerId, Message], bool] | None = None
    lateness_seconds: Callable[[PeerId, Message], float] | None = None  # extra delay of a sender's message
    sent: int = 0
    arrivals: dict[tuple[PeerId, PeerId], float] = field(default_factory=dict)  # last arrival on each ordered link

    def connected(self, one: PeerId, other: PeerId) -> bool:
        """Whether a message of one peer can reach the other at this moment."""
        return (
            not self.frozen and self.sides.get(one, 0) == self.sides.get(other, 0) and (one, other) not in self.blocked
        )

    def heal(self) -> None:
        """Remove all faults but the links' own, so that all peers reach each other again."""
        self.sides.clear()
        self.blocked.clear()
        self.frozen, self.filter = False, None

    def thaw(self) -> None:
        """End a freeze; other faults stay."""
        self.frozen = False

    def delay_seconds(self) -> float:
        """Draw the delay of the next message."""
        faults = self.faults
        return self.random.uniform(faults.delay_min_seconds, faults.delay_max_seconds)

    def send(self, sender: PeerId, to: PeerId, message: Message, payload: bytes | None) -> None:
        """Deliver a message later, perhaps twice, perhaps never."""
        self.sent += 1
        if not self.connected(sender, to) or (self.filter is not None and not self.filter(sender, to, message)):
            return
        if self.faults.loss and self.random.random() < self.faults.loss:
            return
        copies = 2 if self.faults.duplication and self.random.random() < self.faults.duplication else 1
        late_seconds = 0.0 if self.lateness_seconds is None else self.lateness_seconds(sender, message)
        for _ in range(copies):
            delay_seconds = late_seconds + self.delay_seconds()
            if self.faults.ordered:
                delay_seconds = self._in_turn((sender, to), delay_seconds)
            self.clock.after(delay_seconds, lambda: self._arrive(sender, to, message, payload))

    def _in_turn(self, link: tuple[PeerId, PeerId], delay_seconds: float) -> float:
        """Return the delay of a message that must not overtake others on this link."""
        now = self.clock.now
        arrives_at = max(now + delay_seconds, self.arrivals.get(link, now) + ORDERED_SECONDS)
        self.arrivals[link] = arrives_at
        return arrives_at - now

    def _arrive(self, sender: PeerId, to: PeerId, message: Message, payload: bytes | None) -> None:
        inbox = self.inboxes.get(to)
        if inbox is not None and self.connected(sender, to):
            inbox(sender, message, payload)
