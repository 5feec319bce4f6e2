"""What a cell brings to the group, or to the cell above it (docs/adr/0011)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.actions import Apply
from coordinator.cells import total
from coordinator.events import Encoded
from coordinator.messages import CellYield


@dataclass(frozen=True, slots=True)
class Harvest:
    """Whose work is in it, and the step that it amounts to."""

    cell: CellYield
    merged: Apply

    def claim(self, encoded: Encoded) -> Encoded:
        """As the cell's leader commits it: the work of all of them, and whose it is."""
        tokens, steps = total(self.cell.contributors)
        return replace(encoded, tokens=tokens, steps=steps, window_first=0, window_count=steps, cell=self.cell.digest)
