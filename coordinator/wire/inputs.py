"""What the members of a group have committed to, as inputs of a merge: roots, norms, and what each weighs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.chain.weights import contribution_weight, limit_of
from coordinator.wire.messages import Bundle, Commit
from dht.identity import PeerId
from dht.statement import Statement


def bundle_of(members: Sequence[PeerId], expected: int, commits: Mapping[PeerId, Statement]) -> Bundle:
    """What a leader says of a group: the commitments that have come, in the order of its members."""
    return Bundle(commits=tuple(commits[peer] for peer in members if peer in commits), members=expected)


@dataclass(frozen=True, slots=True)
class ReduceInput:
    """One member's partition as the reducer may use it."""

    member: int  # index into the input set
    root: bytes
    weight: float
    squared_norms: tuple[float, ...]  # every segment of the contribution


def weighed(claimed: Iterable[ReduceInput], merged: Collection[int], members: int) -> tuple[ReduceInput, ...]:
    """Those at the places `merged`, of a group of so many members, weighted for a sum of just these (docs/adr/0046)."""
    counted = [one for one in claimed if one.member in merged]
    limit = limit_of([one.weight for one in counted], members)
    return tuple(replace(one, weight=min(one.weight, limit)) for one in counted)


@dataclass(frozen=True)
class Committed:
    """The commitments of an input set in order, and how many members their group should have (`Bundle`)."""

    commits: tuple[Commit, ...]
    members: int

    @classmethod
    def of(cls, bundle: Bundle) -> Committed:
        """As its leader says; raises PeerError if a commitment cannot be read. Nobody's signature is looked at."""
        return cls(tuple(commit.read(Commit) for commit in bundle.commits), bundle.members)

    def whole(self) -> tuple[ReduceInput, ...]:
        """Everybody's, without the bytes of any partition, each with all the weight that it claims."""
        return tuple(
            ReduceInput(place, b"", _claim(commit), commit.squared_norms) for place, commit in enumerate(self.commits)
        )

    def partition(self, partition: int, merged: Collection[int]) -> tuple[ReduceInput, ...]:
        """What these committed for one partition, in order, weighted for a sum of just these."""
        return weighed(self.claimed(partition, merged), merged, self.members)

    def claimed(self, partition: int, places: Collection[int]) -> tuple[ReduceInput, ...]:
        """What these committed for one partition, in order, each with all the weight that it claims."""
        chosen = [(place, self.commits[place]) for place in sorted(places)]
        return tuple(
            ReduceInput(place, commit.part_roots[partition], _claim(commit), commit.squared_norms)
            for place, commit in chosen
        )


def _claim(commit: Commit) -> float:
    return contribution_weight(commit.tokens_counted, commit.steps)
