"""Step 8 of a round: one member's check, its report to the proposer on the results that it holds (design §6.2)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.core.timeline import CHECK_SHARE, RECHECK_SHARE, Timeline
from coordinator.group.group import Group, InputSet
from coordinator.round.exchange import Exchange
from coordinator.round.spot_checks import SpotChecks
from coordinator.wire.messages import Check
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class OwnCheck:
    """Our check of the first results, and a second one after a redo."""

    core: Core
    group: Group
    timeline: Timeline
    exchange: Exchange
    inspection: SpotChecks
    statement: Statement | None = None
    told: set[PeerId] = field(default_factory=set)
    said_in: int = -1  # phase of `statement`

    def decide(self, inputs: InputSet, gone: Set[PeerId], proposers: tuple[PeerId, ...], now: float) -> list[Action]:
        """Sign the check once it can be complete or time is up; send it to the proposers that do not have it yet."""
        phase = self.exchange.phase
        if phase > self.said_in and self._is_due(phase, gone, now):
            self.statement, self.said_in, self.told = self._sign(phase, inputs), phase, set()
        if self.statement is None:
            return []
        untold = [peer for peer in proposers if peer not in self.told]
        self.told.update(untold)
        return [Send(peer, self.statement) for peer in untold]

    def repeat(self) -> list[Action]:
        """Send the check again to all that we sent it to, as it may be lost."""
        return [] if self.statement is None else [Send(peer, self.statement) for peer in sorted(self.told)]

    def _is_due(self, phase: int, gone: Set[PeerId], now: float) -> bool:
        end = self.timeline.at(RECHECK_SHARE if phase else CHECK_SHARE)
        missing = (partition for partition, held in enumerate(self.exchange.held()) if held is None)
        awaited = frozenset(self.group.reducer(partition, self.exchange.redone) for partition in missing) - gone
        if self.exchange.waits.at(("result", phase), self.timeline).lasts(awaited, end, now):
            return False
        return now >= end or all(self.inspection.settled(partition) for partition in range(self.group.partitions))

    def _sign(self, phase: int, inputs: InputSet) -> Statement:
        held = self.exchange.held()
        complaints = tuple(partition for partition, one in enumerate(held) if one is None)
        contributes = inputs.index(self.core.me) is not None
        body = Check(
            phase=phase,
            results=tuple(None if one is None else one.statement.digest for one in held),
            complaints=complaints,
            nonce=self.exchange.nonces.show(phase) if contributes and not complaints else None,
            dropped=self.inspection.dropped,
            doubts=self.inspection.doubts,
            accused=self.inspection.accused,
        )
        return self.core.sign_statement("check", self.group.key, inputs.digest, body)
