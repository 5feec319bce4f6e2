"""One cell as one of its members lives it: commit, scatter, reduce, and what that comes to at the leader (ADR 0011).

The steps of a round up to its results, by the same `Exchange`. The leader alone gets the results, has the reducers open
what they merged, and reduces again itself whatever is missing, false or doubtful. Sans-IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.cells.cell_group import CellGroup
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Apply, PartitionResult, Send
from coordinator.core.context import Core
from coordinator.core.events import Encoded, Inspected, Opened, Reduced
from coordinator.core.timeline import BUNDLE_SHARE, CHECK_SHARE, RECHECK_SHARE, RETRY_SHARE, Timeline
from coordinator.group.group import read_commit
from coordinator.round.cell_input import CellInput
from coordinator.round.early_messages import EarlyMessages
from coordinator.round.exchange import Exchange
from coordinator.round.opening_server import OpeningServer
from coordinator.round.outcome import contributor
from coordinator.round.refutations import Refutations
from coordinator.round.spot_checks import SpotChecks
from coordinator.wire.inputs import bundle_of
from coordinator.wire.messages import AgainNote, CellYield, NeedNote, PartNote
from coordinator.wire.openings import OpeningNote, OpenNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

NEEDS_INPUTS = frozenset({"result"})
SLACK_SHARE = 0.05  # of a round's deadline: more patience than what the others took


@dataclass(slots=True)
class Cell:
    """`brought`: what a cell of ours brings into this one; None: our own outer gradient."""

    core: Core
    chain: Chain
    group: CellGroup
    began: float
    timeline: Timeline = field(init=False)
    exchange: Exchange = field(init=False)
    early: EarlyMessages = field(init=False)
    opener: OpeningServer = field(init=False)
    refutations: Refutations = field(init=False)
    inspection: SpotChecks = field(init=False)
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    bundle: Statement | None = None
    gone: set[PeerId] = field(default_factory=set)
    started: bool = False
    abstains: bool = False  # we lead it, and bring nothing of our own
    brought: CellInput | None = None
    harvest: CellInput | None = None
    failed: bool = False
    retry_at: float = field(init=False)
    most_at: dict[str, float] = field(default_factory=dict)  # when two thirds of what we wait for had come

    def __post_init__(self) -> None:
        self.timeline = self._timeline(self.commit_by)
        self.exchange = Exchange(self.core, self.chain, self.group, self.timeline)
        self.early = EarlyMessages(self.exchange, NEEDS_INPUTS)
        self.opener = OpeningServer(self.core, self.group, self.exchange)
        self.refutations = Refutations(self.core, self.group, self.exchange)
        self.inspection = SpotChecks(self.core, self.group, self.timeline, self.exchange, self.refutations)
        self.gone = set(self.core.presence.gone & set(self.group.members))
        self.retry_at = self.began + RETRY_SHARE * self._deadline_seconds

    # -- times

    @property
    def _deadline_seconds(self) -> float:
        return self.core.pace.round_seconds

    def _timeline(self, bundled_at: float) -> Timeline:
        return Timeline(bundled_at - BUNDLE_SHARE * self._deadline_seconds, self._deadline_seconds)

    @property
    def commit_by(self) -> float:
        """Who has not committed by then is left out; a cell of leaders gives them the time that theirs may take."""
        latest = self.began + (BUNDLE_SHARE + RECHECK_SHARE * (self.group.height - 1)) * self._deadline_seconds
        return self._patience("commits", self.began, latest, self.core.presence.step_seconds(self._silent))

    @property
    def _silent(self) -> frozenset[PeerId]:
        """Who may yet commit."""
        ourselves = {self.core.me} if self.abstains else set()
        return self.group.contributors - self.commits.keys() - self.gone - ourselves

    @property
    def result_by(self) -> float:
        """Results that are not here by then are made again."""
        bundled_at = self.timeline.at(BUNDLE_SHARE)
        return self._patience("results", bundled_at, self.timeline.at(CHECK_SHARE))

    def _patience(self, what: str, since: float, latest: float, least: float = 0.0) -> float:
        """As long again as two thirds of them took, and `least`: a silent member must not make its cell late."""
        patient_until = max(2 * self.most_at.get(what, latest) - since, since + least)
        return min(latest, patient_until + SLACK_SHARE * self._deadline_seconds)

    def _note(self, what: str, done: int, of: int, now: float) -> None:
        if 3 * done >= 2 * of:
            self.most_at.setdefault(what, now)

    def next_deadline(self, now: float) -> float:
        """When to tick next."""
        due_at = self.commit_by if self.exchange.inputs is None else self.result_by
        return min(due_at, self.retry_at) if self.leads and due_at > now else self.retry_at

    @property
    def over(self) -> bool:
        """Whether the leader has what there is to be had."""
        return self.harvest is not None or self.failed

    @property
    def leads(self) -> bool:
        return self.group.leader == self.core.me

    # -- events

    def start(self, brought: CellInput | None) -> list[Action]:
        """Ask for what we bring."""
        self.started, self.brought = True, brought
        return self.exchange.start(None if brought is None else brought.merged)

    def abstain(self) -> list[Action]:
        """Lead it without work of our own."""
        self.started = self.abstains = True
        return []

    def on_encoded(self, event: Encoded, now: float) -> list[Action]:
        claimed = event if self.brought is None else self.brought.claim(event)
        return self.exchange.on_encoded(claimed) + self.settle(now)

    def on_reduced(self, event: Reduced, now: float) -> list[Action]:
        return self.exchange.on_reduced(event) + self.settle(now)

    def on_opened(self, event: Opened) -> list[Action]:
        return self.opener.on_opened(event)

    def on_inspected(self, event: Inspected, now: float) -> list[Action]:
        return self.inspection.on_inspected(event, now) + self.settle(now)

    def on_opening(self, sender: PeerId, note: OpeningNote, now: float) -> list[Action]:
        return self.inspection.on_opening(sender, note) + self.settle(now)

    def answer(self, sender: PeerId, need: NeedNote | OpenNote) -> list[Action]:
        """Serve a member; only the leader looks into results."""
        if sender not in self.group.members:
            return []
        if isinstance(need, NeedNote):
            return self.exchange.answer(sender, need)
        return self.opener.answer(sender, need) if sender == self.group.leader else []

    def lose(self, peer: PeerId, now: float) -> list[Action]:
        """The transport lost a member: wait for nothing of its."""
        if peer not in self.group.members:
            return []
        self.gone.add(peer)
        self.exchange.lose(peer)
        return self.settle(now)

    def receive(self, sender: PeerId, message: Statement | PartNote, root: bytes | None, now: float) -> list[Action]:
        """A statement or part of this cell; raises PeerError if it does not belong or is false."""
        if sender not in self.group.members:
            raise PeerError("comes from somebody outside the cell")
        self.gone.discard(sender)
        if self.early.holds_back(sender, message, root):
            return []
        actions = self._dispatch(sender, message, root, now)
        return actions + self.settle(now)

    def _dispatch(self, sender: PeerId, message: Statement | PartNote, root: bytes | None, now: float) -> list[Action]:
        if isinstance(message, PartNote):
            self.exchange.on_part(sender, message, root)
        elif message.context.kind == "commit" and self.leads and self.bundle is None:
            read_commit(message, self.group, self.core.codec, self.core.rules)
            self.commits.setdefault(sender, message)
        elif message.context.kind == "bundle" and self.exchange.inputs is None:
            self.timeline = self._timeline(now)
            self.exchange.timeline = self.inspection.timeline = self.timeline
            return self.exchange.on_bundle(message, self.gone) + self.early.replay(self.receive, now)
        elif message.context.kind == "result":
            self.exchange.on_result(message, root)
        return []

    def on_again(self, sender: PeerId, note: AgainNote, now: float) -> list[Action]:
        """The leader reduces some partitions itself: give it our parts of them."""
        known = self.exchange.inputs is not None and max(note.partitions) < self.group.partitions
        if sender != self.group.leader or not known or self.exchange.redone:
            return []
        return (
            self.exchange.on_redo(note.partitions, self.gone) + self.early.replay(self.receive, now) + self.settle(now)
        )

    # -- the leader's part

    def settle(self, now: float) -> list[Action]:
        """Do everything that has become possible."""
        if self.over:
            return []
        actions = self._bundle(now) if self.leads and self.bundle is None else []
        actions += self.exchange.decide(now)
        if self.leads and self.exchange.inputs is not None:
            actions += self.inspection.decide(self.gone, now) + self._conclude(now)
        return actions

    def _bundle(self, now: float) -> list[Action]:
        """The input set, once everybody has committed or time is up."""
        self._note("commits", len(self.commits), len(self.group.contributors), now)
        if self._silent and now < self.commit_by:
            return []
        if len(self.commits) < self.core.pace.min_group:
            self.failed = now >= self.commit_by
            return []
        body = bundle_of(self.group.members, self.group.expected, self.commits)
        self.bundle = self.core.say("bundle", self.group.key, self.group.key.roster_id, body)
        return list(self.core.to_all(self.group.members, self.bundle))

    def _conclude(self, now: float) -> list[Action]:
        """Harvest what is complete and has been looked into; else reduce again, once, what is not."""
        bad = self._not_good()
        if not bad:
            self.harvest = self._make_harvest()
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
        """Partitions without a result of which we have convinced ourselves."""
        held = enumerate(self.exchange.held())
        lacking = {p for p, one in held if one is None or not self.inspection.settled(p)}
        return lacking | self.refutations.partitions | set(self.inspection.doubts)

    def _pending(self, bad: set[int]) -> bool:
        """Whether some of these may become good by waiting."""
        held = self.exchange.held()
        return any(
            self.group.reducer(p) not in self.gone if held[p] is None else not self.inspection.settled(p) for p in bad
        )

    def _make_harvest(self) -> CellInput:
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
        """Do what is due; repeat what may have got lost."""
        actions = self.settle(now)
        if now < self.retry_at or self.over:
            return actions
        self.retry_at = now + RETRY_SHARE * self._deadline_seconds
        return actions + self.exchange.remind(results=self.leads) + (self._remind_members() if self.leads else [])

    def _remind_members(self) -> list[Action]:
        """The roster, or the bundle, to whom we still expect something of."""
        if self.bundle is None:
            return [Send(peer, self.group.statement) for peer in sorted(self._silent - {self.core.me})]
        late = {self.group.reducer(p) for p, held in enumerate(self.exchange.held()) if held is None}
        return [Send(peer, self.bundle) for peer in sorted(late - {self.core.me})]
