"""The reducer's duty: gather one partition of every contribution, then have it merged (design §6.2 step 6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.actions import Reduce
from coordinator.group.group import Group, InputSet
from coordinator.round.stage_waits import StageWaits
from dht.identity import PeerId


@dataclass(slots=True)
class ReducerDuty:
    """One partition in one turn. Inputs that are missing or do not match their commitment are left out.

    `needed` is the least number of inputs, and of inputs with weight. `hopeless` are inputs not worth waiting for;
    they count if they come all the same.
    """

    group: Group
    inputs: InputSet
    partition: int
    turn: int
    needed: tuple[int, int]
    deadline: float
    patience: StageWaits
    arrived: set[int] = field(default_factory=set)
    hopeless: set[int] = field(default_factory=set)
    started: bool = False

    def arrive(self, member: int, root: bytes | None) -> None:
        """Take a part; it counts if its bytes match the member's commitment."""
        if root == self.inputs.commits[member].part_roots[self.partition]:
            self.arrived.add(member)
        else:
            self.hopeless.add(member)

    def lose(self, peer: PeerId) -> None:
        """Stop waiting for a contributor that the transport lost: its part will not come in time."""
        member = self.inputs.index(peer)
        if member is not None and member not in self.arrived:
            self.hopeless.add(member)

    def missing(self) -> list[PeerId]:
        """Return the contributors whose part may still come."""
        outstanding = set(range(len(self.inputs.peers))) - self.arrived - self.hopeless
        return [self.inputs.peers[member] for member in sorted(outstanding)]

    def decide(self, now: float) -> Reduce | None:
        """Reduce once all parts that can come are here, or time is up and enough are here."""
        if self.started or self.patience.lasts(frozenset(self.missing()), self.deadline, now):
            return None
        if len(self.arrived) < self._needed:
            return None
        self.started = True
        return Reduce(
            key=self.group.key,
            partition=self.partition,
            partitions=self.group.partitions,
            turn=self.turn,
            inputs=self.inputs.claimed(self.partition, self.arrived),
            inputs_min=self._needed,
            members=self.inputs.members,
        )

    @property
    def _needed(self) -> int:
        """Least number of inputs: `min_group`, and enough of them with weight (design §6.2 step 6, docs/adr/0038)."""
        least, counted = self.needed
        weightless = len(self.arrived) - self.group.counted(self.inputs.peers[member] for member in self.arrived)
        return max(least, counted + weightless)
