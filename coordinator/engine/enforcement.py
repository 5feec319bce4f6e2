"""Enforcement: a peer notices proven faults, bans the keys, and tells others (design §9).

Sans-IO, part of the engine. Evidence travels on request: a peer tells others the keys that it holds evidence of. They
ask for the evidence that they lack, and verify it. No peer passes false evidence on, or listens to its sender again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from coordinator.chain.certificate import CONVICTIONS_MAX
from coordinator.chain.chain import active_sets
from coordinator.core.actions import Action, KeepEvidence, RoundVoided, Send, Tell, VersionCertified
from coordinator.core.context import Core
from coordinator.core.events import Inspected, Reduced
from coordinator.engine.fragment import FragmentMachine, is_in_part
from coordinator.trust.bans import Ban
from coordinator.trust.equivocation import Equivocations
from coordinator.trust.evidence import ORDER, Evidence, UnknownChargeError, false_result, garbage, verify
from coordinator.trust.length_limits import check_length
from coordinator.trust.orders import Order
from coordinator.wire.messages import AskEvidenceNote, AskHeardNote, ConvictionsNote, EvidenceNote, HeardNote, TrustNote
from dht.allowance import Allowance
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

COMPARED_WITH = 3  # members of a group to which we send a summary of the statements of its round
SPREAD_MAX = 32  # peers told of a conviction at once; the others hear of it when we see their presence
ASK_SECONDS = 1.0  # least time between two questions, or answers, to one peer about one thing
RETELL_LIFETIMES = 10.0  # lifetimes of presence after which we tell a peer again: notes get lost
STRANGERS_TOLD = 16  # peers outside the active sets told in that time: keys cost nothing, and we have to dial each
PEERS_KEPT = 4096

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Told:
    """The last note about our bans to one peer: to which `boot` of it, at which revision, and when."""

    boot: bytes
    revision: int
    seconds: float
    rest: int = 0  # index at which its next note begins; 0 if it was told all


@dataclass(slots=True)
class Enforcement:
    """Bans at one peer. `telling` limits notes to strangers; `ignored_senders` are peers that sent false evidence."""

    core: Core
    machines: Sequence[FragmentMachine]
    equivocations: list[Equivocations] = field(init=False)
    asked: dict[tuple[PeerId, bytes], float] = field(default_factory=dict)
    told: dict[PeerId, _Told] = field(default_factory=dict)
    telling: Allowance = field(init=False)
    ignored_senders: dict[PeerId, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.telling = Allowance(STRANGERS_TOLD / self._retell_seconds, STRANGERS_TOLD)
        self.equivocations = [Equivocations(self.core.verifier) for _ in self.machines]

    # -- noticing

    def hear(self, statement: Statement, now: float) -> list[Action]:
        """Compare a statement with its sender's earlier ones, and convict the sender if they contradict each other."""
        context = statement.context
        if context.run_id != self.core.rules.run_id or context.fragment >= len(self.machines):
            return []
        try:
            check_length(statement)
        except PeerError:
            return []
        machine, equivocations = self.machines[context.fragment], self.equivocations[context.fragment]
        chain = machine.chain
        equivocations.forget(chain.version)
        if not chain.version - 1 <= context.version <= chain.version:
            return []
        found = equivocations.see(statement, chain.active_set(), partial(is_in_part, machine))
        return self.accuse(found, now)

    def inspect(self, event: Reduced, now: float) -> list[Action]:
        """Convict members whose committed bytes our own reduction found to be garbage."""
        attempt = self.machines[event.key.fragment].find(event.key.roster_id)
        inputs = None if attempt is None else attempt.exchange.inputs
        if inputs is None:
            return []
        signed = {PeerId(one.sender): one for one in inputs.signed}
        return self.accuse([garbage(signed[inputs.peers[member]], opened) for member, opened in event.garbage], now)

    def collect(self, event: Inspected, now: float) -> list[Action]:
        """Convict the reducer of a result that we, or another member and then we, have refuted."""
        attempt, shown = self.machines[event.key.fragment].find(event.key.roster_id), event.refutation
        if attempt is None or attempt.exchange.inputs is None or shown is None:
            return []
        held = attempt.exchange.by_digest().get(shown.result)
        found = None if held is None else false_result(held.statement, attempt.exchange.inputs.statement, shown)
        return [] if found is None else self.accuse([found], now)

    def accuse(self, found: Sequence[Evidence], now: float) -> list[Action]:
        """Convict by evidence that we found ourselves; drop evidence that proves nothing."""
        actions: list[Action] = []
        for evidence in found:
            with suppress(PeerError):
                actions += self.convict(evidence, now)
        return actions

    def compare(self, actions: Sequence[Action], now: float) -> list[Action]:
        """Send a summary of the statements of each round that is over to a few of its members."""
        found: list[Action] = []
        for action in actions:
            match action:
                case VersionCertified(certificate=made):
                    if self.machines[made.fragment].chain.version == made.version:  # else several versions came at once
                        found += self._compare(made.fragment, made.version - 1, made.outcome.roster)
                case RoundVoided(fragment=fragment, version=base):
                    for attempt in self.machines[fragment].rounds.past[:1]:
                        found += self._compare(fragment, base, attempt.group.members)
        return found

    def _compare(self, fragment: int, base: int, members: Sequence[str]) -> list[Action]:
        """Send our summary of this finished round to the next few of its `members` after us."""
        if self.core.me not in members:
            return []
        note = self.equivocations[fragment].summary(fragment, base)
        start = members.index(self.core.me) + 1
        next_ones = (*members[start:], *members[: start - 1])[:COMPARED_WITH]
        return [] if note is None else [Send(PeerId(peer), note) for peer in next_ones]

    # -- convicting

    def convict(self, evidence: Evidence, now: float) -> list[Action]:
        """Ban the key that this evidence convicts; raises PeerError if it proves nothing. No peer bans itself."""
        if evidence.charge == ORDER:
            return self._obey(evidence, now)
        suspect = PeerId(evidence.statements[0].sender)
        if suspect == self.core.me or suspect in self.core.bans:
            return []
        ban = self._judge(evidence, self.core.unix_seconds(now))
        if ban is None:
            return []
        actions = self._part_with(suspect, now)
        details: dict[str, object] = {"peer": suspect, "reason": ban.guilt.reason}
        context = evidence.statements[0].context
        actions += [KeepEvidence(ban), Tell("peer_banned", context.fragment, context.version, details)]
        return actions + self._spread(ban, now)

    def _part_with(self, peer: PeerId, now: float) -> list[Action]:
        for machine in self.machines:
            machine.rounds.shun(peer)
        return [action for machine in self.machines for action in machine.lose(peer, now)]

    def _spread(self, ban: Ban, now: float) -> list[Action]:
        note = ConvictionsNote(convictions=(ban.conviction,))
        known, others = self._known(), self.core.presence.live(now) - {self.core.me}
        members_first = sorted(others, key=lambda peer: (peer not in known, peer))
        return [Send(peer, note) for peer in members_first[:SPREAD_MAX]]

    def _obey(self, evidence: Evidence, now: float) -> list[Action]:
        """Remove or readmit the peers that an order is about; raises PeerError if it is not a valid order.

        We obey an order about ourselves, too: the others will have us in no group, so there is no use in asking.
        """
        given = Ban(verify(evidence, self.core.rules, self.core.proof_checker), evidence, self.core.unix_seconds(now))
        changed = self.core.bans.obey(given)
        if changed is None:
            return []
        actions: list[Action] = [KeepEvidence(given)]
        for peer in sorted(changed):
            out = peer in self.core.bans
            if out:
                self.core.presence.shun(peer)
                actions += self._part_with(peer, now)
            else:
                self.core.presence.readmit(peer)
            details: dict[str, object] = {"peer": peer, "reason": given.guilt.reason}
            actions.append(Tell("peer_banned" if out else "peer_readmitted", 0, 0, details))
        return actions + self._spread(given, now) + self._notify(given.guilt.peer, now)

    def _notify(self, peer: PeerId, now: float) -> list[Action]:
        """Send a removed or readmitted peer the order about it, so that its owner learns of it."""
        order = self.core.bans.order_about(peer)
        if order is None or peer == self.core.me or not self._first(peer, order.evidence.digest, now):
            return []
        return [Send(peer, EvidenceNote(evidence=order.evidence.to_wire()))]

    def _judge(self, evidence: Evidence, unix_seconds: float) -> Ban | None:
        guilt = verify(evidence, self.core.rules, self.core.proof_checker)
        ban = Ban(guilt, evidence, unix_seconds)
        if guilt.issued is not None:
            for peer in self.core.bans.obey(ban) or ():
                (self.core.presence.shun if peer in self.core.bans else self.core.presence.readmit)(peer)
            return ban
        if not self.core.bans.add(ban, self._known()):
            return None
        self.core.presence.shun(guilt.peer)
        return ban

    def restore(self, kept: Sequence[tuple[bytes, float]]) -> None:
        """Restore the evidence from before a restart, each piece with the unix time at which we learnt of it."""
        for data, unix_seconds in kept:
            try:
                self._judge(Evidence.parse(data), unix_seconds)
            except PeerError:
                continue

    def _known(self) -> frozenset[PeerId]:
        return active_sets(machine.chain for machine in self.machines)

    # -- spreading

    def on_note(self, sender: PeerId, note: TrustNote, now: float) -> list[Action]:
        """Handle a note about trust: a summary, a list of convictions, a question, or evidence."""
        if sender in self.ignored_senders:
            return []
        if isinstance(note, HeardNote | AskHeardNote):
            return self._on_heard(sender, note, now)
        if isinstance(note, ConvictionsNote):
            return self._ask_for(sender, note, now)
        if isinstance(note, AskEvidenceNote):
            evidence = self.core.bans.evidence(note.evidence)
            if evidence is None or not self._first(sender, note.evidence, now):
                return []
            return [Send(sender, EvidenceNote(evidence=evidence.to_wire()))]
        return self._on_evidence(sender, note, now)

    def _on_heard(self, sender: PeerId, note: HeardNote | AskHeardNote, now: float) -> list[Action]:
        if note.fragment >= len(self.machines) or sender not in self.machines[note.fragment].chain.active_set():
            return []
        equivocations = self.equivocations[note.fragment]
        if isinstance(note, HeardNote):
            question = equivocations.differing(note)
            return [] if question is None else [Send(sender, question)]
        if not self._first(sender, b"heard", now):
            return []
        return [Send(sender, statement) for statement in equivocations.answer(note)]

    def _ask_for(self, sender: PeerId, note: ConvictionsNote, now: float) -> list[Action]:
        lacking = [one.evidence for one in note.convictions if self.core.bans.lacks(one)]
        return [Send(sender, AskEvidenceNote(evidence=one)) for one in lacking if self._first(sender, one, now)]

    def _on_evidence(self, sender: PeerId, note: EvidenceNote, now: float) -> list[Action]:
        try:
            evidence = Evidence.parse(note.evidence)
            return self.convict(evidence, now) or self._correct(sender, evidence, now)
        except UnknownChargeError:
            return []
        except PeerError as error:
            _note(self.ignored_senders, sender, None)
            return [Tell("false_evidence", 0, 0, {"peer": sender, "reason": str(error)})]

    def _correct(self, sender: PeerId, evidence: Evidence, now: float) -> list[Action]:
        """Send the newest order to a peer that follows an outdated one."""
        if evidence.charge != ORDER:
            return []
        newer = self.core.bans.order_about(PeerId(evidence.statements[0].read(Order).subject))
        if newer is None or newer.evidence.digest == evidence.digest:
            return []
        return (
            [Send(sender, EvidenceNote(evidence=newer.evidence.to_wire()))]
            if self._first(sender, newer.evidence.digest, now)
            else []
        )

    def _first(self, peer: PeerId, about: bytes, now: float) -> bool:
        """Whether we may ask or answer this peer about this thing again: not for ASK_SECONDS after the last time."""
        if now < self.asked.get((peer, about), -ASK_SECONDS) + ASK_SECONDS:
            return False
        _note(self.asked, (peer, about), now)
        return True

    @property
    def _retell_seconds(self) -> float:
        return RETELL_LIFETIMES * self.core.pace.presence_lifetime_seconds

    def meet(self, peer: PeerId, boot: bytes, now: float) -> list[Action]:
        """Tell a peer whose presence we see of all our bans: after each of its restarts, and again now and then.

        We tell only a few strangers; the others find the evidence that members publish in the DHT (design §9).
        """
        revision, told = self.core.bans.revision, self.told.get(peer)
        if told and ((told.boot, told.revision) != (boot, revision) or now >= told.seconds + self._retell_seconds):
            told = None
        if not revision or (told and not told.rest):
            return []
        if peer in self.core.bans:
            _note(self.told, peer, _Told(boot, revision, now))
            return self._notify(peer, now)
        members = self._known()
        if peer not in members:
            if self.telling.wait_seconds(now):
                return []
            self.telling.take(1, now)
        convictions, begin = self.core.bans.to_tell(members), told.rest if told else 0
        end = begin + CONVICTIONS_MAX
        _note(self.told, peer, _Told(boot, revision, now, end if end < len(convictions) else 0))
        return [Send(peer, ConvictionsNote(convictions=tuple(convictions[begin:end])))]


def _note(notes: dict[Key, Value], key: Key, value: Value) -> None:
    """Remember a value; the oldest notes make room."""
    while key not in notes and len(notes) >= PEERS_KEPT:
        del notes[next(iter(notes))]
    notes[key] = value
