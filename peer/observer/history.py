"""Time series in bounded memory, and the held-out losses that hosts report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import EVALUATIONS_MAX
from dht.identity import PeerId
from peer.machine.text import plain, printable
from peer.rounds.public_status import PublicStatus, thinned

LOSS_MAX = 1e3  # nats per token; nothing that trains is worse, and no column has room for more
COUNT_MAX = 2**53  # the largest count that every JSON reader holds exactly

Item = TypeVar("Item")


class ThinnedSeries(Generic[Item]):
    """A bounded series of items in order of time. When full, it drops every second one and doubles the spacing."""

    def __init__(self, count_max: int, spacing_seconds: float) -> None:
        self._count_max = count_max
        self._spacing_seconds = spacing_seconds
        self._next_at = -math.inf
        self.items: list[Item] = []

    def add(self, item: Item, now: float) -> None:
        """Keep the item if the last one is old enough."""
        if now < self._next_at:
            return
        if len(self.items) >= self._count_max:
            self.items = self.items[::2]
            self._spacing_seconds *= 2
        self.items.append(item)
        self._next_at = now + self._spacing_seconds


class HostEvaluations:
    """The evaluations of one host: the organiser if it reports any, else the first host that did."""

    def __init__(self, organiser: PeerId, created_unix_seconds: float) -> None:
        self._organiser = organiser
        self._created_unix_seconds = created_unix_seconds
        self.evaluator: PeerId | None = None
        self.sample, self.exports = "", ""
        self._found: dict[int, Evaluation] = {}  # by versions

    def hear(self, sender: PeerId, status: PublicStatus, unix_seconds: float) -> None:
        """Add a host's new evaluations, with times since the run was created: a restarted host counts from 0 again."""
        told = [one for one in status.evaluations if _plausible(one, status)]
        if not told or sender not in (self._organiser, self.evaluator or sender):
            return
        if sender != self.evaluator:
            self.evaluator, self._found = sender, {}
        self.sample = "\n".join(map(printable, status.sample.splitlines()))
        self.exports = plain(status.exports)
        for one in told:
            at = unix_seconds - (status.wall_seconds - one.wall_seconds) - self._created_unix_seconds
            self._found.setdefault(one.versions, one.model_copy(update={"wall_seconds": max(at, 0.0)}))
        if len(self._found) > EVALUATIONS_MAX:
            self._found = {one.versions: one for one in thinned(self._sorted(), EVALUATIONS_MAX // 2)}

    def evaluations(self, levels: Sequence[int], fragments: int) -> tuple[Evaluation, ...]:
        """Return the evaluations, oldest first, with certified tokens recomputed as far as `levels` reach.

        `levels` are those of `SeenCredit`.
        """
        sums = [0, *accumulate(levels)]
        return tuple(_with_tokens(one, sums, fragments) for one in self._sorted())

    def _sorted(self) -> list[Evaluation]:
        return [self._found[versions] for versions in sorted(self._found)]


def _plausible(one: Evaluation, status: PublicStatus) -> bool:
    counts = 0 <= one.versions <= COUNT_MAX and 0 <= one.tokens_certified <= COUNT_MAX
    return counts and 0 <= one.wall_seconds <= status.wall_seconds and 0 <= one.loss <= LOSS_MAX


def _with_tokens(one: Evaluation, sums: Sequence[int], fragments: int) -> Evaluation:
    """Recompute the certified tokens of an evaluation from sums over levels.

    Fragments take turns, so its versions are those of whole levels and a share of the next one.
    """
    level, rest = divmod(one.versions, fragments)
    if level + (rest > 0) >= len(sums):
        return one
    upper = sums[level + 1] if rest else sums[level]
    tokens = sums[level] + (upper - sums[level]) * rest // fragments
    return one.model_copy(update={"tokens_certified": tokens // fragments})
