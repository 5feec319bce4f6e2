"""Processes that form one learner, without a peer: each makes the same calls, and the first writes the result."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from peer.learner.group.collective import ALONE, Ranks, join

Work = Callable[[Ranks, Path], dict[str, Tensor]]
"""What each process does; it gets a folder of all of them."""

JOIN_SECONDS = 120.0


def alone(work: Work, folder: Path) -> dict[str, Tensor]:
    """Return the result of one process."""
    return work(ALONE, folder)


def together(work: Work, size: int, sharded: bool, folder: Path) -> dict[str, Tensor]:
    """Return the result of the first of so many processes; `work` must be a named function of its module."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload([work.__module__])
    store, result = folder / f"store-{size}-{sharded}", folder / f"result-{size}-{sharded}"
    running = [
        processes.Process(target=_one, args=(work, rank, size, sharded, store, result, folder)) for rank in range(size)
    ]
    for one in running:
        one.start()
    for one in running:
        one.join(JOIN_SECONDS)
    assert [one.exitcode for one in running] == [0] * size
    return load_file(result)


def _one(work: Work, rank: int, size: int, sharded: bool, store: Path, result: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    group = join(os.open(store, os.O_RDWR | os.O_CREAT, 0o600), rank, size, "cpu", sharded)
    found = work(group, folder)
    if group.leads:
        save_file({name: one.clone() for name, one in found.items()}, result)
    group.add(torch.zeros(1))  # waits until all processes are here
