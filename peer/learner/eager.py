"""What a learner goes without while a round runs, because the merge will not keep it: the adoption `eager`.

A snapshot s is A + d, d being a learner's own work since the anchor A. The merge keeps about ρd of it, and most of the
rest is noise that the others do not have. So from its snapshot on the learner trains at A + ρd, and has (1 - ρ)d back
before the new anchor is taken over, or another snapshot taken: what is contributed and adopted is as for `carry`. ρ
is what the fragment's last merge kept, ⟨A' - A, d⟩/‖d‖² (docs/adr/0040; after eager updates, 2502.12996).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_PREFIXES = {"anchors": "eager.anchor.", "withheld": "eager.withheld."}
_KEPT = "eager.kept"


class Withheld:
    """Per fragment the anchor, what is withheld, both float32[elements] in host memory, and ρ."""

    def __init__(self, fragments: int) -> None:
        self._anchors: dict[int, Tensor] = {}
        self._withheld: dict[int, Tensor] = {}
        self._kept = torch.full((fragments,), torch.nan, dtype=torch.float64)

    def show(self, fragment: int, snapshot: Tensor) -> Tensor:
        """Give back into `snapshot`, float32[elements] on any device, and return where the learner is to go on."""
        self._give_back(fragment, snapshot)
        anchor, kept = self._anchors.get(fragment), float(self._kept[fragment])
        if anchor is None or math.isnan(kept):
            return snapshot.clone()
        withheld = (snapshot - anchor.to(snapshot.device)).mul_(1 - kept)
        self._withheld[fragment] = withheld.cpu()
        return snapshot - withheld

    def adopt(self, fragment: int, theta: Tensor, new: Tensor, merged: Tensor | None) -> Tensor | None:
        """Give back into `theta`, and note the new anchor; `merged` is what the learner has in it, if anything.

        Then returns how much further the merge went than the learner itself, float32[elements] in host memory: D − d,
        D being no longer than d, because a slow learner has made fewer steps than the others.
        """
        self._give_back(fragment, theta)
        new = new.cpu()
        anchor = self._anchors.get(fragment)
        self._anchors[fragment] = new.clone()
        if anchor is None or merged is None:
            return None
        own, joint = merged.cpu() - anchor, new - anchor
        squared, joint_squared = float(own @ own), float(joint @ joint)
        if squared > 0:
            self._kept[fragment] = min(1.0, max(0.0, float(joint @ own) / squared))
        if joint_squared > squared:
            joint.mul_(math.sqrt(squared / joint_squared))
        return joint.sub_(own)

    def _give_back(self, fragment: int, values: Tensor) -> None:
        withheld = self._withheld.pop(fragment, None)
        if withheld is not None:
            values.add_(withheld.to(values.device))

    def export_state(self) -> dict[str, Tensor]:
        """What `import_state` needs to go on with the same bits."""
        held = {"anchors": self._anchors, "withheld": self._withheld}
        exported = {f"{_PREFIXES[what]}{index}": one for what in held for index, one in held[what].items()}
        return exported | {_KEPT: self._kept.clone()}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `export_state`; with nothing withheld if there was none."""
        for what, kept in (("anchors", self._anchors), ("withheld", self._withheld)):
            kept.clear()
            prefix = _PREFIXES[what]
            kept |= {int(name.removeprefix(prefix)): one for name, one in state.items() if name.startswith(prefix)}
        self._kept = state.get(_KEPT, torch.full_like(self._kept, torch.nan)).clone()
