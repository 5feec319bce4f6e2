"""The protocol core of one peer: events in, actions out (design §3).

It routes messages to their fragments, opens rounds when they are due, and never has more than τ of them in flight.
It has no socket, clock, thread, randomness or log: a shell (`peer.rounds.driver`, `coordinator.simulator`) has those.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.used_invites import USES_FRAGMENT
from coordinator.core.actions import Action, Send, Tell, VoteRecord
from coordinator.core.context import Core
from coordinator.core.events import (
    Answer,
    Applied,
    Encoded,
    Event,
    FetchFailed,
    Inspected,
    Opened,
    PeerGone,
    PresenceSeen,
    Progress,
    Received,
    Reduced,
    Seen,
    StateFetched,
    Tick,
)
from coordinator.engine.audit import Auditor
from coordinator.engine.enforcement import Enforcement
from coordinator.engine.fork_choice import ForkChoice
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.gossip import spread
from coordinator.group.eligibility import lacks_turn
from coordinator.group.group import OtherBaseError
from coordinator.group.schedule import Candidate, next_to_open
from coordinator.trust.length_limits import check_length
from coordinator.wire.messages import (
    AskChainNote,
    CellNote,
    CertificateNote,
    ChainNote,
    FragmentNote,
    GroupNote,
    NeedNote,
    PartNote,
    TrustNote,
)
from coordinator.wire.openings import OpeningNote, OpenNote
from coordinator.wire.presence import HEAD_BYTES
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

TICK_SECONDS_MIN = 0.01  # overdue work waits this long, so that no shell spins
CASCADE_MAX = 10_000  # messages to ourselves handled within one event: more is a bug of ours


class Engine:
    """The protocol core of one peer, over all its fragments."""

    def __init__(self, core: Core, chains: Sequence[Chain], held: Sequence[int], now: float) -> None:
        """`held[p]` is the version of fragment p whose state this peer has; its chain may know newer ones."""
        self.core = core
        self.machines = [
            FragmentMachine(core, chain, version, now) for chain, version in zip(chains, held, strict=True)
        ]
        self.fork_choice = ForkChoice(self.machines)
        self.enforcement = Enforcement(core, self.machines)
        self.auditor = Auditor(core, self.machines, self.enforcement)
        self.opened_at = -math.inf
        self._due: list[float] = []  # due times of fragments that we may open, as of the last event
        self._later: list[tuple[float, FragmentMachine]] = []  # fragments that are not due yet, with their due times

    # -- the one entrance

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return all actions that follow from one event. Messages to ourselves are delivered within the call."""
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
        actions: list[Action] = []
        if self.core.admission.is_closed:
            self.core.admission.used_invites = self.machines[USES_FRAGMENT].chain.used_invites()
        if isinstance(event, Received) and isinstance(event.message, Statement):
            actions += self.enforcement.hear(event.message, now)
        try:
            actions += self._dispatch(event, now)
        except PeerError as error:
            sender = event.sender if isinstance(event, Received) else self.core.me
            actions.append(Tell("refused", 0, 0, {"peer": sender, "reason": str(error)}))
        for machine in self.machines:
            actions += machine.settle(now)
        return actions + self.enforcement.compare(actions, now) + self.auditor.follow(actions, now)

    def _dispatch(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, Received):
            return self._receive(event, now)
        if isinstance(event, Tick):
            return [action for machine in self.machines for action in machine.tick(now)] + self.auditor.tick(now)
        if isinstance(event, Seen):
            if isinstance(event, Progress) and event.steps < self.core.steps:
                for machine in self.machines:
                    machine.own_work.begin_anew(event.steps)
            self.core.note(event, now)
            return []
        if isinstance(event, PresenceSeen):
            return self._on_presence(event, now)
        if isinstance(event, PeerGone):
            self.core.presence.lose(event.peer)
            return [action for machine in self.machines for action in machine.lose(event.peer, now)]
        if isinstance(event, StateFetched):
            return self.machines[event.fragment].fetched(event.digest, now)
        if isinstance(event, FetchFailed):
            return self.machines[event.fragment].fetch_failed(event.digest, now)
        return self._on_answer(event, now)

    def _on_answer(self, event: Answer, now: float) -> list[Action]:
        machine = self.machines[event.key.fragment]
        attempt = machine.find(event.key.roster_id)
        if isinstance(event, Inspected) and event.whole:
            return self.auditor.on_answer(event, now)
        if attempt is None:
            return []
        if isinstance(event, Encoded):
            return machine.rounds.on_encoded(event, now)
        if isinstance(event, Reduced):
            found = self.enforcement.inspect(event, now) if event.garbage else []
            return found + attempt.on_reduced(event, now)
        if isinstance(event, Opened):
            return attempt.on_opened(event)
        if isinstance(event, Inspected):
            return attempt.on_inspected(event, now) + self.enforcement.collect(event, now)
        voting = machine.rounds.find(event.key.roster_id)
        if voting is None:
            return []
        if isinstance(event, Applied):
            return voting.on_applied(event)
        if not event.written:
            self.core.note_unable(now)
        return voting.on_vote_recorded(event)

    # -- messages

    def _receive(self, event: Received, now: float) -> list[Action]:
        sender, message = event.sender, event.message
        self.core.presence.heard(sender)
        if isinstance(message, Statement):
            return self._receive_statement(event, message, now)
        if isinstance(message, GroupNote):
            return self._receive_within_group(event, message, now)
        if isinstance(message, CertificateNote):
            return self._on_certificate(sender, message.certificate, now)
        if isinstance(message, TrustNote):
            return self.enforcement.on_note(sender, message, now)
        if isinstance(message, CellNote):
            return [action for machine in self.machines for action in machine.cells.on_note(sender, message, now)]
        return self._on_fragment_note(sender, message, now)

    def _machine(self, fragment: int) -> FragmentMachine:
        if fragment >= len(self.machines):
            raise PeerError(f"fragment {fragment} does not exist in this run")
        return self.machines[fragment]

    def _receive_within_group(self, event: Received, note: GroupNote, now: float) -> list[Action]:
        """Route a note by its group, the only thing that it names; notes of an old group are about audits."""
        for machine in self.machines:
            attempt = machine.find(note.group)
            if attempt is not None and isinstance(note, PartNote):
                return attempt.receive(event.sender, note, event.payload_root, now)
            if attempt is not None and isinstance(note, OpeningNote):
                return attempt.on_opening(event.sender, note, now)
            if attempt is not None and isinstance(note, NeedNote | OpenNote):
                return attempt.answer(event.sender, note)
        return self.auditor.receive(event.sender, note, event.payload_root)

    def _on_fragment_note(self, sender: PeerId, note: FragmentNote, now: float) -> list[Action]:
        machine = self._machine(note.fragment)
        if isinstance(note, AskChainNote):
            return self.fork_choice.answer(sender, note, now)
        if isinstance(note, ChainNote):
            return self.fork_choice.hear(sender, note, now)
        if note.base != machine.chain.digest:  # one of us is behind
            return self.fork_choice.ask(sender, machine.index, now)
        return machine.cells.on_ward(sender, note, now)

    def _receive_statement(self, event: Received, statement: Statement, now: float) -> list[Action]:
        context = statement.context
        if context.run_id != self.core.rules.run_id:
            raise PeerError("a statement of another run")
        check_length(statement)
        machine = self._machine(context.fragment)
        if context.version < machine.chain.version:
            self.core.check_signed(statement)
            return self.fork_choice.help_catch_up(event.sender, machine, context.version, now)
        if context.version > machine.chain.version:
            return self.fork_choice.ask(event.sender, machine.index, now)
        try:
            return machine.receive(statement, event.payload_root, now, event.sender)
        except OtherBaseError:
            return self.fork_choice.ask(event.sender, machine.index, now)

    def _on_certificate(self, sender: PeerId, certificate: Certificate, now: float) -> list[Action]:
        """Follow the next full version at once; if another certificate is news, ask for the ones before it."""
        machine = self._machine(certificate.fragment)
        known = machine.chain.digest_at(certificate.version) == certificate.digest
        if known or machine.state_sync.is_unserved(certificate.digest, now):
            return machine.state_sync.offered(sender, certificate.digest, machine.chain, now)
        if certificate.outcome.minor or machine.chain.refusal(certificate) is not None:
            return self.fork_choice.ask(sender, machine.index, now)
        actions = machine.learn(certificate, now) + spread(self.core, machine.chain, certificate, now)
        return actions + machine.state_sync.offered(sender, certificate.digest, machine.chain, now)

    def _on_presence(self, event: PresenceSeen, now: float) -> list[Action]:
        """Record a peer's presence, and ask it for its chain if it is ahead of us or on another branch."""
        self.core.presence.see(event.peer, event.presence, now)
        actions = self.enforcement.meet(event.peer, event.presence.boot, now)
        heads = zip(self.machines, event.presence.versions, event.presence.heads, strict=False)
        for machine, version, head in heads:
            chain = machine.chain
            known = chain.digest_at(version) if version <= chain.version else None
            if version > chain.version or (known is not None and known[:HEAD_BYTES] != head):
                actions += self.fork_choice.ask_within_limit(event.peer, machine.index, now)
        return actions

    # -- opening rounds

    def _open(self, now: float) -> list[Action]:
        self._due, self._later = [], []
        if self.in_flight >= self.core.pace.overlap:
            return []
        candidates = []
        for machine in [one for one in self.machines if not lacks_turn(self.core, one.chain, now)]:
            due_at = self._due_at(machine, now)
            if due_at > now:  # whether we may open it is costly to find out, so we wait until it is due
                self._later.append((due_at, machine))
            elif machine.eligibility(now)[0]:
                candidates.append(Candidate(machine.index, machine.chain.version, due_at))
        self._due = [candidate.due_at for candidate in candidates]
        if (chosen := next_to_open(candidates, now)) is None:
            return []
        self.opened_at = now
        return self.machines[chosen.fragment].open(now)

    def _due_at(self, machine: FragmentMachine, now: float) -> float:
        """Return when the next version of a fragment is due and may be begun beside the other fragments."""
        pacing = machine.tempo.pacing(machine.chain, now)
        return max(pacing.due_at, self.opened_at + pacing.spacing_seconds, machine.rounds.joining.not_before)

    def next_deadline(self, now: float) -> float:
        """Return the latest time for the next `Tick`; infinity if only events can change anything."""
        ours = (time for machine in self.machines for time in machine.next_deadline(now))
        later = sorted(self._later, key=itemgetter(0))
        opens_at = next((due_at for due_at, machine in later if machine.eligibility(now)[0]), math.inf)
        return max(min(*ours, *self._due, opens_at, self.auditor.next_deadline()), now + TICK_SECONDS_MIN)

    # -- for shells

    def drain(self) -> None:
        """Open no further rounds; those in flight go on."""
        self.core.draining = True

    def withdraw(self, withdrawn: bool) -> None:
        """Open no further rounds until called with False; those in flight go on."""
        self.core.withdrawn = withdrawn

    @property
    def in_flight(self) -> int:
        return sum(machine.busy for machine in self.machines)

    def begin_at(self, chains: Sequence[Chain], now: float) -> None:
        """Go on from an invite's waypoint if our own chains do not contain it. Call it before any event."""
        for machine, chain in zip(self.machines, chains, strict=True):
            ours = machine.chain.digest_at(chain.version)
            forgotten = ours is None and chain.version <= machine.chain.version
            if ours != chain.digest and not forgotten:
                machine.begin_at(chain, now)

    def restore_votes(self, records: Sequence[VoteRecord], now: float) -> None:
        """Honour the votes that this peer gave before a restart."""
        for record in records:
            if record.fragment < len(self.machines):
                self.machines[record.fragment].vote_locks.restore(record, now)

    @property
    def chains(self) -> list[Chain]:
        """The newest chains that we know, by fragment."""
        return [machine.chain for machine in self.machines]

    def heads(self) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Return versions and shortened digests of all chains, for presence."""
        return tuple(one.version for one in self.chains), tuple(one.digest[:HEAD_BYTES] for one in self.chains)
