"""Comparing two lineages after a partition, for all fragments together (design §8). Pure functions.

A lineage that most of the fork's active set signed later than the other one wins (docs/adr/0050, 0052). Where there is
none, its claim counts, which is what it certified since the fork: keys of the fork's active set that signed, then
tokens, then the lower digest (docs/adr/0005). Two honest peers with the same copies agree on the winner.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import or_

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import UNSETTLED_VERSIONS, Chain
from coordinator.chain.weights import truncated
from dht.identity import PeerId

CHAIN_PAGE_MAX = 32
LINEAGE_DEPTH_MAX = 64  # versions: how deep forks reach, where most signed what came since (`horizon`)

VERSIONS_CLAIMED = CHAIN_PAGE_MAX  # per fragment since the fork, on both sides: as many as one answer holds
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
        """The newest of its first versions that each of the active set signed, and in which attempt.

        Of the others only that they signed: a few get to any height in no time, and who has been led there for a moment
        would have signed later there than what it goes back to.
        """
        found = dict.fromkeys(self._voters(self.certificates[VERSIONS_CLAIMED:]), (0, 0))
        for certificate in self.certificates[:VERSIONS_CLAIMED]:
            found |= dict.fromkeys(self._voters([certificate]), (certificate.version, certificate.outcome.attempt))
        return found

    def _voters(self, certificates: Iterable[Certificate]) -> set[PeerId]:
        voters = {voter for certificate in certificates for voter in certificate.voters & self.active}
        return {voter for voter in voters if voter not in self.banned}

    def supersedes(self, other: Branch) -> bool:
        """Whether most of the active set signed something of it, and nothing of the other one later.

        A full certificate for which hostile voters withhold their votes is known to nobody else. Those who voted for it
        go on once their locks have run out, and what they sign then must not fall when it is shown.
        """
        return 2 * self.later_than(other) > len(self.active)

    def later_than(self, other: Branch) -> int:
        """How many of the active set signed something of it, and nothing of the other one later."""
        elsewhere = other.last_signed()
        return sum(place > elsewhere.get(peer, (-1, 0)) for peer, place in self.last_signed().items())


@dataclass(frozen=True, slots=True, order=True)
class LineageStrength:
    """Strength of a lineage since the fork; compares greater when stronger."""

    signers: int
    tokens: float
    inverse_heads: tuple[bytes, ...]


def claim(branches: Iterable[Branch]) -> LineageStrength:
    """The claim of one side over all fragments that forked: none of them alone says otherwise than all."""
    branches = tuple(branches)
    tokens = 0.0
    for certificate in (one for branch in branches for one in branch.certificates):
        tokens += sum(truncated([float(one.tokens) for one in certificate.outcome.included()]))
    heads = (branch.certificates[-1].digest for branch in branches if branch.certificates)
    inverse_heads = tuple(bytes(255 - byte for byte in head) for head in heads)
    return LineageStrength(sum(len(branch.signers) for branch in branches), tokens, inverse_heads)


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
    rival = prolonged(chain.truncated(fork), news)
    return None if rival is None else (fork, rival)


def prolonged(rival: Chain, certificates: Sequence[Certificate]) -> Chain | None:
    """This chain, which grows by certificates that follow it; None if one of them is not valid."""
    for certificate in certificates:
        if rival.refusal(certificate) is not None:
            return None
        rival.append(certificate)
    return rival


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
    news = rival.after(fork, rival.version - fork)
    signed = list(accumulate((one.voters for one in reversed(news)), or_))  # who signed one of the newest 1, 2, …
    for before, after in pairwise(news):
        if after.outcome.minor and not before.outcome.minor:
            shorter = rival.truncated(before.version)
            active = shorter.active_set()
            if 2 * len(signed[rival.version - after.version] & active) <= len(active):
                return shorter
    return rival


def won(
    ours: Mapping[int, Chain], theirs: Mapping[int, tuple[int, Chain]], banned: Container[PeerId] = ()
) -> frozenset[int]:
    """The fragments in which the rival lineage wins over ours; `theirs` holds (fork version, chain) per forked one.

    Those of all or of none, so that nobody gets a model of two. But where each side supersedes the other in some, these
    go each their way: else a version of few in one would have withheld ones undo what most signed in the others. And
    what fewer signed last undoes no long work of few.
    """
    whole = {index: _branches(ours[index], *fork, banned, UNSETTLED_VERSIONS) for index, fork in theirs.items()}
    lost = {index for index, (our, their) in whole.items() if their.supersedes(our)}
    kept = {index for index, (our, their) in whole.items() if our.supersedes(their)}
    undecided = sorted(theirs.keys() - lost - kept)
    first = {index: _branches(ours[index], *theirs[index], banned, VERSIONS_CLAIMED) for index in undecided}
    long = {index for index in undecided if ours[index].version - theirs[index][0] > LINEAGE_DEPTH_MAX}
    others = [index for index in undecided if index not in long or not _leads(*first[index])]
    if bool(lost) != bool(kept):
        wins = bool(lost)
    else:
        wins = claim(first[index][1] for index in others) > claim(first[index][0] for index in others)
    return frozenset(lost.union(others) if wins else lost)


def _leads(one: Branch, other: Branch) -> bool:
    """Whether more signed this one last."""
    return one.later_than(other) > other.later_than(one)


def _branches(ours: Chain, fork: int, theirs: Chain, banned: Container[PeerId], versions: int) -> tuple[Branch, Branch]:
    """What counts of this many versions of two chains after a fork, whichever of the two sides looks at them."""
    active = theirs.truncated(fork).active_set()
    seen = (without_tail(one.truncated(min(one.version, fork + versions)), fork) for one in (ours, theirs))
    our, their = (Branch(active, one.after(fork, versions), banned) for one in seen)
    return our, their
