"""The wards of a head: they ask it to take their work, and it deals them out to cells (docs/adr/0011)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from coordinator.cells.assignment import WARDS_MAX, assign_within_limits
from coordinator.chain.chain import Chain, beacon_order
from coordinator.chain.newcomer_limits import Networks, beyond, most_of
from coordinator.core.actions import Action, RoundKey, Send
from coordinator.core.context import Core
from coordinator.wire.messages import CellRoster, Ward, WardNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

GATHER_SHARE = 0.1  # how long a head waits for its wards, as a share of a round's deadline


def _ward_of(peer: PeerId, note: WardNote) -> Ward:
    return Ward(peer=peer, boot=note.boot, dialable=note.dialable)


@dataclass(slots=True)
class Subordinates:
    """The wards that ask us at one base. `closes_at`: when we assign them to cells; None before and after gathering."""

    core: Core
    chain: Chain
    gathered: dict[PeerId, Ward] = field(default_factory=dict)
    closes_at: float | None = None

    def gather(self, now: float) -> None:
        """Start to wait for wards whose time has not come yet."""
        self.closes_at = now + GATHER_SHARE * self.core.pace.round_seconds

    def due(self, now: float) -> bool:
        return self.closes_at is not None and now >= self.closes_at

    def add(self, sender: PeerId, note: WardNote) -> None:
        """Take a ward's request; raises PeerError if it does not count."""
        if sender in self.core.bans or sender in self.chain.convicted():
            raise PeerError("is banned")
        if len(self.gathered) >= WARDS_MAX or self._is_crowd(sender):
            return
        self.gathered[sender] = _ward_of(sender, note)

    def keep(self, ours: Set[PeerId]) -> None:
        """Forget all wards but ours."""
        self.gathered = {peer: ward for peer, ward in self.gathered.items() if peer in ours}

    def assign(self, own: WardNote) -> list[Action]:
        """Send each cell's leader its roster: our own cell, with us in it, and those below; nothing without wards."""
        self.closes_at = None
        if not self.gathered:
            return []
        order = beacon_order(self.chain.beacon(), self.gathered)
        assigned = assign_within_limits(order, self.core.me, self._share, self._networks(order))
        listed = (_ward_of(self.core.me, own), *(self.gathered[peer] for peer in assigned.own))
        actions: list[Action] = [Send(self.core.me, self._sign_roster(self.core.me, assigned.height, listed))]
        for leader, wards in assigned.below.items():
            listed = tuple(self.gathered[peer] for peer in (leader, *wards))
            actions.append(Send(leader, self._sign_roster(leader, 1, listed)))
        self.gathered = {}
        return actions

    @property
    def _share(self) -> float:
        return self.core.rules.trust.network_share

    def _is_crowd(self, sender: PeerId) -> bool:
        """Whether the sender's network already has its share of our places, so that other networks find room."""
        if self._share == 1:
            return False
        order = (*(peer for peer in self.gathered if peer != sender), sender)
        return sender in beyond(order, most_of(self._share, WARDS_MAX), self._networks(order))

    def _networks(self, wards: Sequence[PeerId]) -> Networks:
        """Return the networks from which the wards call us; not those of founders, whom the organiser chose."""
        founders = self.core.manifest.founder_ids
        own = frozenset(self.core.networks)
        seen = {peer: self.core.networks_of(peer, frozenset()) for peer in wards if peer not in founders}
        return seen if self.core.me in founders else {**seen, self.core.me: own}

    def _sign_roster(self, leader: PeerId, height: int, wards: tuple[Ward, ...]) -> Statement:
        body = CellRoster(leader=leader, height=height, wards=wards)
        return self.core.sign_statement(
            "cell", RoundKey(self.chain.fragment, self.chain.version, b""), self.chain.digest, body
        )
