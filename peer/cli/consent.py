"""Asking the owner of this machine before it takes part in a run: only the run's manifest is fetched for that.

The manifest proves itself by its hash, and it is fetched on a stranger's visit (`peer.sync.guest`), so that a person
who says no has shown nothing but an address.
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

SPEED_ELEMENTS = 512  # a side of the square matrices multiplied
SPEED_REPEATS = 8


def consents(invite: Invite, options: NodeOptions, ask: Callable[[str], bool]) -> bool:
    """Whether this machine may take part; `ask` shows the terms. A run that it took part in before is not asked about.

    Raises NetworkError if nobody answers for the run, LocalError if this machine cannot ask, UsageError if the run
    wants a package that is not here.
    """
    if known_manifest(options.data_directory, invite.run_id) is not None:
        return True
    return agrees(asyncio.run(fetch_manifest(invite, options)), options, ask)


def agrees(manifest: Manifest, options: NodeOptions, ask: Callable[[str], bool]) -> bool:
    """`ask` about this run; nobody is asked, and UsageError raised, if the run wants a package that is not here."""
    check_packages(manifest.config)
    return ask(describe(manifest, options, this_machine(options)))


async def fetch_manifest(invite: Invite, options: NodeOptions) -> Manifest:
    """The run's manifest from those whom the invite names, and nothing else."""
    async with as_guest(invite, options.identity_path) as (_, manifest):
        return manifest


def this_machine(options: NodeOptions) -> Machine:
    """Free memory, on its GPU too, and disk, and how fast this machine multiplies."""
    folder = next(path for path in (options.data_directory, *options.data_directory.parents) if path.is_dir())
    usable = options.device != "cpu" and torch.version.cuda is not None
    gpu_bytes = gpu_room_bytes(CommandRunner(), options.limits.gpu_memory_share) if usable else 0
    free_bytes = shutil.disk_usage(folder).free
    return Machine(
        available_bytes("cpu"), free_bytes, measured_flops(options.limits.threads(options.threads)), gpu_bytes
    )


def measured_flops(threads: int) -> float:
    """float32 operations per second of matrix products with so many threads, the best of a few."""
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
