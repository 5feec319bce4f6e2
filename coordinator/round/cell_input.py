"""The input of a cell to the group, or to the cell above it (docs/adr/0011)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from statistics import median_high, median_low

from coordinator.chain.certificate import COUNT_MAX, Contributor
from coordinator.chain.weights import CREDITED
from coordinator.core.actions import Apply
from coordinator.core.events import Encoded
from coordinator.wire.messages import CellYield


@dataclass(frozen=True, slots=True)
class CellInput:
    """A cell's contributors, and the step that their work makes."""

    cell: CellYield
    merged: Apply

    def claim(self, encoded: Encoded) -> Encoded:
        """Return `encoded` with the claim of the cell's leader: the work of all contributors, and the cell's digest."""
        tokens, steps = total(self.cell.contributors)
        return replace(encoded, tokens=tokens, steps=steps, window_first=0, window_count=steps, cell=self.cell.digest)


def total(contributors: Sequence[Contributor]) -> tuple[int, int]:
    """Return the tokens and steps of a cell as one commitment claims them: sums, with each contributor's part limited.

    No contributor counts with more tokens than 16 × the (upper) median, nor with more than twice the (lower) median
    of steps per token. Weights are T²/S, so one claim of many steps for few tokens would ruin the whole cell's weight.
    """
    worked = [(one.tokens, one.steps) for one in contributors if one.tokens > 0 and one.steps > 0]
    if not worked:
        return 0, 0
    most = CREDITED * median_high(tokens for tokens, _ in worked)
    per_token = 2 * median_low(Fraction(steps, tokens) for tokens, steps in worked)
    counted = [(min(tokens, most), steps) for tokens, steps in worked]
    steps_counted = ceil(sum(min(Fraction(steps), tokens * per_token) for tokens, steps in counted))
    return min(sum(tokens for tokens, _ in counted), COUNT_MAX), min(steps_counted, COUNT_MAX)
