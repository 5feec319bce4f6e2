"""A probe of one peer's chains where they leave ours, which may take several answers (docs/adr/0052)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import horizon
from dht.identity import PeerId

Fork = tuple[int, Chain]
"""The version at which a rival's chain leaves ours, and that chain."""


@dataclass(slots=True)
class ForkProbe:
    """Our questions to one peer about its chains, and its answers, by fragment, until they are enough to act on."""

    asked: dict[int, float] = field(default_factory=dict)  # when we asked last
    awaited: set[int] = field(default_factory=set)  # fragments that it has still to answer about
    begun: dict[int, Fork] = field(default_factory=dict)  # forks that the next answer continues
    answers: dict[int, Fork | None] = field(default_factory=dict)  # complete answers; None: no fork
    shown: Mapping[int, bytes | None] | None = None  # the branches that it showed us before, by their first versions
    ahead: bool = False  # whether it no longer keeps the certificates after the versions that we know

    def asked_at(self, fragment: int) -> float:
        return self.asked.get(fragment, -inf)

    def fork_of(self, chain: Chain) -> Fork | None:
        """Return the part of a branch that we know so far, if it still is a fork of `chain`, our own."""
        found = self.begun.get(chain.fragment)
        if found is not None and not still_forks(chain, *found):
            del self.begun[chain.fragment]
            return None
        return found

    @property
    def holds_chains(self) -> bool:
        return bool(self.begun or self.answers or self.shown is not None)

    def forget(self) -> None:
        """Forget its answers: it has changed to another branch, or we hold too many branches."""
        self.begun.clear()
        self.answers.clear()
        self.shown = None


def is_heard_on(sender: PeerId, fork: int, rival: Chain) -> bool:
    """Whether to ask for more of a branch. Strangers, which may be any number, get only one answer each."""
    return rival.version - fork < rival.rules.chain_kept // 2 and sender in rival.truncated(fork).known()


def still_forks(chain: Chain, fork: int, rival: Chain) -> bool:
    """Whether a fork found earlier still is one, now that our own chain may have changed."""
    if not horizon(chain) <= fork < chain.version:
        return False
    same_stem = chain.digest_at(fork) == rival.digest_at(fork)
    return same_stem and chain.digest_at(fork + 1) != rival.digest_at(fork + 1)


def follows(certificates: Sequence[Certificate], chain: Chain, begun: Fork | None) -> bool:
    """Whether these can be the answer to our last question: they continue our chain, or the fork known so far."""
    if not certificates:
        return True
    first = certificates[0]
    return first.outcome.parent == (chain.digest_at(first.version - 1) if begun is None else begun[1].digest)
