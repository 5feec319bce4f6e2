"""What one peer tells of its chains where they leave ours, which may take several answers (docs/adr/0052)."""

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
    """What we asked one peer about its chains, and what it answered, by fragment, until that is enough to act on."""

    asked: dict[int, float] = field(default_factory=dict)  # when, last
    awaited: set[int] = field(default_factory=set)  # what it has still to answer
    begun: dict[int, Fork] = field(default_factory=dict)  # of which the next answer tells more
    answers: dict[int, Fork | None] = field(default_factory=dict)  # heard to their ends; None: no fork
    shown: Mapping[int, bytes | None] | None = None  # the branches that it showed us before, by their first versions
    ahead: bool = False  # it no longer keeps what follows the versions that we know

    def asked_at(self, fragment: int) -> float:
        return self.asked.get(fragment, -inf)

    def fork_of(self, chain: Chain) -> Fork | None:
        """What we have heard so far of a branch, if it still is a fork of `chain`, which is ours."""
        found = self.begun.get(chain.fragment)
        if found is not None and not still_forks(chain, *found):
            del self.begun[chain.fragment]
            return None
        return found

    @property
    def holds_chains(self) -> bool:
        return bool(self.begun or self.answers or self.shown is not None)

    def forget(self) -> None:
        """Begin anew with its answers: it has changed over, or there are too many like it."""
        self.begun.clear()
        self.answers.clear()
        self.shown = None


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
