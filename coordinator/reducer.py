"""The duty of a reducer: gather one partition of every contribution, then have it merged (design §6.2 step 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.actions import Reduce, ReduceInput
from coordinator.group import Group, InputSet
from coordinator.messages import Commit
from coordinator.patience import Patience
from coordinator.weights import weights_of
from dht.identity import PeerId


def reduce_inputs(commits: Sequence[Commit]) -> tuple[ReduceInput, ...]:
    """A whole input set as weighted inputs, without the bytes of any partition."""
    weights = weights_of([(commit.tokens_counted, commit.steps) for commit in commits])
    return tuple(
        ReduceInput(member, b"", weight, commit.squared_norms)
        for member, (weight, commit) in enumerate(zip(weights, commits, strict=True))
    )


def partition_inputs(commits: Sequence[Commit], partition: int, members: Iterable[int]) -> tuple[ReduceInput, ...]:
    """What these members of an input set committed for one partition, in order."""
    whole = reduce_inputs(commits)
    return tuple(
        ReduceInput(
            member,
            commits[member].part_roots[partition],
            whole[member].weight,
            whole[member].squared_norms,
        )
        for member in sorted(members)
    )


@dataclass(slots=True)
class ReducerDuty:
    """One partition in one turn. Inputs that are missing or do not match their commitment are left out.

    `needed` are how many inputs, and how many with weight, it takes at least. `hopeless` are inputs not worth waiting
    for; should they come all the same, they count.
    """

    group: Group
    inputs: InputSet
    partition: int
    turn: int
    needed: tuple[int, int]
    deadline: float
    patience: Patience
    arrived: set[int] = field(default_factory=set)
    hopeless: set[int] = field(default_factory=set)
    started: bool = False

    def arrive(self, member: int, root: bytes | None) -> None:
        """A part came; it counts if its bytes are those that the member committed."""
        if root == self.inputs.commits[member].part_roots[self.partition]:
            self.arrived.add(member)
        else:
            self.hopeless.add(member)

    def lose(self, peer: PeerId) -> None:
        """The transport lost a contributor: its part will not come in time."""
        member = self.inputs.index(peer)
        if member is not None and member not in self.arrived:
            self.hopeless.add(member)

    def missing(self) -> list[PeerId]:
        """Contributors whose part may still come."""
        outstanding = set(range(len(self.inputs.peers))) - self.arrived - self.hopeless
        return [self.inputs.peers[member] for member in sorted(outstanding)]

    def decide(self, now: float) -> Reduce | None:
        """Reduce once everything that can come has come, or time is up and enough is there."""
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
            inputs=partition_inputs(self.inputs.commits, self.partition, self.arrived),
            inputs_min=self._needed,
        )

    @property
    def _needed(self) -> int:
        """So many that enough of them have weight, `min_group` at least (design §6.2 step 6, docs/adr/0038)."""
        least, counted = self.needed
        weightless = len(self.arrived) - self.group.counted(self.inputs.peers[member] for member in self.arrived)
        return max(least, counted + weightless)
