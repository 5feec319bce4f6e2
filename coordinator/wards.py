"""A head and its wards: they ask, it deals them out to cells (docs/adr/0011)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.actions import Action, RoundKey, Send
from coordinator.cell_group import read_ward
from coordinator.cells import WARDS_MAX, deal
from coordinator.chain import Chain, beacon_order
from coordinator.core import Core
from coordinator.messages import CellRoster, Ward
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

GATHER_SHARE = 0.1  # of a round's deadline: how long a head waits for its wards


def say_ward(core: Core, chain: Chain, head: PeerId) -> Statement:
    """We ask this head to take our work; or we are the head, and name our own part of it."""
    body = Ward(head=head, boot=core.boot, dialable=core.dialable)
    return core.say("ward", RoundKey(chain.fragment, chain.version, b""), chain.digest, body)


@dataclass(slots=True)
class Wards:
    """Of one head at one base. `closes_at`: when it deals them out; None before it gathers, and after."""

    core: Core
    chain: Chain
    gathered: dict[PeerId, Statement] = field(default_factory=dict)
    closes_at: float | None = None

    def gather(self, now: float) -> None:
        """We are due: wait for those who are not yet."""
        self.closes_at = now + GATHER_SHARE * self.core.pace.round_seconds

    def due(self, now: float) -> bool:
        return self.closes_at is not None and now >= self.closes_at

    def add(self, statement: Statement) -> None:
        """Somebody asks us; raises PeerError if that does not count."""
        sender = PeerId(statement.sender)
        read_ward(statement, self.chain, self.core.me)
        if sender in self.core.bans:
            raise PeerError("is banned")
        if len(self.gathered) >= WARDS_MAX:
            return
        if not statement.verify(self.core.verifier):
            raise PeerError("is not signed by its sender")
        self.gathered[sender] = statement

    def deal(self, own: tuple[Statement, ...]) -> list[Action]:
        """The roster of every cell to its leader: of ours, with our `own` part, and of those below; none if alone."""
        self.closes_at = None
        if not self.gathered:
            return []
        dealt = deal(beacon_order(self.chain.beacon(), self.gathered))
        listed = (*own, *(self.gathered[peer] for peer in dealt.own))
        actions: list[Action] = [Send(self.core.me, self._say(self.core.me, dealt.height, listed))]
        for leader, wards in dealt.below.items():
            listed = tuple(self.gathered[peer] for peer in (leader, *wards))
            actions.append(Send(leader, self._say(leader, 1, listed)))
        self.gathered = {}
        return actions

    def _say(self, leader: PeerId, height: int, wards: tuple[Statement, ...]) -> Statement:
        body = CellRoster(leader=leader, height=height, wards=wards)
        return self.core.say("cell", RoundKey(self.chain.fragment, self.chain.version, b""), self.chain.digest, body)
