"""Comparing two lineages after a partition, once for all fragments (design §8). Pure functions.

A lineage that most of the fork's active set signed later than the other one wins (docs/adr/0050). Where there is none,
of long branches the one counts that more of it signed last (docs/adr/0052), and then the claim, which is what a lineage
certified since the fork: keys of the fork's active set that signed, then tokens, then the lower digest (docs/adr/0005).
Two honest peers that compare the same two always agree on the winner.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coordinator.certificate import Certificate
from coordinator.chain import UNSETTLED_VERSIONS, Chain
from coordinator.messages import CHAIN_PAGE_MAX, LINEAGE_DEPTH_MAX
from coordinator.weights import truncated
from dht.identity import PeerId
from dht.statement import digest_of

VERSIONS_COMPARED = CHAIN_PAGE_MAX  # per fragment since the fork, on both sides: as many as one answer holds
BEFORE_FEW = 8  # versions before those of few that may be left with these


@dataclass(frozen=True, slots=True)
class Branch:
    """What one side certified after the newest version of a fragment that both sides have."""

    active: frozenset[PeerId]  # at the fork
    certificates: tuple[Certificate, ...]
    banned: Container[PeerId] = ()  # convicted keys: what they signed counts for nothing

    @property
    def signers(self) -> frozenset[PeerId]:
        """Who of the active set signed something of it and counts."""
        return frozenset(self.last_signed())

    def last_signed(self) -> dict[PeerId, tuple[int, int]]:
        """The newest version of it that each of the active set signed, and in which attempt."""
        return {
            voter: (certificate.version, certificate.outcome.attempt)
            for certificate in self.certificates
            for voter in certificate.voters & self.active
            if voter not in self.banned
        }

    def supersedes(self, other: Branch) -> bool:
        """Whether most of the active set signed something of it, and nothing of the other one later.

        A full certificate for which hostile voters withhold their votes is known to nobody else. Those who voted for it
        go on once their locks have run out, and what they sign then must not fall when it is shown.
        """
        return 2 * len(self.later_than(other)) > len(self.active)

    def later_than(self, other: Branch) -> frozenset[PeerId]:
        """Who of the active set signed something of it, and nothing of the other one later."""
        elsewhere = other.last_signed()
        return frozenset(peer for peer, place in self.last_signed().items() if place > elsewhere.get(peer, (0, 0)))


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Strength of a lineage since the fork; compares greater when stronger."""

    signers: int
    tokens: float
    inverse_digest: bytes


def claim(branches: Iterable[Branch]) -> Claim:
    """The claim of one side over all fragments that forked: sums, so that no part of them says otherwise than all."""
    branches = tuple(branches)
    tokens = 0.0
    for certificate in (one for branch in branches for one in branch.certificates):
        tokens += sum(truncated([float(one.tokens) for one in certificate.outcome.included()]))
    heads = digest_of(*(branch.certificates[-1].digest for branch in branches if branch.certificates))
    return Claim(sum(len(branch.signers) for branch in branches), tokens, bytes(255 - byte for byte in heads))


def horizon(chain: Chain) -> int:
    """The oldest version at which another lineage may part from ours: deeper ones never merge.

    No depth protects what most of the active set never signed, since few make many versions in no time.
    """
    usual = chain.version - LINEAGE_DEPTH_MAX
    deepest = max(chain.first_version, chain.version - UNSETTLED_VERSIONS)
    return max(deepest, usual if chain.few_since is None else min(usual, chain.few_since - BEFORE_FEW))


def known_digests(chain: Chain) -> tuple[bytes, ...]:
    """What somebody else needs to find where their chain and ours part, newest first: all down to the horizon.

    Where that lies deep, the newest, then so few that a page of the answer after any of them reaches the next one.
    """
    oldest = horizon(chain)
    versions: Iterable[int] = range(chain.version, oldest - 1, -1)
    if chain.version - oldest > LINEAGE_DEPTH_MAX:
        newest, deep = chain.version - CHAIN_PAGE_MAX, chain.version - 2 * CHAIN_PAGE_MAX
        versions = (*range(chain.version, newest - 1, -1), *range(deep, oldest, -CHAIN_PAGE_MAX), oldest)
    return tuple(digest for digest in map(chain.digest_at, versions) if digest is not None)


def ancestor(chain: Chain, known: Sequence[bytes]) -> int | None:
    """The newest version of ours that is among `known` digests; None if there is none (or it is too old)."""
    digests = set(known)
    for version in range(chain.version, chain.first_version - 1, -1):
        if chain.digest_at(version) in digests:
            return version
    return None


