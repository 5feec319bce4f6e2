"""The joint reduction of a group, up to its results: commit, scatter, reduce, return, inspect.

Sans-IO. `Attempt` and `Cell` are two policies on top of it. An attempt's results go to all members, which inspect them
and vote. A cell's results go to its leader only, which inspects them and contributes the merged work to the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from coordinator.chain.chain import Chain
from coordinator.core.actions import Action
from coordinator.core.context import Core
from coordinator.core.events import Encoded, Inspected, Opened, Reduced
from coordinator.core.timeline import Timeline
from coordinator.group.group import Group
from coordinator.round.cell_input import CellInput
from coordinator.round.early_messages import EarlyMessages
from coordinator.round.exchange import Exchange
from coordinator.round.opening_server import OpeningServer
from coordinator.round.refutations import Refutations
from coordinator.round.spot_checks import SpotChecks
from coordinator.wire.messages import NeedNote, PartNote
from coordinator.wire.openings import OpeningNote, OpenNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class JointReduction(ABC):
    """One member's state in one group, except for the use of the results.

    `from_cell` is the merged work of our cell, if we contribute that; None for our own outer gradient. `gone` are
    members that the transport lost, and when, or that were silent in the group before; we do not wait for them.
    """

    core: Core
    chain: Chain
    group: Group
    timeline: Timeline
    from_cell: CellInput | None = None
    left_out: int = 0  # peers that asked in vain, as far as we know (`Exchange`)
    exchange: Exchange = field(init=False)
    early_messages: EarlyMessages = field(init=False)
    opener: OpeningServer = field(init=False)
    refutations: Refutations = field(init=False)
    inspection: SpotChecks = field(init=False)
    gone: dict[PeerId, float] = field(init=False, default_factory=dict)
    heard: set[PeerId] = field(init=False, default_factory=set)  # members that said anything here

    def compose(self, needs_inputs: frozenset[str]) -> None:
        """Make the parts. Statements of the kinds in `needs_inputs` cannot be read without the input set."""
        self.exchange = Exchange(self.core, self.chain, self.group, self.timeline, self.left_out)
        self.early_messages = EarlyMessages(self.exchange, needs_inputs)
        self.opener = OpeningServer(self.core, self.group, self.exchange)
        self.refutations = Refutations(self.core, self.group, self.exchange)
        self.inspection = SpotChecks(self.core, self.group, self.timeline, self.exchange, self.refutations)

    # -- the policy

    @abstractmethod
    def settle(self, now: float) -> list[Action]:
        """Do everything that has become possible."""

    @abstractmethod
    def hear(self, sender: PeerId, statement: Statement, now: float) -> list[Action]:
        """Take a member's statement other than a result; raises PeerError if it is false."""

    def accepts(self, kind: str) -> bool:
        """Whether messages or events of this kind still change anything here."""
        return True

    # -- events

    def contribute(self) -> list[Action]:
        """Ask the shell for our contribution, if we make one."""
        return self.exchange.start(None if self.from_cell is None else self.from_cell.merged)

    def receive(self, sender: PeerId, message: Statement | PartNote, root: bytes | None, now: float) -> list[Action]:
        """Take a statement or part of this group; raises PeerError if it is false or does not belong here."""
        if sender not in self.group.members:
            raise PeerError("comes from somebody outside the group")
        kind = "part" if isinstance(message, PartNote) else message.context.kind
        if not self.accepts(kind) or self.early_messages.holds_back(sender, message, root):
            return []
        progress = self.exchange.progress
        actions = self._take(sender, message, root, now)
        self.heard.add(sender)
        self.gone.pop(sender, None)
        if self.exchange.progress != progress:
            actions += self.early_messages.replay(self.receive, now)
        return actions + self.settle(now)

    def _take(self, sender: PeerId, message: Statement | PartNote, root: bytes | None, now: float) -> list[Action]:
        if isinstance(message, PartNote):
            self.exchange.on_part(sender, message, root)
            return []
        if message.context.kind == "result":
            self.exchange.on_result(message, root)
            return []
        return self.hear(sender, message, now)

    def on_encoded(self, event: Encoded, now: float) -> list[Action]:
        """Take our encoded contribution."""
        claimed = event if self.from_cell is None else self.from_cell.claim(event)
        return self.exchange.on_encoded(claimed) + self.settle(now) if self.accepts("encoded") else []

    def on_reduced(self, event: Reduced, now: float) -> list[Action]:
        return self.exchange.on_reduced(event) + self.settle(now)

    def on_opened(self, event: Opened) -> list[Action]:
        return self.opener.on_opened(event)

    def on_inspected(self, event: Inspected, now: float) -> list[Action]:
        ours = event.accuser == self.core.me
        actions = self.inspection.on_inspected(event, now) if ours else self.refutations.on_inspected(event)
        return actions + self.settle(now)

    def on_opening(self, sender: PeerId, note: OpeningNote, now: float) -> list[Action]:
        """Take the leaves that a member has opened for us."""
        return self.inspection.on_opening(sender, note) + self.settle(now) if self.accepts("opening") else []

    def lose(self, peer: PeerId, now: float) -> list[Action]:
        """Stop waiting for a member that the transport lost."""
        if peer not in self.group.members:
            return []
        self.gone[peer] = now
        self.exchange.lose(peer)
        return self.settle(now)

    def answer(self, sender: PeerId, need: NeedNote | OpenNote) -> list[Action]:
        """Answer a member's request for bytes of this group; openings are for voters only, which inspect results."""
        if isinstance(need, OpenNote):
            return self.opener.answer(sender, need) if sender in self.group.voters else []
        return self.exchange.answer(sender, need) if sender in self.group.members else []
