"""Branches that are longer than one answer, as far as they have been heard (docs/adr/0052)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import horizon
from dht.identity import PeerId

Fork = tuple[int, Chain]
"""The version at which a rival's chain leaves ours, and that chain."""


@dataclass(slots=True)
class ForkBuffer:
    """By who tells us about it and by fragment: forks of which the next answer tells more."""

    forks: dict[tuple[PeerId, int], Fork] = field(default_factory=dict)

    def begun(self, peer: PeerId, chain: Chain) -> Fork | None:
        """What we have heard so far from this peer, if it still is a fork of `chain`, which is ours."""
        found = self.forks.get((peer, chain.fragment))
        if found is not None and not still_forks(chain, *found):
            self.forget(peer, chain.fragment)
            return None
        return found

    def keep(self, peer: PeerId, fragment: int, fork: Fork, most: int) -> bool:
        """Go on from here with the next answer; False if there are as many as may be."""
        if len(self.forks) >= most:
            return False
        self.forks[peer, fragment] = fork
        return True

    def forget(self, peer: PeerId, fragment: int) -> None:
        """Nothing more is to come, or it does not matter any more."""
        self.forks.pop((peer, fragment), None)


def is_heard_on(sender: PeerId, fork: int, rival: Chain) -> bool:
    """Whether more of a branch is worth hearing. Of strangers, which may be any number, one answer has to do."""
    return rival.version - fork < rival.rules.chain_kept // 2 and sender in rival.truncated(fork).known()


def still_forks(chain: Chain, fork: int, rival: Chain) -> bool:
    """Whether a fork found earlier still is one, after what our own chain has done since."""
    if not horizon(chain) <= fork < chain.version:
        return False
    same_stem = chain.digest_at(fork) == rival.digest_at(fork)
    return same_stem and chain.digest_at(fork + 1) != rival.digest_at(fork + 1)


def follows(certificates: Sequence[Certificate], chain: Chain, begun: Fork | None) -> bool:
    """Whether they can be the answer to what was asked last: after something of our chain, or of what we have heard."""
    if not certificates:
        return True
    first = certificates[0]
    return first.outcome.parent == (chain.digest_at(first.version - 1) if begun is None else begun[1].digest)
