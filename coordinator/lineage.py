"""Comparing two lineages after a partition, once for all fragments (design §8). Pure functions.

A lineage's claim is what it certified since the fork: distinct keys of the fork's active set that signed, then tokens,
then the lower digest. Two honest peers that compare the same two lineages always agree on the winner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.certificate import Certificate
from coordinator.chain import Chain
from dht.identity import PeerId
from dht.statement import digest_of


@dataclass(frozen=True, slots=True)
class Branch:
    """What one side certified after the newest version of a fragment that both sides have."""

    active: frozenset[PeerId]  # at the fork
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Strength of a lineage since the fork; compares greater when stronger."""

    signers: int
    tokens: int
    inverse_digest: bytes


def claim(branches: Sequence[Branch]) -> Claim:
    """The claim of one side over all fragments that forked."""
    signers: set[PeerId] = set()
    tokens = 0
    for branch in branches:
        for certificate in branch.certificates:
            signers |= certificate.voters & branch.active
            tokens += certificate.outcome.tokens
    heads = digest_of(*(branch.certificates[-1].digest for branch in branches if branch.certificates))
    return Claim(len(signers), tokens, bytes(255 - byte for byte in heads))


def ancestor(chain: Chain, known: Sequence[bytes]) -> int | None:
    """The newest version of ours that is among `known` digests; None if there is none (or it is too old)."""
    digests = set(known)
    for version in range(chain.version, chain.first_version - 1, -1):
        if chain.digest_at(version) in digests:
            return version
    return None


def continuation(chain: Chain, certificates: Sequence[Certificate]) -> tuple[int, Chain] | None:
    """`chain` cut at the parent of `certificates` and continued with them, all verified; None if they do not fit."""
    if not certificates:
        return None
    fork = certificates[0].version - 1
    if fork < chain.first_version or fork > chain.version:
        return None
    rival = chain.truncated(fork)
    for certificate in certificates:
        if rival.refusal(certificate) is not None:
            return None
        rival.append(certificate)
    return fork, rival


def better(ours: Mapping[int, Chain], theirs: Mapping[int, tuple[int, Chain]]) -> bool:
    """Whether the rival lineage wins over ours; `theirs` holds (fork version, chain) per forked fragment."""
    our_branches, their_branches = [], []
    for fragment in sorted(theirs):
        fork, rival = theirs[fragment]
        active = rival.truncated(fork).active_set()
        our_branches.append(Branch(active, ours[fragment].after(fork, ours[fragment].version - fork)))
        their_branches.append(Branch(active, rival.after(fork, rival.version - fork)))
    return claim(their_branches) > claim(our_branches)
