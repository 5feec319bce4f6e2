"""Asks the owner before this machine takes part in a run. Only the run's manifest is fetched for that.

The manifest proves itself by its hash. It is fetched as a guest (`peer.sync.guest`), so that an owner who declines has
revealed nothing but an address.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable

import torch

from coordinator.run.manifest import Manifest
from dht.invite import Invite
from peer.cli.terms import Machine, describe
from peer.learner.memory_estimate import available_bytes
from peer.machine.sensors import CommandRunner, gpu_room_bytes
from peer.node.options import NodeOptions
from peer.numerics.plugins import check_packages
from peer.storage.run_directory import known_manifest
from peer.sync.guest import as_guest

SPEED_ELEMENTS = 512  # rows and columns of the matrices that are multiplied
SPEED_REPEATS = 8


def consents(invite: Invite, options: NodeOptions, ask: Callable[[str], bool]) -> bool:
    """Whether the owner agrees to take part; `ask` shows the terms. A run joined before needs no new consent.

    Raises NetworkError if nobody answers for the run, LocalError if this machine cannot ask, UsageError if the run
    needs a package that is not installed here.
    """
    if known_manifest(options.data_directory, invite.run_id) is not None:
        return True
    return agrees(asyncio.run(fetch_manifest(invite, options)), options, ask)


def agrees(manifest: Manifest, options: NodeOptions, ask: Callable[[str], bool]) -> bool:
    """Return what `ask` says to the terms; raises UsageError, unasked, if the run needs a package not installed."""
    check_packages(manifest.config)
    return ask(describe(manifest, options, this_machine(options)))


async def fetch_manifest(invite: Invite, options: NodeOptions) -> Manifest:
    """Fetch the run's manifest, and nothing else, from the peers that the invite names."""
    async with as_guest(invite, options.identity_path) as (_, manifest):
        return manifest


def this_machine(options: NodeOptions) -> Machine:
    """Measure this machine: free RAM, disk and GPU memory, and its speed at matrix products."""
    folder = next(path for path in (options.data_directory, *options.data_directory.parents) if path.is_dir())
    usable = options.device != "cpu" and torch.version.cuda is not None
    gpu_bytes = gpu_room_bytes(CommandRunner(), options.limits.gpu_memory_share) if usable else 0
    free_bytes = shutil.disk_usage(folder).free
    return Machine(
        available_bytes("cpu"), free_bytes, measured_flops(options.limits.threads(options.threads)), gpu_bytes
    )


def measured_flops(threads: int) -> float:
    """Measure matrix products with so many threads: float32 operations per second, the best of a few."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left = torch.ones(SPEED_ELEMENTS, SPEED_ELEMENTS)
        seconds = []
        for _ in range(SPEED_REPEATS):
            began = time.perf_counter()
            torch.mm(left, left)
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return 2 * SPEED_ELEMENTS**3 / min(seconds)
