"""Crowds in which one or two dozen peers are a large swarm, as groups have 8 members instead of 32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from coordinator.cells import assignment
from coordinator.chain.certificate import Certificate, Contributor
from coordinator.core import context as core
from coordinator.core import tickets
from coordinator.core.actions import Action, Encode, Send, Tell
from coordinator.core.events import PeerGone
from coordinator.engine import gossip
from coordinator.round.cell_input import total
from coordinator.run.manifest import PaceSpec
from coordinator.simulator import scale
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.scale import ScaleRun
from coordinator.trust.statement_slots import slot_of
from coordinator.wire.messages import AgainNote
from dht.identity import PeerId
from dht.statement import Statement

GROUP = 8
PEERS = 22
PACE = PaceSpec(
    fragments=1,
    steps_per_version=12,
    overlap=1,
    presence_seconds=5.0,
    presence_lifetime_seconds=15.0,
    round_seconds=20.0,
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assignment, core, scale, tickets):
        monkeypatch.setattr(module, "PEERS_PER_GROUP_MAX", GROUP)
    for module in (assignment, tickets):
        monkeypatch.setattr(module, "NEW_SEATS", 1)
    monkeypatch.setattr(tickets, "TICKETS", 2)
    monkeypatch.setattr(gossip, "TOLD_BY_LEADER_MAX", 2 * GROUP)


@contextmanager
def two_tiers() -> Iterator[None]:
    """Make heads deal out wards to cells below them from three wards on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "WARDS_PER_CELL_MAX", 2)
        patch.setattr(assignment, "CELL_PEERS", 3)
        yield


@dataclass(slots=True, repr=False)
class Scene(ScaleRun):
    """A crowd in which a peer dies at `trap`; `yields` has each leader's contributed work, by version and peer."""

    trap: Callable[[VirtualPeer, Action], bool] | None = None
    dead: list[PeerId] = field(default_factory=list)
    yields: dict[tuple[int, PeerId], list[tuple[Contributor, ...]]] = field(default_factory=dict)
    again: int = 0
    liars: set[PeerId] = field(default_factory=set)  # peers that signed something false
    banned: set[PeerId] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)  # certified versions whose states nobody has
    _said: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        if self.trap is not None and self.trap(peer, action):
            self.trap = None
            self.dead.append(peer.me)
            peer.crash()
            for other in self.peers:
                self.clock.after(self.random.uniform(0.1, 0.5), partial(other.handle, PeerGone(peer.me)))
            return
        ScaleRun.acts(self, peer, action)
        self._no_contradiction(peer, action)
        assert peer.engine is not None
        if isinstance(action, Encode) and action.merged is not None:
            led = peer.engine.machines[0].cells.leading
            assert led is not None
            assert led.cell_input is not None
            self.yields.setdefault((action.key.version + 1, peer.me), []).append(led.cell_input.cell.contributors)
        if isinstance(action, Tell) and action.event == "peer_banned":
            self.banned.add(PeerId(str(action.details["peer"])))
        self.again += isinstance(action, Send) and isinstance(action.message, AgainNote)

    def _no_contradiction(self, peer: VirtualPeer, action: Action) -> None:
        """Check that a peer never contradicts itself, across restarts and repeated stays at a base."""
        message = action.message if isinstance(action, Send) else None
        place = slot_of(message) if isinstance(message, Statement) and message.sender == peer.me else None
        if place is not None and isinstance(message, Statement):
            assert self._said.setdefault(place, message.digest) == message.digest, f"two in {place[1]}"

    def until(self, versions: int) -> list[Certificate]:
        """Certify `versions` versions, then let all peers finish; return their certificates in order."""
        for peer in self.peers:
            self.clock.after(self.random.uniform(0, 1), peer.start)
        while len(self.meter.certified) < versions + len(self.lost) or self._line()[-1].version < versions:
            if not self.clock.step(versions * 60.0):
                break
        for peer in self.peers:
            if peer.engine is not None:
                peer.engine.drain()
        end = self.clock.now + 60.0
        while self.clock.step(end):
            pass
        found = self._line()
        assert len(found) >= versions
        self._no_fork(found)
        assert not any(one.outcome.minor for one in found)
        assert self.banned <= self.liars
        return found

    def _line(self) -> list[Certificate]:
        """Return the chain of versions up to the newest, in order."""
        kept = {digest: one for digest, one in self.meter.certified.items() if digest not in self.lost}
        newest = max(kept.values(), key=lambda one: one.version)
        line = [newest]
        while (before := kept.get(line[0].outcome.parent)) is not None:
            line.insert(0, before)
        return line

    def _no_fork(self, line: list[Certificate]) -> None:
        """Check that versions beside the line are minor ones, made by peers that waited in vain for a lost version."""
        aside = self.meter.certified.keys() - self.lost - {one.digest for one in line}
        for digest in aside:
            one = self.meter.certified[digest]
            assert self.lost
            assert one.outcome.minor or one.outcome.parent in aside

    def workers(self, certificate: Certificate) -> dict[PeerId, int]:
        """Return the steps of each peer in a version, through all cells."""
        steps: dict[PeerId, int] = {}

        def add(one: Contributor, leader: str) -> None:
            brought = [] if one.peer == leader else self.yields.get((certificate.version, PeerId(one.peer)), [])
            whole = [cell for cell in brought if total(cell) == (one.tokens, one.steps)]
            for inner in whole[0] if whole else ():
                add(inner, one.peer)
            if not whole:
                steps[PeerId(one.peer)] = steps.get(PeerId(one.peer), 0) + one.steps

        for one in certificate.outcome.included():
            add(one, "")
        return steps

    def check_work(self, certificates: list[Certificate]) -> None:
        """Check that every live peer holds the newest version, and counts exactly its certified steps."""
        newest, counted = certificates[-1], [self.workers(one) for one in certificates]
        for peer in self.peers:
            if peer.engine is not None and peer.me not in self.dead:
                assert peer.tensors.states == [newest.state]
                assert peer.tensors.learner.counted == [sum(one.get(peer.me, 0) for one in counted)]


def scene(peers: int = PEERS, seed: int = 1) -> Scene:
    return Scene(peers, seed, 0.0, PACE)


def says(action: Action, kind: str) -> bool:
    message = action.message if isinstance(action, Send) else None
    return isinstance(message, Statement) and message.context.kind == kind
