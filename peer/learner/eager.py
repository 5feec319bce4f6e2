"""What a learner goes without while a round runs, because the merge will not keep it: the adoption `eager`.

A snapshot s is A + d, d being a learner's own work since the anchor A. The merge keeps about ρd of it, and most of the
rest is noise that the others do not have. So from its snapshot on the learner trains at A + ρd, and has (1 - ρ)d back
before the new anchor is taken over, or another snapshot taken: what is contributed and adopted is as for `carry`. ρ
is what the fragment's last merge kept, ⟨A' - A, d⟩/‖d‖² (docs/adr/0040; after eager updates, 2502.12996).

All of it is on the learner's device, and nothing waits for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from peer.learner.group.collective import ALONE

_PREFIXES = {"anchors": "eager.anchor.", "withheld": "eager.withheld."}
_KEPT = "eager.kept"


class Withheld:
    """Per fragment the anchor, what is withheld, and ρ. Vectors are float32[elements of what is here of it].

    `add` makes a sum over what is here the sum over all of a fragment (`Ranks.add`).
    """

    def __init__(self, fragments: int, add: Callable[[Tensor], None] = ALONE.add) -> None:
        self._add = add
        self._anchors: dict[int, Tensor] = {}
        self._withheld: dict[int, Tensor] = {}
        self._kept = [torch.tensor(torch.nan, dtype=torch.float64) for _ in range(fragments)]
        self._merged: set[int] = set()  # fragments whose ρ is known

    def show(self, fragment: int, values: Tensor) -> tuple[Tensor, Tensor]:
        """The snapshot of a fragment with these values, and where the learner is to go on from it."""
        withheld = self._withheld.pop(fragment, None)
        snapshot = values.clone() if withheld is None else values + withheld.to(values.device)
        if fragment not in self._merged:
            return snapshot, snapshot
        kept = self._kept[fragment].to(values.device)
        withheld = (snapshot - self._anchors[fragment].to(values.device)).mul_(torch.nan_to_num(1 - kept))
        self._withheld[fragment] = withheld
        return snapshot, snapshot - withheld

    def adopt(self, fragment: int, theta: Tensor, new: Tensor, merged: Tensor | None) -> Tensor | None:
        """Give back into `theta`, and note the new anchor; `merged` is what the learner has in it, if anything.

        Then returns how much further the merge went than the learner itself: D − d, D being no longer than d, because
        a slow learner has made fewer steps than the others.
        """
        withheld = self._withheld.pop(fragment, None)
        if withheld is not None:
            theta.add_(withheld.to(theta.device))
        anchor, self._anchors[fragment] = self._anchors.get(fragment), new.clone()
        if anchor is None or merged is None:
            return None
        anchor = anchor.to(theta.device)
        own, joint = merged - anchor, new - anchor
        products = torch.stack((own @ own, joint @ joint, joint @ own)).double()
        self._add(products)
        squared, joint_squared, common = products
        share = common / squared
        share = torch.where(share > 0, share, 0.0).clamp_(max=1.0)
        self._kept[fragment] = torch.where(squared > 0, share, self._kept[fragment].to(share.device))
        self._merged.add(fragment)
        return joint.mul_(torch.where(joint_squared > squared, (squared / joint_squared).sqrt(), 1.0)).sub_(own)

    def move(self, device: torch.device) -> None:
        """Keep it there."""
        for held in (self._anchors, self._withheld):
            held |= {fragment: one.to(device) for fragment, one in held.items()}

    def export_state(self) -> dict[str, Tensor]:
        """What `import_state` needs to go on with the same bits."""
        held = {"anchors": self._anchors, "withheld": self._withheld}
        exported = {f"{_PREFIXES[what]}{index}": one for what in held for index, one in held[what].items()}
        return exported | {_KEPT: torch.stack([one.cpu() for one in self._kept])}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `export_state`; with nothing withheld if there was none."""
        for what, kept in (("anchors", self._anchors), ("withheld", self._withheld)):
            kept.clear()
            prefix = _PREFIXES[what]
            kept |= {int(name.removeprefix(prefix)): one for name, one in state.items() if name.startswith(prefix)}
        shares = state.get(_KEPT, torch.full((len(self._kept),), torch.nan, dtype=torch.float64)).tolist()
        self._kept = [torch.tensor(share, dtype=torch.float64) for share in shares]
        self._merged = {index for index in self._anchors if not math.isnan(shares[index])}