def last_shared(one: Chain, other: Chain) -> int | None:
    """The newest version that both chains keep with one digest; None if there is none."""
    for version in range(min(one.version, other.version), -1, -1):
        digest = one.digest_at(version)
        if digest is not None and digest == other.digest_at(version):
            return version
    return None


def continuation(chain: Chain, certificates: Sequence[Certificate]) -> tuple[int, Chain] | None:
    """Where `certificates` part from `chain`, and `chain` cut there and continued with them, all verified.

    None if they say nothing new, do not fit, or part deeper than lineages may be merged.
    """
    news = [one for one in certificates if chain.digest_at(one.version) != one.digest]
    if not news:
        return None
    fork = news[0].version - 1
    if not horizon(chain) <= fork <= chain.version:
        return None
    rival = chain.truncated(fork)
    for certificate in news:
        if rival.refusal(certificate) is not None:
            return None
        rival.append(certificate)
    return fork, rival


def branch_after(rival: Chain, fork: int) -> Branch:
    """All that a chain holds after this version."""
    return Branch(rival.truncated(fork).active_set(), rival.after(fork, rival.version - fork))


def majority_signed(rival: Chain, fork: int) -> bool:
    """Whether more than half of the active set at the fork signed something of the branch after it."""
    branch = branch_after(rival, fork)
    return 2 * len(branch.signers) > len(branch.active)


def without_tail(rival: Chain, fork: int) -> Chain:
    """A branch without minor versions that follow full ones, unless most of those active before these signed them.

    Nobody on the branch would follow them at once, so they neither help it to win nor are taken over with it: a few of
    its signers could make any number of them, and sign there later than everybody else. Its first version stays.
    """
    for before, after in pairwise(rival.after(fork, rival.version - fork)):
        if after.outcome.minor and not before.outcome.minor and not majority_signed(rival, before.version):
            return rival.truncated(before.version)
    return rival


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both sides certified in one fragment since they parted, as far as it is compared."""

    ours: Branch
    theirs: Branch
    long: bool  # whether one of the two made as much as is compared, or more

    @property
    def lead(self) -> int:
        """How many more of the active set signed their branch last than ours; 0 where all who lead may be hostile."""
        ours, theirs = len(self.ours.later_than(self.theirs)), len(self.theirs.later_than(self.ours))
        return theirs - ours if 3 * max(ours, theirs) > len(self.ours.active) else 0


def won(
    ours: Mapping[int, Chain], theirs: Mapping[int, tuple[int, Chain]], banned: Container[PeerId] = ()
) -> frozenset[int]:
    """The fragments in which the rival lineage wins over ours; `theirs` holds (fork version, chain) per forked one.

    Those of all or of none, so that nobody gets a model of two. But where each side supersedes the other in some, these
    go each their way: else a version of few in one would have withheld ones undo what most signed in the others.
    """
    forks = {index: _comparison(ours[index], rival, fork, banned) for index, (fork, rival) in sorted(theirs.items())}
    lost = {index for index, fork in forks.items() if fork.theirs.supersedes(fork.ours)}
    kept = {index for index, fork in forks.items() if fork.ours.supersedes(fork.theirs)}
    others = [index for index in forks if index not in lost | kept]
    wins = bool(lost) if bool(lost) != bool(kept) else _win([forks[index] for index in others])
    return frozenset(lost.union(others) if wins else lost)


def _win(forks: Collection[Comparison]) -> bool:
    """Whether the rival lineage wins in all of these fragments together, in which neither supersedes the other.

    Of long branches it counts who signed last: what few signed before undoes no long work.
    """
    lead = sum(fork.lead for fork in forks)
    if lead and any(fork.long for fork in forks):
        return lead > 0
    return claim(fork.theirs for fork in forks) > claim(fork.ours for fork in forks)


def _comparison(ours: Chain, theirs: Chain, fork: int, banned: Container[PeerId]) -> Comparison:
    """What counts of two chains after a fork, whichever of the two sides looks at it."""
    active = theirs.truncated(fork).active_set()
    both = (ours, theirs)
    seen = (without_tail(one.truncated(min(one.version, fork + VERSIONS_COMPARED)), fork) for one in both)
    our, their = (Branch(active, one.after(fork, VERSIONS_COMPARED), banned) for one in seen)
    return Comparison(our, their, max(one.version for one in both) - fork >= VERSIONS_COMPARED)
