"""Simulated swarms in which every peer's rounds are traced."""

from __future__ import annotations

from collections import defaultdict

from coordinator.core.actions import Action
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.views.round_traces import RoundTraces
from dht.identity import PeerId


class TracedWorld(World):
    """A world that traces every peer's rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.traces: dict[tuple[PeerId, int], RoundTraces] = {}
        self.actions: dict[PeerId, list[Action]] = defaultdict(list)
        self.listener = lambda peer, action: self.actions[peer.me].append(action)

    def handled(self, peer: VirtualPeer) -> None:
        super().handled(peer)
        self.traces_of(peer).follow(self.actions.pop(peer.me, []), self.clock.now)

    def traces_of(self, peer: VirtualPeer) -> RoundTraces:
        assert peer.engine is not None
        return self.traces.setdefault((peer.me, peer.life), RoundTraces(peer.engine))
