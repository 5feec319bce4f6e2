"""The adoption `eager`: while a round runs, a learner trains without the work that the merge will not keep.

A snapshot s is A + d, where d is a learner's own work since the anchor A. The merge keeps about ρd of it. Most of
the rest is noise that the other peers do not have. From its snapshot on, the learner therefore trains at A + ρd. It
gets (1 - ρ)d back before it adopts the new anchor or takes another snapshot, so contributions and adoptions are the
same as with `carry`. ρ is the share that the fragment's last merge kept, ⟨A' - A, d⟩/‖d‖² (docs/adr/0040; after
eager updates, 2502.12996).

All tensors are on the learner's device, and nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from peer.learner.group.collective import ALONE

_PREFIXES = {"anchors": "eager.anchor.", "withheld": "eager.withheld."}
_KEPT = "eager.kept"


class EagerAdoption:
    """The anchor, the withheld work and ρ of each fragment.

    Vectors are float32, with as many elements as this process holds of the fragment. `add` turns a sum over this
    process's part into the sum over the whole fragment (`Ranks.add`).
    """

    def __init__(self, fragments: int, add: Callable[[Tensor], None] = ALONE.add) -> None:
        self._add = add
        self._anchors: dict[int, Tensor] = {}
        self._withheld: dict[int, Tensor] = {}
        self._kept = [torch.tensor(torch.nan, dtype=torch.float64) for _ in range(fragments)]
        self._merged: set[int] = set()  # fragments whose ρ is known

    def show(self, fragment: int, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the snapshot of a fragment with these values, and the values to continue training from."""
        withheld = self._withheld.pop(fragment, None)
        snapshot = values.clone() if withheld is None else values + withheld.to(values.device)
        if fragment not in self._merged:
            return snapshot, snapshot
        kept = self._kept[fragment].to(values.device)
        withheld = (snapshot - self._anchors[fragment].to(values.device)).mul_(torch.nan_to_num(1 - kept))
        self._withheld[fragment] = withheld
        return snapshot, snapshot - withheld

    def adopt(self, fragment: int, theta: Tensor, new: Tensor, merged: Tensor | None) -> Tensor | None:
        """Add the withheld work back into `theta` and store the new anchor; `merged` is our contribution, if any.

        Returns D − d: how much further the merge moved than the learner did. d is the learner's own work. D is the
        merge's move, at most as long as d, because a slow learner has made fewer steps than the others.
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
        """Move all tensors to this device."""
        for held in (self._anchors, self._withheld):
            held |= {fragment: one.to(device) for fragment, one in held.items()}

    def export_state(self) -> dict[str, Tensor]:
        """Return the state from which `import_state` continues with the same bits."""
        held = {"anchors": self._anchors, "withheld": self._withheld}
        exported = {f"{_PREFIXES[what]}{index}": one for what in held for index, one in held[what].items()}
        return exported | {_KEPT: torch.stack([one.cpu() for one in self._kept])}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `export_state`; a state without withheld work is accepted."""
        for what, kept in (("anchors", self._anchors), ("withheld", self._withheld)):
            kept.clear()
            prefix = _PREFIXES[what]
            kept |= {int(name.removeprefix(prefix)): one for name, one in state.items() if name.startswith(prefix)}
        shares = state.get(_KEPT, torch.full((len(self._kept),), torch.nan, dtype=torch.float64)).tolist()
        self._kept = [torch.tensor(share, dtype=torch.float64) for share in shares]
        self._merged = {index for index in self._anchors if not math.isnan(shares[index])}
