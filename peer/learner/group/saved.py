"""What is saved of a learner: also the parts that each process of a group has of its own, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from dht.errors import LocalError
from peer.learner.group.collective import Ranks

_SIZE = "ranks"  # of a group that shared its parameters out


def read_state(path: str) -> dict[str, Tensor]:
    """What `Save` wrote, for `Learner.import_state`; raises LocalError if it is missing or damaged."""
    try:
        return dict(load_file(Path(path)))
    except (OSError, SafetensorError) as error:
        raise LocalError(f"the saved learner state {path} cannot be read: {error}") from None


def gather_parts(own: Mapping[str, Tensor], group: Ranks) -> dict[str, Tensor]:
    """Everybody's, named by who has it, and how many there are; nothing for any process but the first."""
    content = save({name: one.detach().cpu().contiguous() for name, one in own.items()})
    found: dict[str, Tensor] = {}
    for rank, part in enumerate(group.gathered(content)):
        if group.leads:
            found |= {f"{_prefix(rank)}{name}": one for name, one in load(part).items()}
    return found | {_SIZE: torch.tensor(group.size)}


def own_part(state: Mapping[str, Tensor], group: Ranks) -> dict[str, Tensor]:
    """What this process had; nothing if another number of them had shared the parameters out, or none."""
    ranks = state.get(_SIZE)
    if not group.sharded:
        return dict(state) if ranks is None else {}
    if ranks is None or int(ranks) != group.size:
        return {}
    return named_after(_prefix(group.rank), state)


def named_after(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What has this prefix, without it."""
    return {name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)}


def _prefix(rank: int) -> str:
    return f"rank{rank}."
