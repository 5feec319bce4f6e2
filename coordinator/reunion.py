"""What a losing branch may bring to the chain that won: whether, whose work, with which weight (design §8).

Pure functions (docs/adr/0016). The certificates of a fragment form a tree, so a branch of a chain is named by its root,
the first certificate after the fork: two branches of one chain with different roots have no certificate in common.
Hence whoever takes in a root at most once, and no branch that has taken in another one, counts no token twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

from coordinator.certificate import Certificate, Contributor
from coordinator.chain import Chain
from coordinator.lineage import Branch, claim
from coordinator.messages import CHAIN_PAGE_MAX, LINEAGE_DEPTH_MAX
from dht.identity import PeerId


@dataclass(frozen=True, slots=True)
class Reunion:
    """A branch that comes in: where it left the chain, its first and last version, and what these hold."""

    fork: int
    root: bytes
    head: bytes
    state: bytes
    signers: int  # keys of the fork's active set that signed the branch
    either_signers: int  # and that signed the branch, or the chain since the fork
    contributors: tuple[Contributor, ...]  # by id, summed over the branch

    @property
    def share(self) -> float:
        """β: the weight of the branch's state; at most a half, since it lost."""
        return min(0.5, self.signers / self.either_signers)


def fork_of(chain: Chain, branch: Chain) -> int | None:
    """The newest version that both have, if both went on from there; None otherwise."""
    shared = (
        version
        for version in range(min(chain.version, branch.version), max(chain.first_version, branch.first_version) - 1, -1)
        if chain.digest_at(version) == branch.digest_at(version)
    )
    fork = next(shared, None)
    return fork if fork is not None and fork < min(chain.version, branch.version) else None


def reunion_of(chain: Chain, branch: Chain, banned: Container[PeerId] = ()) -> Reunion | None:
    """What `branch`, whose certificates are verified, brings to `chain`.

    None where they do not fork, or too deep, or where nobody who was active at the fork stands behind the branch.
    Whether it may come in is `refusal`'s to say.
    """
    fork = fork_of(chain, branch)
    if fork is None or chain.version - fork > LINEAGE_DEPTH_MAX or branch.version - fork > CHAIN_PAGE_MAX:
        return None
    lost, won = branch.after(fork, CHAIN_PAGE_MAX), chain.after(fork, LINEAGE_DEPTH_MAX)
    active = chain.truncated(fork).active_set()
    signers = claim([Branch(active, lost)], banned).signers
    if not signers:
        return None
    return Reunion(
        fork=fork,
        root=lost[0].digest,
        head=lost[-1].digest,
        state=lost[-1].state,
        signers=signers,
        either_signers=claim([Branch(active, (*won, *lost))], banned).signers,
        contributors=contributors_of(lost),
    )


def contributors_of(certificates: tuple[Certificate, ...]) -> tuple[Contributor, ...]:
    """Tokens and steps of everybody whose work these versions hold, by id."""
    tokens, steps = Counter[str](), Counter[str]()
    for certificate in certificates:
        for one in certificate.outcome.included():
            tokens[one.peer] += one.tokens
            steps[one.peer] += one.steps
    return tuple(Contributor(peer=peer, tokens=tokens[peer], steps=steps[peer]) for peer in sorted(tokens))


def refusal(reunion: Reunion, taken: Container[bytes], mixed: bool) -> str | None:
    """Why this branch may not come in; None if it may. `taken`: roots that the chain has taken in since the fork.

    `mixed`: whether the branch has taken in another one, which may have come to the chain by itself.
    """
    if reunion.root in taken:
        return "has come in already, in part or whole"
    if mixed:
        return "has taken in another branch, whose work could count twice"
    return None


def returning(chain: Chain, reunion: Reunion) -> frozenset[PeerId]:
    """Contributors of the branch whose work the chain holds, too, since the fork.

    Such a peer may have come back with an older checkpoint and brought the same steps again: only it can say that it
    did not, and unless it does the branch stays out.
    """
    certificates = chain.after(reunion.fork, LINEAGE_DEPTH_MAX)
    brought = {one.peer for certificate in certificates for one in certificate.outcome.included()}
    return frozenset(PeerId(one.peer) for one in reunion.contributors if one.peer in brought)
