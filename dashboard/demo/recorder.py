"""Records of a simulated swarm, as an observer beside the host would make them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Action, Adopt, Send, Tell
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.views.network_view import CERTIFICATES_MAX, TAPE_MAX, RoundView
from coordinator.views.round_traces import RoundTraces
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(frozen=True, slots=True)
class HeardCertificate:
    """A certificate, and when it was first heard (virtual seconds)."""

    certificate: Certificate
    at: float


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the tape (virtual seconds)."""

    at: float
    event: str
    peer: PeerId
    fragment: int | None = None
    version: int | None = None
    detail: str = ""


@dataclass
class Recorder:
    """The certificates, rounds and events that reach the host's side of the network."""

    heard: deque[HeardCertificate] = field(default_factory=lambda: deque(maxlen=CERTIFICATES_MAX))
    tape: deque[Happened] = field(default_factory=lambda: deque(maxlen=TAPE_MAX))
    events: Counter[str] = field(default_factory=Counter)
    commits: dict[PeerId, Statement] = field(default_factory=dict)  # the newest of each peer
    new: list[HeardCertificate] = field(default_factory=list)  # not yet taken by `take_new`
    _seen: set[bytes] = field(default_factory=set)
    _traces: dict[PeerId, RoundTraces] = field(default_factory=dict)
    _actions: list[Action] = field(default_factory=list)  # of the event being handled

    def hear(self, happened: Happened) -> None:
        """Put a line on the tape."""
        self.tape.append(happened)
        self.events[happened.event] += 1

    def acts(self, peer: VirtualPeer, action: Action, now: float) -> None:
        """Record an action that a peer is about to carry out."""
        self._actions.append(action)
        if isinstance(action, Send) and isinstance(action.message, Statement) and action.message.sender == peer.me:
            if action.message.context.kind == "commit":
                self.commits[peer.me] = action.message
        elif isinstance(action, Adopt):
            self._certified(action.certificate, now)
        elif isinstance(action, Tell) and action.event != "certified":  # each certificate is recorded once, on adoption
            details = " ".join(f"{key}={value}" for key, value in action.details.items())
            self.hear(Happened(now, action.event, peer.me, action.fragment, action.version, details))

    def handled(self, peer: VirtualPeer, now: float) -> None:
        """Record in the round traces that a peer has carried out the actions of an event."""
        actions, self._actions = self._actions, []
        if peer.engine is None:
            return
        trace = self._traces.get(peer.me)
        if trace is None or trace.engine is not peer.engine:
            trace = self._traces[peer.me] = RoundTraces(peer.engine)
        trace.follow(actions, now)
        for action in actions:
            if isinstance(action, Adopt):
                trace.adopted(action.certificate.fragment, action.certificate.version, now)

    def take_new(self) -> list[HeardCertificate]:
        """Return the certificates heard since the last call."""
        new, self.new = self.new, []
        return new

    def rounds(self) -> list[RoundView]:
        """Return every round once, oldest first, as its leader saw it if the leader is known."""
        found: dict[tuple[int, int, int], RoundView] = {}
        for trace in self._traces.values():
            for one in trace.views():
                key = (one.fragment, one.version, one.attempt)
                if key not in found or one.reporter == one.leader:
                    found[key] = one
        return sorted((one for one in found.values() if one.phases), key=lambda one: one.phases[0].start_unix_seconds)

    def _certified(self, certificate: Certificate, now: float) -> None:
        if certificate.digest in self._seen:
            return
        self._seen.add(certificate.digest)
        heard = HeardCertificate(certificate, now)
        self.heard.append(heard)
        self.new.append(heard)
        detail = f"members={len(certificate.outcome.roster)} tokens={certificate.outcome.tokens}"
        self.hear(Happened(now, "certified", PeerId(""), certificate.fragment, certificate.version, detail))


class RecordedWorld(World):
    """A simulated swarm whose host's side is recorded."""

    recorder: Recorder

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        super().acts(peer, action)
        if self._is_heard(peer):
            self.recorder.acts(peer, action, self.clock.now)

    def handled(self, peer: VirtualPeer) -> None:
        super().handled(peer)
        if self._is_heard(peer):
            self.recorder.handled(peer, self.clock.now)

    def _is_heard(self, peer: VirtualPeer) -> bool:
        return self.network.sides.get(peer.me, 0) == 0
