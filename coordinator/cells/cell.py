"""One cell, as one of its members runs it: commit, scatter, reduce, and the leader's merged result (ADR 0011).

It reduces jointly, like a group. Only the leader gets the results. It has the reducers open the inputs that they
merged, and reduces missing, false or doubtful partitions again itself. Sans-IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.cells.cell_group import CellGroup
from coordinator.core.actions import Action, Apply, PartitionResult, Send
from coordinator.core.timeline import BUNDLE_SHARE, CHECK_SHARE, RECHECK_SHARE, RETRY_SHARE, Timeline
from coordinator.group.group import read_commit
from coordinator.round.cell_input import CellInput
from coordinator.round.joint_reduction import JointReduction
from coordinator.round.outcome import contributor
from coordinator.wire.inputs import bundle_of
from coordinator.wire.messages import AgainNote, CellYield
from dht.identity import PeerId
from dht.statement import Statement

NEEDS_INPUTS = frozenset({"result"})
SLACK_SHARE = 0.05  # extra time for the slower members, as a share of a round's deadline


@dataclass(slots=True)
class Cell(JointReduction):
    """A member's part in a cell. `cell_input` is the merged work of the cell, at its leader."""

    group: CellGroup
    timeline: Timeline = field(init=False)
    began: float = field(kw_only=True)
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    bundle: Statement | None = None
    started: bool = False
    abstains: bool = False  # whether we lead it without work of our own
    cell_input: CellInput | None = None
    failed: bool = False
    retry_at: float = field(init=False)
    most_at: dict[str, float] = field(default_factory=dict)  # when two thirds of the commitments or results had come

    def __post_init__(self) -> None:
        self.timeline = self._timeline(self.commit_by)
        self.compose(NEEDS_INPUTS)
        self.gone = dict.fromkeys(self.core.presence.gone.intersection(self.group.members), self.began)
        self.retry_at = self.began + RETRY_SHARE * self._deadline_seconds

    # -- times

    @property
    def _deadline_seconds(self) -> float:
        return self.core.pace.round_seconds

    def _timeline(self, bundled_at: float) -> Timeline:
        return Timeline(bundled_at - BUNDLE_SHARE * self._deadline_seconds, self._deadline_seconds)

    @property
    def commit_by(self) -> float:
        """Latest time for commitments; a cell of leaders waits for the cells below it, too."""
        latest = self.began + (BUNDLE_SHARE + RECHECK_SHARE * (self.group.height - 1)) * self._deadline_seconds
        return self._patience("commits", self.began, latest, self.core.step_seconds(self._silent))

    @property
    def _silent(self) -> frozenset[PeerId]:
        """Members that may still commit."""
        ourselves = {self.core.me} if self.abstains else set()
        return self.group.contributors - self.commits.keys() - self.gone.keys() - ourselves

    @property
    def result_by(self) -> float:
        """Time after which the leader reduces missing results again."""
        bundled_at = self.timeline.at(BUNDLE_SHARE)
        return self._patience("results", bundled_at, self.timeline.at(CHECK_SHARE))

    def _patience(self, what: str, since: float, latest: float, least: float = 0.0) -> float:
        """Return when to stop waiting for silent members: after twice the time that two thirds took, or `least`."""
        patient_until = max(2 * self.most_at.get(what, latest) - since, since + least)
        return min(latest, patient_until + SLACK_SHARE * self._deadline_seconds)

    def _note(self, what: str, done: int, of: int, now: float) -> None:
        if 3 * done >= 2 * of:
            self.most_at.setdefault(what, now)

    def next_deadline(self, now: float) -> float:
        """Return when to tick next."""
        due_at = self.commit_by if self.exchange.inputs is None else self.result_by
        return min(due_at, self.retry_at) if self.leads and due_at > now else self.retry_at

    @property
    def over(self) -> bool:
        """Whether the leader has the merged result, or the cell has failed."""
        return self.cell_input is not None or self.failed

    @property
    def leads(self) -> bool:
        return self.group.leader == self.core.me

    # -- events

    def start(self, from_cell: CellInput | None) -> list[Action]:
        """Begin with our contribution: our own work, or the merged work `from_cell` from the cell below."""
        self.started, self.from_cell = True, from_cell
        return self.contribute()

    def abstain(self) -> list[Action]:
        """Lead the cell without work of our own."""
        self.started = self.abstains = True
        return []

    def hear(self, sender: PeerId, statement: Statement, now: float) -> list[Action]:
        """Take a commitment, at the leader, or the leader's bundle, from which the deadlines count."""
        if statement.context.kind == "commit" and self.leads and self.bundle is None:
            read_commit(statement, self.group, self.core.codec, self.core.rules)
            self.commits.setdefault(sender, statement)
        elif statement.context.kind == "bundle" and self.exchange.inputs is None:
            self.timeline = self._timeline(now)
            self.exchange.timeline = self.inspection.timeline = self.timeline
            return self.exchange.on_bundle(statement, self.gone.keys())
        return []

    def shown_again(self) -> list[Action]:
        """Repeat our commitment: the leader sent the roster again, so it has not received it."""
        return self.exchange.remind() if self.exchange.inputs is None else []

    def on_again(self, sender: PeerId, note: AgainNote, now: float) -> list[Action]:
        """Send the leader our parts of the partitions that it reduces again itself."""
        known = self.exchange.inputs is not None and max(note.partitions) < self.group.partitions
        if sender != self.group.leader or not known or self.exchange.redone:
            return []
        actions = self.exchange.on_redo(note.partitions, self.gone.keys())
        return actions + self.early_messages.replay(self.receive, now) + self.settle(now)

    # -- the leader's part

    def settle(self, now: float) -> list[Action]:
        """Do everything that has become possible."""
        if self.over:
            return []
        actions = self._bundle(now) if self.leads and self.bundle is None else []
        actions += self.exchange.decide(now)
        if self.leads and self.exchange.inputs is not None:
            actions += self.inspection.decide(self.gone.keys(), now) + self._conclude(now)
        return actions

    def _bundle(self, now: float) -> list[Action]:
        """Fix the input set once all members have committed or time is up."""
        self._note("commits", len(self.commits), len(self.group.contributors), now)
        if self._silent and now < self.commit_by:
            return []
        if len(self.commits) < self.core.pace.min_group:
            self.failed = now >= self.commit_by
            return []
        body = bundle_of(self.group.members, self.group.expected, self.commits)
        self.bundle = self.core.sign_statement("bundle", self.group.key, self.group.key.roster_id, body)
        return list(self.core.to_all(self.group.members, self.bundle))

    def _conclude(self, now: float) -> list[Action]:
        """Make the cell's input from complete, checked results; else have the bad partitions reduced again, once."""
        bad = self._not_good()
        if not bad:
            self.cell_input = self._make_cell_input()
            return []
        if self.exchange.redone:
            self.failed = now >= self.timeline.at(RECHECK_SHARE)
            return []
        self._note("results", self.group.partitions - len(bad), self.group.partitions, now)
        if self._pending(bad) and now < self.result_by:
            return []
        note = AgainNote(group=self.group.key.roster_id, partitions=tuple(sorted(bad)))
        return list(self.core.to_all(self.group.members, note))

    def _not_good(self) -> set[int]:
        """Return the partitions without a result that we have checked and found good."""
        held = enumerate(self.exchange.held())
        lacking = {p for p, one in held if one is None or not self.inspection.settled(p)}
        return lacking | self.refutations.partitions | set(self.inspection.doubts)

    def _pending(self, bad: set[int]) -> bool:
        """Whether some of these partitions may still become good if we wait."""
        held = self.exchange.held()
        return any(
            self.group.reducer(p) not in self.gone if held[p] is None else not self.inspection.settled(p) for p in bad
        )

    def _make_cell_input(self) -> CellInput:
        inputs = self.exchange.inputs
        assert inputs is not None
        results = [held.result for held in self.exchange.held() if held is not None]
        members = sorted(set[int]().union(*(result.included for result in results)))
        contributors = tuple(contributor(inputs.peers[one], inputs.commits[one]) for one in members)
        applied = tuple(PartitionResult(one.root, one.included) for one in results)
        merged = Apply(self.group.key, applied, inputs.whole(), inputs.members)
        return CellInput(CellYield(contributors=contributors), merged)

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Do what is due; repeat messages that may be lost."""
        actions = self.settle(now)
        if now < self.retry_at or self.over:
            return actions
        self.retry_at = now + RETRY_SHARE * self._deadline_seconds
        if self.exchange.inputs is not None:
            actions += self.exchange.remind(results=self.leads)
        return actions + (self._remind_members() if self.leads else [])

    def _remind_members(self) -> list[Action]:
        """Repeat the roster to members that have not committed, or the bundle to reducers whose results are missing."""
        if self.bundle is None:
            return [Send(peer, self.group.statement) for peer in sorted(self._silent - {self.core.me})]
        late = {self.group.reducer(p) for p, held in enumerate(self.exchange.held()) if held is None}
        return [Send(peer, self.bundle) for peer in sorted(late - {self.core.me})]
