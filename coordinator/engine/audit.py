"""Audits of reducers' results after the round: every leaf of one partition (design §9). Sans-IO.

Spot checks see only a few leaves before a version exists, so they mostly miss a reducer that alters one leaf of
hundreds. After some of its rounds a member asks the others for their committed inputs to one partition, and recomputes
all of it. It draws these rounds itself, so nobody can know them beforehand. A leaf that differs convicts the reducer,
as in a refutation; the version stays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.core.actions import Action, Send, Tell, VersionCertified
from coordinator.core.context import Core
from coordinator.core.events import Finding, Inspected
from coordinator.engine.enforcement import Enforcement
from coordinator.engine.fragment import FragmentMachine
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.round.refutations import inspection_of
from coordinator.trust.evidence import false_result
from coordinator.wire.messages import NeedNote, PartNote
from coordinator.wire.openings import OpeningNote, OpenNote
from dht.identity import PeerId

ROUNDS_KEPT = 4  # our newest rounds, kept for our audits and those of others
ASKERS_SPARE = 4  # members beside a hostile third that may have our part of one round: audits are rare
GIVEN_MAX = 4  # how often one of them gets it: messages get lost
ASK_SHARE = 0.25  # time between two requests for missing parts, as a share of a round's deadline
PATIENCE_DEADLINES = 2.0  # deadlines of a round after which we give up an audit that lacks a part
DRAW_BYTES = 8


@dataclass(slots=True)
class Past:
    """A certified round that we were in; `given` has, by asker, the partition that we sent it and how often."""

    exchange: Exchange
    given: dict[PeerId, tuple[int, int]] = field(default_factory=dict)  # partition, times

    @property
    def roster_id(self) -> bytes:
        return self.exchange.group.key.roster_id

    @property
    def capacity(self) -> int:
        """Number of askers that may get a part: enough that the hostile members a group bears cannot block an audit."""
        group = self.exchange.group
        return len(group.members) - group.votes_needed + ASKERS_SPARE


@dataclass(slots=True)
class Audit:
    """One result that we audit. `lacking` are the inputs that are still missing."""

    exchange: Exchange
    held: HeldResult
    lacking: set[int]
    ask_at: float
    ends_at: float
    working: bool = False

    @property
    def place(self) -> tuple[bytes, int, int]:
        result = self.held.result
        return self.exchange.group.key.roster_id, result.partition, result.turn


@dataclass(slots=True)
class Auditor:
    """Audits by one peer, over all fragments; at most one at a time."""

    core: Core
    machines: Sequence[FragmentMachine]
    enforcement: Enforcement
    past: deque[Past] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    audit: Audit | None = None

    # -- beginning

    def follow(self, actions: Sequence[Action], now: float) -> list[Action]:
        """Keep our rounds that have just been certified; audit one of their results if the draw says so."""
        found: list[Action] = []
        for action in actions:
            if isinstance(action, VersionCertified):
                found += self._close(self.machines[action.certificate.fragment], now)
        return found

    def _close(self, machine: FragmentMachine, now: float) -> list[Action]:
        attempt, machine.finished = machine.finished, None
        share = self.core.rules.trust.audit_share
        if attempt is None or attempt.exchange.inputs is None or not share:
            return []
        self.past.append(Past(attempt.exchange))
        chosen = self._draw() < share
        return self._begin(attempt.exchange, machine, now) if chosen and self.audit is None else []

    def _draw(self) -> float:
        """Draw a random number between 0 and 1."""
        return int.from_bytes(self.core.random_bytes(DRAW_BYTES), "big") / 2.0 ** (8 * DRAW_BYTES)

    def _begin(self, exchange: Exchange, machine: FragmentMachine, now: float) -> list[Action]:
        """Begin to audit another member's result that the newest certificate names."""
        assert exchange.inputs is not None
        partitions = machine.chain.certificates[-1].outcome.partitions
        roots = {(p, one.root) for p, one in enumerate(partitions) if one is not None}
        results = [
            held
            for held in exchange.results.values()
            if held.reducer != self.core.me and (held.result.partition, held.result.root) in roots
        ]
        if not results:
            return []
        held = results[min(int(self._draw() * len(results)), len(results) - 1)]
        lacking = set(held.result.included) - {exchange.inputs.index(self.core.me)}
        self.audit = Audit(exchange, held, lacking, now, now + PATIENCE_DEADLINES * self.core.pace.round_seconds)
        return self._ask(self.audit, now)

    def _ask(self, audit: Audit, now: float) -> list[Action]:
        """Ask the contributors for the inputs that we lack; recompute at once if all are here."""
        inputs, (group, partition, turn) = audit.exchange.inputs, audit.place
        assert inputs is not None
        if not audit.lacking:
            return self._recompute(audit)
        audit.ask_at = now + ASK_SHARE * self.core.pace.round_seconds
        note = NeedNote(what="part", group=group, partition=partition, turn=turn)
        return [Send(inputs.peers[member], note) for member in sorted(audit.lacking)]

    # -- messages about rounds that are over

    def receive(
        self, sender: PeerId, note: PartNote | NeedNote | OpenNote | OpeningNote, root: bytes | None
    ) -> list[Action]:
        """Take a part that we asked for, or answer a request for one of ours."""
        if isinstance(note, PartNote):
            return self._on_part(sender, note, root)
        if not isinstance(note, NeedNote) or note.what != "part":
            return []
        return self._give(sender, note)

    def _give(self, sender: PeerId, note: NeedNote) -> list[Action]:
        """Send our part of one partition to a member of that round, within limits."""
        past = next((one for one in self.past if one.roster_id == note.group), None)
        if past is None or past.exchange.encoded is None or sender not in past.exchange.group.members:
            return []
        roots = past.exchange.encoded.part_roots
        partition, times = past.given.get(sender, (note.partition, 0))
        full = sender not in past.given and len(past.given) >= past.capacity
        if full or partition != note.partition or times >= GIVEN_MAX or partition >= len(roots):
            return []
        past.given[sender] = (partition, times + 1)
        part = PartNote(group=note.group, partition=partition, turn=note.turn)
        return [Send(sender, part, roots[partition])]

    def _on_part(self, sender: PeerId, note: PartNote, root: bytes | None) -> list[Action]:
        audit = self.audit
        if audit is None or audit.working or (note.group, note.partition, note.turn) != audit.place:
            return []
        inputs = audit.exchange.inputs
        assert inputs is not None
        member = inputs.index(sender)
        if member is None or root != inputs.commits[member].part_roots[note.partition]:
            return []
        audit.lacking.discard(member)
        return [] if audit.lacking else self._recompute(audit)

    # -- the result

    def _recompute(self, audit: Audit) -> list[Action]:
        audit.working = True
        return [replace(inspection_of(audit.exchange, audit.held, self.core.me), whole=True)]

    def on_answer(self, event: Inspected, now: float) -> list[Action]:
        """Take the finding of a recomputation; a leaf that differs convicts the reducer."""
        audit = self.audit
        if audit is None or not event.whole or event.key != audit.exchange.group.key:
            return []
        inputs, shown = audit.exchange.inputs, event.refutation
        if shown is None or inputs is None:
            doubtful = event.finding is Finding.DOUBTFUL  # its coefficients are in doubt, which convicts nobody
            return self._end(False if doubtful else True if event.finding is Finding.CONFIRMED else None, doubtful)
        evidence = false_result(audit.held.statement, inputs.statement, shown)
        return self._end(False) + ([] if evidence is None else self.enforcement.accuse([evidence], now))

    def _end(self, passed: bool | None, doubtful: bool = False) -> list[Action]:
        """End the audit and tell people.

        `passed` is None if nothing could be recomputed, as when the members in `withheld` did not send their inputs.
        `doubtful`: the bytes follow from the published coefficients, but these do not follow from the merge rule.
        """
        assert self.audit is not None
        audit, self.audit = self.audit, None
        inputs, key = audit.exchange.inputs, audit.exchange.group.key
        details: dict[str, object] = {
            "reducer": audit.held.reducer,
            "partition": audit.held.result.partition,
            "passed": passed,
            "doubtful": doubtful,
            "withheld": [] if inputs is None else [inputs.peers[member] for member in sorted(audit.lacking)],
        }
        return [Tell("audited", key.fragment, key.version, details)]

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Ask again, or give up."""
        audit = self.audit
        if audit is None or now < self.next_deadline():
            return []
        return self._end(None) if now >= audit.ends_at else self._ask(audit, now)

    def next_deadline(self) -> float:
        """Return when `tick` has something to do."""
        if self.audit is None:
            return math.inf
        return self.audit.ends_at if self.audit.working else min(self.audit.ask_at, self.audit.ends_at)
