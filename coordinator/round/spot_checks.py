"""Spot checks: a member inspects the reducers' results before it applies any of them (design §6.2 step 8).

For every result that it holds it asks the reducer to open a few leaves, drawn by both its committed nonces
(docs/adr/0008, 0054). If the reducer does not, the contributors open their committed inputs. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.core.events import Finding, Inspected
from coordinator.core.lateness import OPENING
from coordinator.core.timeline import OPEN_SHARE, SECOND_PROPOSE_SHARE, Timeline
from coordinator.group.group import Group
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.round.refutations import Refutations, inspection_of
from coordinator.wire.openings import OpenedInput, OpeningNote, OpenNote, is_long, seed_of
from dht.identity import PeerId

Slot = tuple[int, int]
"""Partition and turn."""


@dataclass(slots=True)
class CheckedResult:
    """One result that we inspect.

    `by_owners`: we passed over its reducer and ask the contributors instead; `opened` holds their leaves. `overdue`:
    some of these have not come in time, but still may. We recompute once from the reducer's leaves and once from the
    contributors' (`…_tried`). `foreseen`: the reducer may have known which leaves we draw, so a match proves nothing,
    though a mismatch still convicts.
    """

    held: HeldResult
    seed: bytes
    asked_at: float
    foreseen: bool = False
    by_owners: bool = False
    opened: dict[int, OpenedInput] = field(default_factory=dict)
    reducer_tried: bool = False
    owners_tried: bool = False
    overdue: bool = False
    working: bool = False
    finding: Finding | None = None

    @property
    def conclusive(self) -> bool:
        """Whether we have recomputed opened leaves, with any finding."""
        return self.finding is not None and self.finding is not Finding.UNOPENED


@dataclass(slots=True)
class SpotChecks:
    """Our inspections of the results that we hold."""

    core: Core
    group: Group
    timeline: Timeline
    exchange: Exchange
    refutations: Refutations
    cases: dict[Slot, CheckedResult] = field(default_factory=dict)

    # -- findings

    def settled(self, partition: int) -> bool:
        """Whether our inspection of a partition's current result is over, or not needed."""
        held = self.exchange.held_of(partition)
        if held is None or self._needs_no_look(held):
            return True
        case = self._case(partition)
        return case is not None and (case.overdue or case.finding is not None)

    @property
    def doubts(self) -> tuple[int, ...]:
        """Partitions of whose current result we are not convinced.

        A result still under inspection is doubted if most others are done: its reducer may be late on purpose. If most
        are not done, all are late, and we go on inspecting until we vote (`convinced`).
        """
        doubtful = self._found(Finding.DOUBTFUL, Finding.UNOPENED)
        cases = {partition: self._case(partition) for partition in range(self.group.partitions)}
        overdue = [p for p, case in cases.items() if case and case.overdue and case.finding is None]
        running = [p for p in cases if not self.settled(p)]
        seen = sum(case is not None and case.conclusive for case in cases.values())
        return tuple(sorted({*doubtful, *overdue, *(running if len(running) <= seen else ())}))

    def convinced(self, held: HeldResult) -> bool | None:
        """Return whether we know that a result follows from its inputs; None while we may still find out."""
        if held.reducer == self.core.me:
            return True
        case = self.cases.get((held.result.partition, held.result.turn))
        if case is None or (case.finding is None and not case.overdue):
            return None
        return case.finding is Finding.CONFIRMED and not case.foreseen

    @property
    def accused(self) -> tuple[int, ...]:
        """Partitions whose current result we have refuted ourselves."""
        return self._found(Finding.REFUTED)

    @property
    def dropped(self) -> tuple[int, ...]:
        """Partitions whose current result was made without our committed input."""
        member = None if self.exchange.inputs is None else self.exchange.inputs.index(self.core.me)
        held = enumerate(self.exchange.held())
        return tuple(p for p, one in held if member is not None and one and member not in one.result.included)

    def _found(self, *findings: Finding) -> tuple[int, ...]:
        cases = ((partition, self._case(partition)) for partition in range(self.group.partitions))
        return tuple(partition for partition, case in cases if case is not None and case.finding in findings)

    def _case(self, partition: int) -> CheckedResult | None:
        return self.cases.get((partition, self.exchange.turn_of(partition)))

    def _needs_no_look(self, held: HeldResult) -> bool:
        """Whether inspection is needless: we reduced it ourselves, or know already that it is false."""
        return held.reducer == self.core.me or held.statement.digest in self.refutations.proven

    # -- inspection

    def decide(self, gone: Set[PeerId], now: float) -> list[Action]:
        """Inspect new results, and pass over peers that do not open; also for results that are being reduced again."""
        if self.core.me not in self.group.voters:
            return self.refutations.examine()
        actions: list[Action] = []
        for slot, held in self.exchange.results.items():
            if slot not in self.cases and not self._needs_no_look(held):
                case = self._begin(held, now)
                actions += self._ask(case, own=case.by_owners)
        for case in self.cases.values():
            if case.finding is None and not (case.working or case.overdue or self._needs_no_look(case.held)):
                actions += self._hurry(case, gone, now)
        return actions + self.refutations.examine()

    def _hurry(self, case: CheckedResult, gone: Set[PeerId], now: float) -> list[Action]:
        if now >= self.timeline.at(SECOND_PROPOSE_SHARE):  # to inspect any longer would withhold our vote from others
            case.overdue = True
            return []
        late = now >= case.asked_at + OPEN_SHARE * self.timeline.deadline_seconds
        lost = case.held.reducer in gone and not case.by_owners
        if late and not (lost or case.by_owners):
            self.exchange.waits.miss(OPENING, {case.held.reducer})
        return self._pass_over(case, now) if late or lost else []

    def _begin(self, held: HeldResult, now: float) -> CheckedResult:
        slot = (held.result.partition, held.result.turn)
        nonces = self.exchange.nonces
        tardy = held.reducer in self.exchange.waits.hurried(OPENING)
        seed = seed_of(nonces.joined, *slot)
        self.cases[slot] = case = CheckedResult(held, seed, now, foreseen=nonces.all_shown, by_owners=tardy)
        return case

    def _ask(self, case: CheckedResult, own: bool) -> list[Action]:
        """Ask the reducer for all inputs, or the owners for their `own`, unless we recomputed from these before."""
        assert self.exchange.inputs is not None
        peers, result = self.exchange.inputs.peers, case.held.result
        if own:
            owners = self._lacking(case) if case.by_owners and not case.owners_tried else []
            asked = [peers[member] for member in owners]
        else:
            asked = [] if case.reducer_tried else [case.held.reducer]
        place = (self.group.key.roster_id, result.partition, result.turn)
        note = OpenNote(group=place[0], partition=place[1], turn=place[2], seed=case.seed, own=own)
        return [Send(peer, note) for peer in asked]

    def _asked_for(self, case: CheckedResult) -> frozenset[int]:
        """Return the included inputs except ours."""
        assert self.exchange.inputs is not None
        return frozenset(case.held.result.included) - {self.exchange.inputs.index(self.core.me)}

    def _lacking(self, case: CheckedResult) -> list[int]:
        """Return the members whose inputs are included but that have not opened them for us."""
        return sorted(self._asked_for(case) - case.opened.keys())

    def _pass_over(self, case: CheckedResult, now: float) -> list[Action]:
        """Ask the inputs' owners, as the reducer has not opened; if the owners have not either, a doubt remains."""
        case.overdue = case.by_owners
        if case.overdue:
            return []
        case.by_owners, case.asked_at = True, now
        return self._ask(case, own=True)

    def on_opening(self, sender: PeerId, note: OpeningNote) -> list[Action]:
        """Take opened leaves; once all are here, start to recompute them."""
        case, inputs = self.cases.get((note.partition, note.turn)), self.exchange.inputs
        if case is None or inputs is None or note.seed != case.seed:
            return []
        if sender == case.held.reducer:
            self.exchange.waits.note_arrival(OPENING, sender)  # even if late: on a slow link it cannot do more
        if case.finding is not None:
            return []
        opened = {one.member: one for one in note.inputs}
        whole = not case.by_owners or opened.keys() >= self._asked_for(case)
        if sender == case.held.reducer and whole and not (case.reducer_tried or case.working):
            case.reducer_tried = True
            return self._recompute(case, opened)
        own = inputs.index(sender)
        shown = None if own is None else opened.get(own)
        if shown is not None and own in self._lacking(case) and not is_long(shown, len(self.group.members)):
            case.opened[shown.member] = shown
        return self._recompute_owners(case)

    def _recompute(self, case: CheckedResult, opened: Mapping[int, OpenedInput]) -> list[Action]:
        case.working = True
        shown = tuple(one for member, one in opened.items() if member in self._asked_for(case))
        return [inspection_of(self.exchange, case.held, self.core.me, shown, seed=case.seed)]

    def _recompute_owners(self, case: CheckedResult) -> list[Action]:
        """Recompute from the owners' leaves once all owners have opened."""
        if case.working or case.owners_tried or not case.by_owners or self._lacking(case):
            return []
        case.owners_tried = True
        return self._recompute(case, case.opened)

    def on_inspected(self, event: Inspected, now: float) -> list[Action]:
        """Take the finding of a recomputation; tell all members if it refutes the result."""
        case = self.cases.get((event.partition, event.turn))
        if case is None or not case.working or event.result != case.held.statement.digest:
            return []
        case.working = False
        if event.finding is Finding.UNOPENED and not (case.reducer_tried and case.owners_tried):
            case.overdue = case.overdue or case.owners_tried
            return self._recompute_owners(case) if case.by_owners else self._pass_over(case, now)
        case.finding = event.finding
        case.opened.clear()
        return [] if event.refutation is None else self.refutations.tell(case.held, event.refutation)

    def remind(self) -> list[Action]:
        """Ask again for openings that are late."""
        waiting = [case for case in self.cases.values() if case.finding is None and not case.working]
        return [action for case in waiting for own in (False, True) for action in self._ask(case, own)]
