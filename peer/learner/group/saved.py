"""The saved state of a learner, including the parts of each process of a group, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from dht.errors import LocalError
from peer.learner.group.collective import Ranks

_SIZE = "ranks"  # number of processes that shared the parameters out


def read_state(path: str) -> dict[str, Tensor]:
    """Read a state that `Save` wrote, for `Learner.import_state`; raises LocalError if it is missing or damaged."""
    try:
        return dict(load_file(Path(path)))
    except (OSError, SafetensorError) as error:
        raise LocalError(f"the saved learner state {path} cannot be read: {error}") from None


def gather_parts(own: Mapping[str, Tensor], group: Ranks) -> dict[str, Tensor]:
    """Return the parts of all processes, named by rank, and their number; the first process gets the parts."""
    content = save({name: one.detach().cpu().contiguous() for name, one in own.items()})
    found: dict[str, Tensor] = {}
    for rank, part in enumerate(group.gathered(content)):
        if group.leads:
            found |= {f"{_prefix(rank)}{name}": one for name, one in load(part).items()}
    return found | {_SIZE: torch.tensor(group.size)}


def own_part(state: Mapping[str, Tensor], group: Ranks) -> dict[str, Tensor]:
    """Return this process's part; empty if the state was saved by a group of another size or kind."""
    ranks = state.get(_SIZE)
    if not group.sharded:
        return dict(state) if ranks is None else {}
    if ranks is None or int(ranks) != group.size:
        return {}
    return named_after(_prefix(group.rank), state)


def named_after(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries whose names have this prefix, without it."""
    return {name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)}


def _prefix(rank: int) -> str:
    return f"rank{rank}."
