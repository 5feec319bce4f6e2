"""The last rounds of a peer, phase by phase, for people to look at (design §6.2).

After each event, the traces note what has changed in the protocol core. The core does not know of them, and nothing is
decided by them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, RoundVoided
from coordinator.engine.engine import Engine
from coordinator.engine.fragment import FragmentMachine
from coordinator.group.joining import Joining
from coordinator.round.attempt import Attempt
from coordinator.views.network_view import PHASES, PhaseName, PhaseSpan, RoundView
from dht.identity import PeerId

ROUNDS_KEPT = 64
REASON_CHARACTERS_MAX = 240
ELSEWHERE = "another group certified this version"
BRANCH_LEFT = "this branch was left for another one"


@dataclass(slots=True)
class _Round:
    """One attempt of ours at the version after `base`. Times are those of the event loop."""

    fragment: int
    version: int  # the version that it makes
    base: bytes
    attempt: int
    leader: PeerId
    starts: dict[PhaseName, float]
    roster_id: bytes | None = None
    members: tuple[PeerId, ...] = ()
    contributors: frozenset[PeerId] = frozenset()
    in_time: frozenset[PeerId] | None = None  # peers that had joined when the quorum was reached; None if unknown
    late: frozenset[PeerId] = frozenset()
    certificate: Certificate | None = None
    reason: str | None = None  # why it is void
    ended: float | None = None

    def enter(self, phase: PhaseName, now: float) -> None:
        """Begin a phase, unless the round has already reached it or a later one."""
        if PHASES.index(phase) > PHASES.index(next(reversed(self.starts))):
            self.starts[phase] = now

    def note_joining(self, joining: Joining, now: float) -> None:
        """Note the attempt that we ask to join, before there is a roster, and whether its quorum is there."""
        self.attempt, self.leader = joining.attempt_number, joining.leader
        gathering = joining.current
        if gathering is not None and gathering.quorum_at is not None and self.in_time is None:
            self.in_time = frozenset(gathering.joins)
            self.enter("grace", now)

    def note_attempt(self, attempt: Attempt, now: float) -> None:
        """Note how far the group has come."""
        group, exchange, verdict = attempt.group, attempt.exchange, attempt.verdict
        self.attempt, self.leader, self.roster_id = group.attempt, group.leader, group.key.roster_id
        self.members, self.contributors = group.members, group.contributors
        self.enter("encode", now)
        if exchange.commit is not None or attempt.core.me not in group.contributors:
            self.enter("commit", now)
        if exchange.inputs is None:
            return
        self.enter("scatter", now)
        if all(duty.started for duty in exchange.duties.values()):
            self.enter("reduce", now)
        if verdict.check.statement is not None:
            self.enter("check", now)
        if verdict.followed is not None:
            self.enter("vote", now)

    def certify(self, certificate: Certificate, now: float) -> None:
        """Note that the round made its version, perhaps after we had given it up."""
        included = {PeerId(one.peer) for one in certificate.outcome.included()}
        self.late = self._joined_late() | (self.contributors - included)
        self.certificate, self.reason, self.ended = certificate, None, None
        self.enter("adopt", now)

    def void(self, reason: str, silent: frozenset[PeerId], now: float) -> None:
        self.late = self._joined_late() | silent
        self.reason, self.ended = reason, now

    def _joined_late(self) -> frozenset[PeerId]:
        return frozenset() if self.in_time is None else frozenset(self.members) - self.in_time

    def view(self, reporter: PeerId, unix_offset_seconds: float) -> RoundView:
        """Return the round's view for people; phases that took no time are left out."""
        starts = list(self.starts.items())
        ends: list[float | None] = [start for _, start in starts[1:]]
        phases = tuple(
            PhaseSpan(
                name=name,
                start_unix_seconds=start + unix_offset_seconds,
                end_unix_seconds=None if end is None else end + unix_offset_seconds,
            )
            for (name, start), end in zip(starts, [*ends, self.ended], strict=True)
            if end != start
        )
        return RoundView(
            fragment=self.fragment,
            version=self.version,
            attempt=self.attempt,
            leader=self.leader,
            reporter=reporter,
            members=self.members,
            late=tuple(sorted(self.late)),
            phases=phases,
            outcome="certified" if self.certificate else "void" if self.reason is not None else "running",
            reason=(self.reason or "")[:REASON_CHARACTERS_MAX],
            digest=self.certificate.digest.hex() if self.certificate else "",
        )


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest version of a fragment at some moment."""

    chain: Chain
    version: int
    digest: bytes

    @classmethod
    def of(cls, chain: Chain) -> _Base:
        return cls(chain, chain.version, chain.digest)

    def still(self, chain: Chain) -> bool:
        """Whether this is still the newest version; asked after every event, so it must be cheap."""
        return chain is self.chain and chain.version == self.version


@dataclass
class RoundTraces:
    """The newest `ROUNDS_KEPT` rounds that this peer took part in, or tried to."""

    engine: Engine
    _rounds: deque[_Round] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    _open: dict[int, _Round] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bases = [_Base.of(machine.chain) for machine in self.engine.machines]

    def follow(self, actions: Sequence[Action], now: float) -> None:
        """Note what has changed with an event that these actions answer."""
        voids = {one.fragment: one for one in actions if isinstance(one, RoundVoided)}
        for machine in self.engine.machines:
            base = self._bases[machine.index]
            if not base.still(machine.chain):
                self._move(machine, base, now)
                self._bases[machine.index] = _Base.of(machine.chain)
            elif machine.index in voids:
                self._void(machine, voids[machine.index].reason, now)
            if machine.busy:
                self._note(machine, now)

    def adopted(self, fragment: int, version: int, now: float) -> None:
        """Note that this version of a fragment, and with it every earlier one, has reached the learner."""
        for one in self._rounds:
            if one.certificate and one.ended is None and one.fragment == fragment and one.version <= version:
                one.ended = now

    def views(self, count: int = ROUNDS_KEPT) -> tuple[RoundView, ...]:
        """Return the newest `count` rounds, newest last."""
        core = self.engine.core
        newest = list(self._rounds)[-count:]
        return tuple(one.view(core.me, core.unix_offset_seconds) for one in newest)

    def last_void(self, machine: FragmentMachine) -> str:
        """Return why our last attempt at a fragment's next version was void; empty if there was none."""
        base = machine.chain.digest
        ours = (one for one in reversed(self._rounds) if one.fragment == machine.index and one.base == base)
        return next((one.reason[:REASON_CHARACTERS_MAX] for one in ours if one.reason), "")

    def _note(self, machine: FragmentMachine, now: float) -> None:
        one = self._open.get(machine.index)
        joining = machine.rounds.joining
        if one is None:
            version, base = machine.chain.version + 1, machine.chain.digest
            one = _Round(machine.index, version, base, joining.attempt_number, joining.leader, {"join": now})
            self._open[machine.index] = one
            self._rounds.append(one)
        if machine.attempt is None:
            one.note_joining(joining, now)
        else:
            one.note_attempt(machine.attempt, now)

    def _move(self, machine: FragmentMachine, base: _Base, now: float) -> None:
        """Note that a fragment's newest version has changed: one of our rounds made it, or our current one is void."""
        successor = next(iter(machine.chain.after(base.version, 1)), None)
        if successor is not None and successor.outcome.parent != base.digest:
            successor = None
        current = self._open.pop(machine.index, None)
        for one in self._rounds:
            ours = one.roster_id is not None and one.base == base.digest
            if successor is not None and ours and one.roster_id == successor.outcome.roster_id:
                one.certify(successor, now)
        if current is None or current.certificate is not None:
            return
        if current.roster_id is None and successor is not None:
            if current in self._rounds:  # else it is forgotten already
                self._rounds.remove(current)  # others made it without us, so it is no round of ours
        else:
            current.void(BRANCH_LEFT if successor is None else ELSEWHERE, frozenset(), now)

    def _void(self, machine: FragmentMachine, reason: str, now: float) -> None:
        one = self._open.pop(machine.index, None)
        if one is not None:
            attempt = machine.rounds.find(one.roster_id) if one.roster_id is not None else None
            one.void(reason, attempt.silent if attempt is not None else frozenset(), now)
