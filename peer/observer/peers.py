"""The peers that an observer knows, from their signed presence records and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from coordinator.views.network_view import PEER_HISTORY_MAX, PeerPoint, PeerView
from coordinator.wire.presence import PEERS_KNOWN_MAX, Presence
from dht.identity import PeerId
from peer.machine.text import plain
from peer.observer.history import COUNT_MAX, LOSS_MAX, ThinnedSeries
from peer.rounds.public_status import PublicStatus

POINT_SECONDS = 5.0
POINTS_SHOWN_MAX = 20_000  # over all peers
POINTS_SHOWN_MIN = 12

Role = Literal["host", "learner", "unknown"]


@dataclass(frozen=True, slots=True)
class HeardPresence:
    """A presence record read from the record store."""

    peer: PeerId
    presence: Presence
    issued_unix_seconds: float  # by the peer's clock


@dataclass(slots=True)
class KnownPeer:
    """One known peer. Times are those of the observer's event loop."""

    presence: Presence
    seen_at: float
    issued_unix_seconds: float
    live: bool = True  # at the last `notice`
    steps_per_second: float = 0.0  # its rate when it last trained
    role: Role = "unknown"
    status: PublicStatus | None = None
    asked_at: float = float("-inf")
    asked: bool = False  # whether an answer is still due
    history: ThinnedSeries[PeerPoint] = field(default_factory=lambda: ThinnedSeries(PEER_HISTORY_MAX, POINT_SECONDS))

    def hear(self, presence: Presence, at: float) -> None:
        """Take over a newer presence."""
        self.presence, self.seen_at = presence, at
        if presence.steps_per_second > 0:
            self.steps_per_second = presence.steps_per_second
        if presence.state == "hosting":
            self.role = "host"
        elif presence.steps or presence.state != "draining":
            self.role = "learner"

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(bounded(version) for version in self.presence.versions)

    @property
    def loss(self) -> float | None:
        return None if self.presence.loss is None else min(self.presence.loss, LOSS_MAX)

    def point(self, unix_seconds: float) -> PeerPoint:
        """Return the peer's point in its history for this time."""
        return PeerPoint(
            unix_seconds=unix_seconds,
            live=self.live,
            steps=bounded(self.presence.steps),
            steps_per_second=self.presence.steps_per_second if self.live else 0.0,
            loss=self.loss,
            versions=bounded(sum(self.versions)),
        )

    def view(self, peer_id: PeerId, heads: Sequence[int], points: int) -> PeerView:
        """Return the peer as people see it, without what the observer adds: credit, last seen, its work in a round."""
        said = self.presence
        told = said.bytes_sent or said.bytes_received
        return PeerView(
            peer_id=peer_id,
            name=plain(said.name),
            role=self.role,
            state=said.state,
            note=plain(self.status.note) if self.status is not None else "",
            device=plain(said.device),
            software=plain(said.software),
            steps=bounded(said.steps),
            steps_per_second=said.steps_per_second,
            tokens=bounded(said.tokens),
            loss=self.loss,
            versions=self.versions,
            versions_behind=sum(max(0, head - own) for head, own in zip(heads, self.versions, strict=False)),
            addresses=tuple(plain(address) for address in said.addresses),
            dialable=said.dialable,
            live=self.live,
            bytes_sent=bounded(said.bytes_sent) if told else None,
            bytes_received=bounded(said.bytes_received) if told else None,
            history=tuple(self.history.items[-points:]),
        )


class KnownPeers:
    """At most `PEERS_KNOWN_MAX` peers; a new one replaces the peer gone longest."""

    def __init__(self, lifetime_seconds: float) -> None:
        self._lifetime_seconds = lifetime_seconds
        self.peers: dict[PeerId, KnownPeer] = {}

    def see(self, heard: HeardPresence, now: float, unix_seconds: float) -> bool:
        """Note a record; False if it is not newer than the known one, or there is no room.

        A peer's first record counts from the date in it, later ones from when they were read here.
        """
        known, issued = self.peers.get(heard.peer), heard.issued_unix_seconds
        if known is None:
            if len(self.peers) >= PEERS_KNOWN_MAX and not self._make_room():
                return False
            now -= max(0.0, unix_seconds - issued)
            known = self.peers[heard.peer] = KnownPeer(heard.presence, now, issued, live=False)
        elif issued <= known.issued_unix_seconds and heard.presence.boot == known.presence.boot:
            return False
        known.issued_unix_seconds = issued
        known.hear(heard.presence, now)
        return True

    def notice(self, now: float) -> list[tuple[PeerId, bool]]:
        """Return the peers that have come (True) or gone (False) since the last call."""
        changed = []
        for peer, known in self.peers.items():
            live = now - known.seen_at <= self._lifetime_seconds
            if live != known.live:
                known.live = live
                changed.append((peer, live))
        return changed

    def live(self) -> list[PeerId]:
        """Return the peers that were live at the last `notice`."""
        return [peer for peer, known in self.peers.items() if known.live]

    def views(self, heads: Sequence[int]) -> dict[PeerId, PeerView]:
        """Return the views of all peers; the more there are, the shorter their histories."""
        points = max(POINTS_SHOWN_MIN, POINTS_SHOWN_MAX // max(1, len(self.peers)))
        return {peer: known.view(peer, heads, points) for peer, known in sorted(self.peers.items())}

    def _make_room(self) -> bool:
        gone = [peer for peer, known in self.peers.items() if not known.live]
        if not gone:
            return False
        del self.peers[min(gone, key=lambda peer: self.peers[peer].seen_at)]
        return True


def bounded(count: int) -> int:
    """Clamp a peer's count to 0 … COUNT_MAX."""
    return min(max(count, 0), COUNT_MAX)
