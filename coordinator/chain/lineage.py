"""Compares two lineages after a partition, for all fragments together (design §8). Pure functions.

A lineage wins if most of the fork's active set signed it later than the other one (docs/adr/0050, 0052). If that is
true of neither, the greater claim wins. A lineage's claim is what it certified since the fork: keys of the fork's
active set that signed, then tokens, then the lower digest (docs/adr/0005). Two honest peers with the same copies agree
on the winner.
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
LINEAGE_DEPTH_MAX = 64  # versions that a fork may lie back, if most peers signed those since (`horizon`)

VERSIONS_CLAIMED = CHAIN_PAGE_MAX  # per fragment since the fork, on both sides: as many as one answer holds
BEFORE_FEW = 8  # versions before those that few made that may be abandoned with them


@dataclass(frozen=True, slots=True)
class Branch:
    """The certificates of one side after the newest version of a fragment that both sides have."""

    active: frozenset[PeerId]  # at the fork
    certificates: tuple[Certificate, ...]
    banned: Container[PeerId] = ()  # convicted keys, whose signatures do not count

    @property
    def signers(self) -> frozenset[PeerId]:
        """Members of the active set, without banned keys, that signed any of its certificates."""
        return frozenset(self.last_signed())

    def last_signed(self) -> dict[PeerId, tuple[int, int]]:
        """Return the newest version that each member of the active set signed, and its attempt.

        Beyond the first `VERSIONS_CLAIMED` versions it only counts that a member signed: its entry is (0, 0). A few
        peers can make any number of versions quickly. A peer that was led there for a moment would have signed a later
        version there than on the branch to which it returns.
        """
        found = dict.fromkeys(self._voters(self.certificates[VERSIONS_CLAIMED:]), (0, 0))
        for certificate in self.certificates[:VERSIONS_CLAIMED]:
            found |= dict.fromkeys(self._voters([certificate]), (certificate.version, certificate.outcome.attempt))
        return found

    def _voters(self, certificates: Iterable[Certificate]) -> set[PeerId]:
        voters = {voter for certificate in certificates for voter in certificate.voters & self.active}
        return {voter for voter in voters if voter not in self.banned}

    def supersedes(self, other: Branch) -> bool:
        """Whether most of the active set signed this branch, and nothing later on the other one.

        If hostile voters withhold their votes for a full certificate, no other peer knows it. Its other voters go on
        once their locks have run out. The versions that they sign then must stand when the certificate is shown.
        """
        return 2 * self.later_than(other) > len(self.active)

    def later_than(self, other: Branch) -> int:
        """Count the members of the active set that signed this branch, and nothing later on the other one."""
        elsewhere = other.last_signed()
        return sum(place > elsewhere.get(peer, (-1, 0)) for peer, place in self.last_signed().items())


@dataclass(frozen=True, slots=True, order=True)
class LineageStrength:
    """Strength of a lineage since the fork; compares greater when stronger."""

    signers: int
    tokens: float
    inverse_heads: tuple[bytes, ...]


def claim(branches: Iterable[Branch]) -> LineageStrength:
    """Return the claim of one side over all forked fragments together: no single fragment decides otherwise."""
    branches = tuple(branches)
    tokens = 0.0
    for certificate in (one for branch in branches for one in branch.certificates):
        tokens += sum(truncated([float(one.tokens) for one in certificate.outcome.included()]))
    heads = (branch.certificates[-1].digest for branch in branches if branch.certificates)
    inverse_heads = tuple(bytes(255 - byte for byte in head) for head in heads)
    return LineageStrength(sum(len(branch.signers) for branch in branches), tokens, inverse_heads)


def horizon(chain: Chain) -> int:
    """Return the oldest version at which another lineage may fork from ours: deeper forks never merge.

    Versions that most of the active set never signed are not protected by depth, since few peers make many quickly.
    """
    usual = chain.version - LINEAGE_DEPTH_MAX
    deepest = max(chain.first_version, chain.version - UNSETTLED_VERSIONS)
    return max(deepest, usual if chain.minority_since is None else min(usual, chain.minority_since - BEFORE_FEW))


def known_digests(chain: Chain) -> tuple[bytes, ...]:
    """Return the digests by which another peer finds where its chain forks from ours, newest first.

    They are all those down to the horizon. If it lies deep, they are the newest, and older ones a page apart. A page of
    the answer after any of them then reaches the next.
    """
    oldest = horizon(chain)
    versions: Iterable[int] = range(chain.version, oldest - 1, -1)
    if chain.version - oldest > LINEAGE_DEPTH_MAX:
        newest, deep = chain.version - CHAIN_PAGE_MAX, chain.version - 2 * CHAIN_PAGE_MAX
        versions = (*range(chain.version, newest - 1, -1), *range(deep, oldest, -CHAIN_PAGE_MAX), oldest)
    return tuple(digest for digest in map(chain.digest_at, versions) if digest is not None)


def ancestor(chain: Chain, known: Sequence[bytes]) -> int | None:
    """Return our newest version whose digest is among `known`; None if there is none (or it is too old)."""
    digests = set(known)
    for version in range(chain.version, chain.first_version - 1, -1):
        if chain.digest_at(version) in digests:
            return version
    return None


def last_shared(one: Chain, other: Chain) -> int | None:
    """Return the newest version that both chains keep with one digest; None if there is none."""
    for version in range(min(one.version, other.version), -1, -1):
        digest = one.digest_at(version)
        if digest is not None and digest == other.digest_at(version):
            return version
    return None


def continuation(chain: Chain, certificates: Sequence[Certificate]) -> tuple[int, Chain] | None:
    """Return the version after which `certificates` fork from `chain`, and `chain` cut there and continued with them.

    All of them are verified. None if they are not new, do not fit, or fork deeper than lineages may be merged.
    """
    news = [one for one in certificates if chain.digest_at(one.version) != one.digest]
    if not news:
        return None
    fork = news[0].version - 1
    if not horizon(chain) <= fork <= chain.version:
        return None
    rival = extended_chain(chain.truncated(fork), news)
    return None if rival is None else (fork, rival)


def extended_chain(rival: Chain, certificates: Sequence[Certificate]) -> Chain | None:
    """Append certificates that follow a chain and return it; None if one of them is not valid."""
    for certificate in certificates:
        if rival.refusal(certificate) is not None:
            return None
        rival.append(certificate)
    return rival


def branch_after(rival: Chain, fork: int) -> Branch:
    """Return the branch of a chain after the version `fork`."""
    return Branch(rival.truncated(fork).active_set(), rival.after(fork, rival.version - fork))


def majority_signed(rival: Chain, fork: int) -> bool:
    """Whether more than half of the active set at the fork signed any version of the branch after it."""
    branch = branch_after(rival, fork)
    return 2 * len(branch.signers) > len(branch.active)


def without_tail(rival: Chain, fork: int) -> Chain:
    """Return a chain without the part of its branch that few made: from a minor version after a full one on.

    That part stays if most of the peers active before it signed it. Otherwise no peer on the branch would follow it at
    once, so it neither helps the branch to win nor is adopted with it. A few signers could make any number of such
    versions, and so sign later than every other peer. The branch's first version always stays.
    """
    news = rival.after(fork, rival.version - fork)
    signed = list(accumulate((one.voters for one in reversed(news)), or_))  # signers of any of the newest 1, 2, …
    for before, after in pairwise(news):
        if after.outcome.minor and not before.outcome.minor:
            shorter = rival.truncated(before.version)
            active = shorter.active_set()
            if 2 * len(signed[rival.version - after.version] & active) <= len(active):
                return shorter
    return rival


def fragments_won(
    ours: Mapping[int, Chain], theirs: Mapping[int, tuple[int, Chain]], banned: Container[PeerId] = ()
) -> frozenset[int]:
    """Return the fragments that the rival lineage wins; `theirs` holds (fork version, chain) per forked fragment.

    One side wins all of them, so that no peer gets a model mixed from two lineages. There are two exceptions:

    * If each side supersedes the other in some fragments, these are decided one by one. Otherwise a version that few
      made in one fragment would let withheld certificates undo what most signed in the others.
    * A long branch of ours (over `LINEAGE_DEPTH_MAX`) that neither side supersedes stays if more peers signed it last.
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
    """Whether more of the active set signed last on `one` than on `other`."""
    return one.later_than(other) > other.later_than(one)


def _branches(ours: Chain, fork: int, theirs: Chain, banned: Container[PeerId], versions: int) -> tuple[Branch, Branch]:
    """Return what counts of so many versions of two chains after a fork; both sides get the same."""
    active = theirs.truncated(fork).active_set()
    seen = (without_tail(one.truncated(min(one.version, fork + versions)), fork) for one in (ours, theirs))
    our, their = (Branch(active, one.after(fork, versions), banned) for one in seen)
    return our, their
