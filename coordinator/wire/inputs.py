"""The committed contributions of a group's members as inputs of a merge: roots, norms and weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.chain.weights import contribution_weight, limit_of
from coordinator.wire.messages import Bundle, Commit
from dht.identity import PeerId
from dht.statement import Statement


def bundle_of(members: Sequence[PeerId], expected: int, commits: Mapping[PeerId, Statement]) -> Bundle:
    """Make a leader's bundle of the commitments that have arrived, in the order of the group's members."""
    return Bundle(commits=tuple(commits[peer] for peer in members if peer in commits), members=expected)


@dataclass(frozen=True, slots=True)
class ReduceInput:
    """One member's input to a partition's reduction."""

    member: int  # index into the input set
    root: bytes
    weight: float
    squared_norms: tuple[float, ...]  # every segment of the contribution


def weighed(claimed: Iterable[ReduceInput], merged: Collection[int], members: int) -> tuple[ReduceInput, ...]:
    """Return the inputs at the places `merged` in a group of `members`, weighted for a sum of just these.

    See docs/adr/0046.
    """
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
        """Read a leader's bundle; raises PeerError if a commitment cannot be read. Verifies no signatures."""
        return cls(tuple(commit.read(Commit) for commit in bundle.commits), bundle.members)

    def whole(self) -> tuple[ReduceInput, ...]:
        """Return every member's input with its full claimed weight, without the root of any partition."""
        return tuple(
            ReduceInput(place, b"", _claim(commit), commit.squared_norms) for place, commit in enumerate(self.commits)
        )

    def partition(self, partition: int, merged: Collection[int]) -> tuple[ReduceInput, ...]:
        """Return the inputs at `merged` to one partition, in order, weighted for a sum of just these."""
        return weighed(self.claimed(partition, merged), merged, self.members)

    def claimed(self, partition: int, places: Collection[int]) -> tuple[ReduceInput, ...]:
        """Return the inputs at `places` to one partition, in order, each with its full claimed weight."""
        chosen = [(place, self.commits[place]) for place in sorted(places)]
        return tuple(
            ReduceInput(place, commit.part_roots[partition], _claim(commit), commit.squared_norms)
            for place, commit in chosen
        )


def _claim(commit: Commit) -> float:
    return contribution_weight(commit.tokens_counted, commit.steps)
