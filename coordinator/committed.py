"""What the members of a group have committed to, as inputs of a merge: roots, norms, and what each weighs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.messages import Bundle, Commit
from coordinator.weights import contribution_weight, weights_of
from dht.identity import PeerId
from dht.statement import Statement


def bundle_of(members: Sequence[PeerId], commits: Mapping[PeerId, Statement]) -> Bundle:
    """What a leader says of a group: the commitments that have come, in the order of its members."""
    come = tuple(commits[peer] for peer in members if peer in commits)
    return Bundle(commits=come, members=len(members))


@dataclass(frozen=True, slots=True)
class ReduceInput:
    """One member's partition as the reducer may use it."""

    member: int  # index into the input set
    root: bytes
    weight: float
    squared_norms: tuple[float, ...]  # every segment of the contribution


@dataclass(frozen=True)
class Committed:
    """The commitments of an input set in order, and how many members their group has."""

    commits: tuple[Commit, ...]
    members: int

    @classmethod
    def of(cls, bundle: Bundle) -> Committed:
        """As its leader says; raises PeerError if a commitment cannot be read. Nobody's signature is looked at."""
        return cls(tuple(commit.read(Commit) for commit in bundle.commits), bundle.members)

    def whole(self) -> tuple[ReduceInput, ...]:
        """Everybody's, without the bytes of any partition."""
        weights = self._weights(range(len(self.commits)))
        return tuple(
            ReduceInput(place, b"", weight, commit.squared_norms)
            for place, (weight, commit) in enumerate(zip(weights, self.commits, strict=True))
        )

    def partition(self, partition: int, merged: Collection[int]) -> tuple[ReduceInput, ...]:
        """What these committed for one partition, in order, weighted for a sum of just these."""
        return self._inputs(partition, merged, self._weights(merged))

    def claimed(self, partition: int, places: Collection[int]) -> tuple[ReduceInput, ...]:
        """What these committed for one partition, in order, each with all the weight that it claims."""
        weights = [contribution_weight(one.tokens_counted, one.steps) for one in self.commits]
        return self._inputs(partition, places, weights)

    def _inputs(self, partition: int, places: Collection[int], weights: Sequence[float]) -> tuple[ReduceInput, ...]:
        return tuple(
            ReduceInput(
                place, self.commits[place].part_roots[partition], weights[place], self.commits[place].squared_norms
            )
            for place in sorted(places)
        )

    def _weights(self, merged: Collection[int]) -> tuple[float, ...]:
        return weights_of([(one.tokens_counted, one.steps) for one in self.commits], self.members, merged)
