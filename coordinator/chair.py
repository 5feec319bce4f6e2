"""The chair of a group: the leader, or the member that proposes once if the leader is silent (design §6.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.actions import Action
from coordinator.core import Core
from coordinator.group import Group, InputSet
from coordinator.messages import Bundle, Proposal, Redo
from coordinator.outcome import Checked, agreed_results, is_void, partitions_to_redo
from coordinator.timeline import BUNDLE_SHARE, CHECK_SHARE, PROPOSE_SHARE, RETRY_SHARE, Timeline
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class Chair:
    """Collects commitments into the bundle (leader only), then checks into a redo or a proposal."""

    core: Core
    group: Group
    timeline: Timeline
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    bundle: Statement | None = None
    checks: dict[PeerId, Checked] = field(default_factory=dict)
    redo: Statement | None = None
    redone: tuple[int, ...] = ()
    proposal: Statement | None = None

    @property
    def leads(self) -> bool:
        return self.group.leader == self.core.me

    @property
    def phase(self) -> int:
        return 1 if self.redo is not None else 0

    def add_commit(self, statement: Statement) -> None:
        """A valid commitment of a contributor; late ones are not part of the round."""
        if self.bundle is None:
            self.commits.setdefault(PeerId(statement.sender), statement)

    def add_check(self, checked: Checked) -> None:
        known = self.checks.get(checked.sender)
        if known is None or known.check.phase < checked.check.phase or len(known.check.complaints):
            self.checks[checked.sender] = checked

    def decide(self, inputs: InputSet | None, gone: frozenset[PeerId], now: float) -> list[Action]:
        """Send the bundle, a redo or the proposal as soon as it is due."""
        if self.bundle is None and inputs is None:
            return self._bundle(gone, now) if self.leads else []
        if inputs is None or self.proposal is not None:
            return []
        return self._propose(inputs, gone, now)

    def _bundle(self, gone: frozenset[PeerId], now: float) -> list[Action]:
        waiting = self.group.contributors - self.commits.keys() - gone
        if waiting and now < self.timeline.at(BUNDLE_SHARE):
            return []
        if len(self.commits) < self.core.pace.min_group:
            return []
        commits = tuple(self.commits[peer] for peer in self.group.members if peer in self.commits)
        self.bundle = self.core.say("bundle", self.group.key, self.group.key.roster_id, Bundle(commits=commits))
        return list(self.core.to_all(self.group.members, self.bundle))

    def _propose(self, inputs: InputSet, gone: frozenset[PeerId], now: float) -> list[Action]:
        checks = [checked for checked in self.checks.values() if checked.check.phase == self.phase]
        if self.redo is None and self.leads:
            again = partitions_to_redo(self.group, checks)
            if again:
                return self._order_redo(inputs, again, checks)
        waiting = self.group.voters - {checked.sender for checked in checks} - gone
        share = CHECK_SHARE + RETRY_SHARE if self.redo is None else PROPOSE_SHARE
        if waiting and now < self.timeline.at(share):
            return []
        if not self.group.more_than_two_thirds(frozenset(checked.sender for checked in checks)):
            return []
        agreed = agreed_results(self.group, checks)
        if is_void(agreed):
            return []
        ordered = sorted(checks, key=lambda checked: checked.sender)
        proposal = Proposal(results=agreed, checks=tuple(checked.statement for checked in ordered))
        self.proposal = self.core.say("proposal", self.group.key, inputs.digest, proposal)
        return list(self.core.to_all(self.group.members, self.proposal))

    def _order_redo(self, inputs: InputSet, again: tuple[int, ...], checks: list[Checked]) -> list[Action]:
        self.redone = again
        body = Redo(partitions=again, checks=tuple(checked.statement for checked in checks))
        self.redo = self.core.say("redo", self.group.key, inputs.digest, body)
        return list(self.core.to_all(self.group.members, self.redo))

    def remind(self, voted: frozenset[PeerId]) -> list[Action]:
        """Send again what silent members may have missed."""
        actions: list[Action] = []
        for member in self.group.members:
            if member == self.core.me:
                continue
            if self.proposal is not None:
                if member not in voted:
                    actions += self.core.to_all((member,), self.proposal)
                continue
            for statement in self._missed_by(member):
                actions += self.core.to_all((member,), statement)
        return actions

    def _missed_by(self, member: PeerId) -> list[Statement]:
        if not self.leads:
            return []
        if self.bundle is None:
            silent = member in self.group.contributors and member not in self.commits
            return [self.group.statement] if silent else []
        checked = self.checks.get(member)
        if self.redo is not None and (checked is None or checked.check.phase == 0):
            return [self.group.statement, self.bundle, self.redo]
        return [self.group.statement, self.bundle] if checked is None else []
