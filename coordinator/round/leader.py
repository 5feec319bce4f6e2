"""The leader's role in a group; the second proposer takes it, once, if the leader is silent (design §6.2)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.chain.certificate import is_void
from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.core.timeline import BUNDLE_SHARE, PROPOSE_SHARES, REDO_SHARE, REFUTE_SHARE, Timeline
from coordinator.group.group import Group, InputSet
from coordinator.round.exchange import Exchange
from coordinator.round.outcome import Checked, agreed_results, missed_partitions, partitions_to_redo
from coordinator.round.refutations import Refutations
from coordinator.round.stage_waits import StageWaits
from coordinator.wire.inputs import bundle_of
from coordinator.wire.messages import Proposal, Redo
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class Leader:
    """The leader's work: a bundle from commitments (leader only), then a redo or a proposal from checks."""

    core: Core
    group: Group
    timeline: Timeline
    exchange: Exchange
    refutations: Refutations
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    bundle: Statement | None = None
    checks: dict[PeerId, Checked] = field(default_factory=dict)  # the newest check of each member
    redo: Statement | None = None
    proposal: Statement | None = None
    for_commits: StageWaits = field(init=False)
    announced_at: float | None = None  # when we first waited for a refutation that a check announced

    def __post_init__(self) -> None:
        self.for_commits = StageWaits(self.timeline, self.group.probation)

    @property
    def leads(self) -> bool:
        return self.group.leader == self.core.me

    def add_commit(self, statement: Statement) -> None:
        """Add a contributor's valid commitment; after the bundle it is too late for the round."""
        if self.bundle is None:
            self.commits.setdefault(PeerId(statement.sender), statement)

    def add_check(self, checked: Checked) -> None:
        """Add a member's check; ignore one from before a redo if the one after it has come already."""
        known = self.checks.get(checked.sender)
        if known is None or known.check.phase < checked.check.phase:
            self.checks[checked.sender] = checked
            self.exchange.waits.note_arrival(("check", checked.check.phase), checked.sender)

    def decide(self, phase: int, gone: Set[PeerId], now: float) -> list[Action]:
        """Send the bundle, a redo or the proposal as soon as it is due; `phase` is 1 once a redo has been ordered."""
        inputs = self.exchange.inputs
        if self.bundle is None and inputs is None:
            return self._make_bundle(gone, now) if self.leads else []
        if inputs is None or self.proposal is not None:
            return []
        checks = [checked for checked in self.checks.values() if checked.check.phase == phase]
        if self.leads and phase == 0:
            if self.redo is not None:
                return []  # the redo is on its way to us
            again = partitions_to_redo(self.group, inputs, checks, self.exchange.known_results())
            again |= self.refutations.partitions
            urgent = self._most_checked(checks) and bool(missed_partitions(self.group, checks))
            if again and checks and (urgent or self._heard_enough(checks, phase, REDO_SHARE, gone, now)):
                return self._order_redo(inputs, tuple(sorted(again)), checks)
        enough = self._heard_enough(checks, phase, PROPOSE_SHARES[phase], gone, now)
        return self._propose(inputs, checks) if enough else []

    def _most_checked(self, checks: list[Checked]) -> bool:
        """Whether more than two thirds of the voters have checked.

        A partition that all honest members miss is then missed in the checks of more than a third.
        """
        return self.group.more_than_two_thirds(frozenset(checked.sender for checked in checks))

    def _heard_enough(self, checks: list[Checked], phase: int, share: float, gone: Set[PeerId], now: float) -> bool:
        """Whether all have checked, or time is up, and we have examined all refutations that they announced.

        We wait only once, and briefly, for a refutation that does not come: any member can announce one.
        """
        checkers = frozenset(checked.sender for checked in checks)
        awaited, end = self.group.voters - checkers - gone, self.timeline.at(share)
        if self.exchange.waits.at(("check", phase), self.timeline).lasts(awaited, end, now):
            return False
        announced = [one for one in checks if one.check.accused and not self.refutations.resolved(one.sender)]
        if not announced and not self.refutations.examined:
            return True
        self.announced_at = now if self.announced_at is None else self.announced_at
        return now >= self.announced_at + REFUTE_SHARE * self.timeline.deadline_seconds

    def _make_bundle(self, gone: Set[PeerId], now: float) -> list[Action]:
        awaited = self.group.contributors - self.commits.keys() - gone
        if self.for_commits.lasts(awaited, self.timeline.at(BUNDLE_SHARE), now):
            return []
        if not self.exchange.suffices(self.commits):
            return []
        body = bundle_of(self.group.members, self.group.expected, self.commits)
        self.bundle = self.core.sign_statement("bundle", self.group.key, self.group.key.roster_id, body)
        return list(self.core.to_all(self.group.members, self.bundle))

    def _propose(self, inputs: InputSet, checks: list[Checked]) -> list[Action]:
        if not self._most_checked(checks):
            return []
        agreed = agreed_results(self.group, checks, self.refutations.proven.keys())
        if is_void(agreed):
            return []
        ordered = sorted(checks, key=lambda checked: checked.sender)
        proposal = Proposal(results=agreed, checks=tuple(checked.statement for checked in ordered))
        self.proposal = self.core.sign_statement("proposal", self.group.key, inputs.digest, proposal)
        return self._show_refutations() + list(self.core.to_all(self.group.members, self.proposal))

    def _show_refutations(self) -> list[Action]:
        """Send all proven refutations to all members: their authors may have told only us."""
        return list(self.refutations.spread(list(self.refutations.proven.values())))

    def _order_redo(self, inputs: InputSet, again: tuple[int, ...], checks: list[Checked]) -> list[Action]:
        body = Redo(partitions=again, checks=tuple(checked.statement for checked in checks))
        self.redo = self.core.sign_statement("redo", self.group.key, inputs.digest, body)
        return self._show_refutations() + list(self.core.to_all(self.group.members, self.redo))

    def remind(self) -> list[Action]:
        """Repeat statements that silent members may have missed; from the proposal on the voters do that."""
        if self.proposal is not None:
            return []
        others = [member for member in self.group.members if member != self.core.me]
        return [Send(member, statement) for member in others for statement in self._missed_by(member)]

    def _missed_by(self, member: PeerId) -> list[Statement]:
        if not self.leads:
            return []
        if self.bundle is None:
            silent = member in self.group.contributors and member not in self.commits
            return [self.group.statement] if silent else []
        if member not in self.group.voters:
            return []  # it sends no checks, so we cannot tell whether it has the bundle
        checked = self.checks.get(member)
        if self.redo is not None and (checked is None or checked.check.phase == 0):
            return [self.group.statement, self.bundle, *self.refutations.proven.values(), self.redo]
        return [self.group.statement, self.bundle] if checked is None else []
