"""The protocol core of one peer: events in, actions out (design §3).

Routes messages to the fragment that they are about, opens rounds when they are due, and never has more than τ of them in
flight. No socket, clock, thread, randomness or log in here; a shell (`peer.node`, `coordinator.virtual`) does the rest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.actions import Action, Send, Tell, VoteRecord
from coordinator.certificate import Certificate
from coordinator.chain import Chain
from coordinator.core import Core
from coordinator.events import (
    Applied,
    Encoded,
    Event,
    FetchFailed,
    PeerGone,
    PresenceSeen,
    Progress,
    Received,
    Reduced,
    StateFetched,
    Tick,
    VoteRecorded,
)
from coordinator.fragment import FragmentMachine
from coordinator.messages import (
    AskChainNote,
    CertificateNote,
    ChainNote,
    NeedNote,
    PartNote,
)
from coordinator.rivals import Rivals
from coordinator.schedule import (
    Candidate,
    Pace,
    median_time,
    next_to_open,
    spacing_seconds,
    steps_needed,
)
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

HEAD_BYTES = 8  # of a digest, as presence records carry it
TICK_SECONDS_MIN = 0.01  # whatever is overdue waits this long, so that no shell spins
CASCADE_MAX = 10_000  # messages to ourselves handled within one event: more is a bug of ours


class Engine:
    """Drives all fragments of one peer."""

    def __init__(self, core: Core, chains: Sequence[Chain], held: Sequence[int], now: float) -> None:
        """`held[p]` is the version of fragment p whose state this peer has; its chain may know newer ones."""
        self.core = core
        self.machines = [
            FragmentMachine(core, chain, version, certified_at=now, counted_from=now)
            for chain, version in zip(chains, held, strict=True)
        ]
        self.rivals = Rivals(self.machines)
        self.opened_at = -math.inf
        self.draining = False
        self._dues: dict[int, tuple[tuple[float, ...], tuple[float, float]]] = {}

    # -- the one entrance

    def handle(self, event: Event, now: float) -> list[Action]:
        """Everything that follows from one event. Messages to ourselves are delivered at once, within the call."""
        out: list[Action] = []
        queue: deque[Event] = deque([event])
        for _ in range(CASCADE_MAX):
            if not queue:
                actions = self._open(now)
                if not actions:
                    return out
            else:
                actions = self._step(queue.popleft(), now)
            for action in actions:
                if isinstance(action, Send) and action.to == self.core.me:
                    queue.append(Received(self.core.me, action.message, action.payload))
                else:
                    out.append(action)
        raise RuntimeError("one event caused an endless cascade of messages to ourselves")

    def _step(self, event: Event, now: float) -> list[Action]:
        try:
            actions = self._dispatch(event, now)
        except PeerError as error:
            sender = event.sender if isinstance(event, Received) else self.core.me
            actions = [Tell("refused", 0, 0, {"peer": sender, "reason": str(error)})]
        for machine in self.machines:
            actions += machine.settle(now)
        return actions

    def _dispatch(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, Received):
            return self._receive(event, now)
        if isinstance(event, Tick):
            return [action for machine in self.machines for action in machine.tick(now)]
        if isinstance(event, Progress):
            self.core.steps, self.core.steps_per_second = event.steps, event.steps_per_second
            self.core.steps_seen = now
            return []
        if isinstance(event, PresenceSeen):
            return self._on_presence(event, now)
        if isinstance(event, PeerGone):
            self.core.presence.lose(event.peer)
            attempts = [attempt for machine in self.machines for attempt in machine.attempts()]
            return [action for attempt in attempts for action in attempt.lose(event.peer, now)]
        if isinstance(event, StateFetched):
            return self.machines[event.fragment].fetched(event.digest)
        if isinstance(event, FetchFailed):
            self.machines[event.fragment].fetch_failed(event.digest, now)
            return []
        return self._on_answer(event, now)

    def _on_answer(self, event: Encoded | Reduced | Applied | VoteRecorded, now: float) -> list[Action]:
        attempt = self.machines[event.key.fragment].find(event.key.roster_id)
        if attempt is None:
            return []
        if isinstance(event, Encoded):
            return attempt.on_encoded(event, now)
        if isinstance(event, Reduced):
            return attempt.on_reduced(event, now)
        if isinstance(event, Applied):
            return attempt.on_applied(event)
        return attempt.on_vote_recorded(event)

    # -- messages

    def _receive(self, event: Received, now: float) -> list[Action]:
        sender, message = event.sender, event.message
        self.core.presence.heard(sender)
        if isinstance(message, Statement):
            return self._receive_statement(event, message, now)
        if isinstance(message, PartNote | NeedNote):
            for machine in self.machines:
                if machine.find(message.group) is not None:
                    if isinstance(message, PartNote):
                        return machine.on_part(sender, message, event.payload_root, now)
                    return machine.on_need(sender, message)
            return []
        if isinstance(message, CertificateNote):
            return self._on_certificate(sender, message.certificate, now)
        self._require_fragment(message.fragment)
        if isinstance(message, AskChainNote):
            return self.rivals.answer(sender, message)
        return self.rivals.hear(sender, message, now)

    def _receive_statement(self, event: Received, statement: Statement, now: float) -> list[Action]:
        context = statement.context
        if context.run_id != self.core.rules.run_id:
            raise PeerError("a statement of another run")
        self._require_fragment(context.fragment)
        machine = self.machines[context.fragment]
        if context.version < machine.chain.version:
            return self._teach(event.sender, machine, context.version)
        if context.version > machine.chain.version:
            return self.rivals.ask(event.sender, machine.index, now)
        try:
            return machine.receive(statement, event.payload_root, now)
        except PeerError as error:
            if context.kind == "join" and "base" in str(error):
                return self.rivals.ask(event.sender, machine.index, now)
            raise

    def _require_fragment(self, fragment: int) -> None:
        if fragment >= len(self.machines):
            raise PeerError(f"fragment {fragment} does not exist in this run")

    def _teach(self, peer: PeerId, machine: FragmentMachine, version: int) -> list[Action]:
        """Whoever speaks about an old version is shown the certificate that ended it."""
        newer = machine.chain.after(version, 1)
        return [Send(peer, CertificateNote(certificate=certificate)) for certificate in newer]

    def _on_certificate(self, sender: PeerId, certificate: Certificate, now: float) -> list[Action]:
        self._require_fragment(certificate.fragment)
        machine = self.machines[certificate.fragment]
        if certificate.version <= machine.chain.version:
            if machine.chain.digest_at(certificate.version) == certificate.digest:
                return []
            return self.rivals.ask(sender, machine.index, now)
        if machine.chain.refusal(certificate) is not None:
            return self.rivals.ask(sender, machine.index, now)
        return machine.advance(certificate, now)

    def _on_presence(self, event: PresenceSeen, now: float) -> list[Action]:
        """Besides who is there, presence shows who is ahead of us or on another branch."""
        self.core.presence.see(event.peer, event.presence, now)
        actions: list[Action] = []
        heads = zip(self.machines, event.presence.versions, event.presence.heads, strict=False)
        for machine, version, head in heads:
            chain = machine.chain
            known = chain.digest_at(version) if version <= chain.version else None
            if version > chain.version or (known is not None and known[:HEAD_BYTES] != head):
                actions += self.rivals.ask(event.peer, machine.index, now)
        return actions

    # -- opening rounds

    def _paces(self, machine: FragmentMachine, now: float) -> list[Pace]:
        """Speeds of the voters whose median decides; at version 0, of everyone who trains."""
        presence, core = self.core.presence, self.core
        since_start = machine.chain.version == 0
        peers = presence.trainers(now) if since_start else machine.chain.active_set() & presence.sightings.keys()
        paces = []
        for peer in peers - {core.me}:
            sighting = presence.sightings[peer]
            rate = sighting.presence.steps_per_second
            if not since_start and sighting.presence.state == "hosting":
                continue
            steps, seen = (sighting.presence.steps, sighting.seen_seconds) if since_start else (0, machine.counted_from)
            paces.append(Pace(steps, seen, rate))
        if core.contributes:
            steps, seen = (core.steps, core.steps_seen) if since_start else (0, machine.counted_from)
            paces.append(Pace(steps, seen, core.steps_per_second))
        return paces

    def _candidates(self, now: float) -> list[Candidate]:
        if self.draining or sum(machine.busy for machine in self.machines) >= self.core.pace.overlap:
            return []
        candidates = []
        for machine in self.machines:
            if machine.busy or not machine.ready or machine.bound(now) or not machine.wanted(now):
                continue
            due, spacing = self._due(machine, now)
            due_at = max(due, self.opened_at + spacing, machine.not_before)
            candidates.append(Candidate(machine.index, machine.chain.version, due_at))
        return candidates

    def _due(self, machine: FragmentMachine, now: float) -> tuple[float, float]:
        """When the next version is due and how far from the last opening; computed again only if its basis changed."""
        basis = (machine.chain.version, machine.counted_from, self.core.presence.revision, self.core.steps_seen)
        known = self._dues.get(machine.index)
        if known is None or known[0] != basis:
            paces = self._paces(machine, now)
            needed = steps_needed(self.core.pace, machine.index, machine.chain.version)
            known = (basis, (median_time(paces, needed), spacing_seconds(self.core.pace, paces)))
            self._dues[machine.index] = known
        return known[1]

    def _open(self, now: float) -> list[Action]:
        chosen = next_to_open(self._candidates(now), now)
        if chosen is None:
            return []
        self.opened_at = now
        return self.machines[chosen.fragment].open(now)

    def next_deadline(self, now: float) -> float:
        """When to send a `Tick` at the latest; infinity if only events can change anything."""
        times = [time for machine in self.machines if (time := machine.next_deadline(now)) is not None]
        times += [candidate.due_at for candidate in self._candidates(now)]
        return max(min(times, default=math.inf), now + TICK_SECONDS_MIN)

    # -- for shells

    def drain(self) -> None:
        """Open no further rounds; those in flight go on."""
        self.draining = True

    @property
    def in_flight(self) -> int:
        return sum(machine.busy for machine in self.machines)

    def bind(self, records: Sequence[VoteRecord], now: float) -> None:
        """Honour votes that an earlier life of this peer gave."""
        for record in records:
            self.machines[record.fragment].bind(record, now)

    def heads(self) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Versions and shortened digests of all chains, as presence carries them."""
        chains = [machine.chain for machine in self.machines]
        return tuple(chain.version for chain in chains), tuple(chain.digest[:HEAD_BYTES] for chain in chains)
