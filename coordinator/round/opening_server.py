"""Answers to opening requests: a reducer opens its results' inputs, a contributor its own (design §6.2 step 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.actions import Action, Open, Send
from coordinator.core.context import Core
from coordinator.core.events import Opened
from coordinator.group.group import Group
from coordinator.round.exchange import Exchange
from coordinator.wire.openings import OpenNote
from dht.identity import PeerId

ANSWERS_MAX = 4  # answers to one request: messages get lost, but nobody may use us as a file server


@dataclass(slots=True)
class OpeningServer:
    """Openings for every member, for one seed per partition and turn: the first that it names."""

    core: Core
    group: Group
    exchange: Exchange
    answers: dict[tuple[PeerId, int, int, bool], tuple[bytes, int]] = field(default_factory=dict)

    def answer(self, sender: PeerId, note: OpenNote) -> list[Action]:
        """Open the inputs that a member asks for, if we reduced the partition or own the input."""
        members = self._members(sender, note)
        place = (sender, note.partition, note.turn, note.own)
        seed, times = self.answers.get(place, (note.seed, 0))
        if members is None or self.exchange.inputs is None or seed != note.seed or times >= ANSWERS_MAX:
            return []
        self.answers[place] = (seed, times + 1)
        return [
            Open(
                key=self.group.key,
                to=sender,
                partition=note.partition,
                partitions=self.group.partitions,
                turn=note.turn,
                seed=seed,
                voters=len(self.group.voters),
                members=len(self.group.members),
                inputs=self.exchange.inputs.partition(note.partition, members),
            )
        ]

    def _members(self, sender: PeerId, note: OpenNote) -> list[int] | None:
        """Return the members whose inputs to open; None if we did not reduce this result, or have no input."""
        inputs = self.exchange.inputs
        if inputs is None or note.partition >= self.group.partitions:
            return None
        if note.own:
            mine = inputs.index(self.core.me)
            return None if mine is None else [mine]
        held = self.exchange.results.get((note.partition, note.turn))
        if held is None or held.reducer != self.core.me:
            return None
        theirs = inputs.index(sender)
        return [member for member in held.result.included if member != theirs]

    def on_opened(self, event: Opened) -> list[Action]:
        """Send the opened leaves to the member that asked."""
        return [] if event.note is None else [Send(event.to, event.note)]
