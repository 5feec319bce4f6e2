"""Collective operations of one learner's processes; all of them make each call, in the same order.

A learner on one device is a group of one: then nothing is sent, and `torch.distributed` is not even imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from peer.learner.imports import stay_on_this_machine

LONGEST_WAIT = timedelta(days=30)  # in effect none: a dead process ends all others (`peer.learner.ranks.first_rank`)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Process `rank` of `size`. If `sharded`, each holds a part of every tensor; otherwise all hold the same."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    sharded: bool = False

    @property
    def leads(self) -> bool:
        """Whether this process is the one that the peer talks to."""
        return self.rank == 0

    def own_threads(self, threads: int) -> int:
        """Return this process's share of the learner's threads."""
        return max(1, threads // self.size)

    def add(self, tensor: Tensor) -> None:
        """Replace `tensor` by the sum over all processes, with the same bits everywhere."""
        if self.size > 1:
            from torch import distributed

            there = tensor.to(self.device)
            distributed.all_reduce(there)
            _bring_back(there, tensor)

    def add_parts(self, tensor: Tensor) -> None:
        """Sum over all processes if each holds its own part; otherwise every process has the sum already."""
        if self.sharded:
            self.add(tensor)

    def share(self, tensor: Tensor, source: int = 0) -> None:
        """Replace `tensor` by that of process `source`."""
        if self.size > 1:
            from torch import distributed

            there = tensor.to(self.device)
            distributed.broadcast(there, source)
            _bring_back(there, tensor)

    def largest(self, number: int) -> int:
        """Return the largest number of all processes."""
        if self.size == 1:
            return number
        from torch import distributed

        found = torch.tensor(number, device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def gathered(self, content: bytes) -> list[bytes]:
        """Return the content of all processes, in order, in the first process; empty contents in the others."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(content)
        self.add(lengths)
        found = []
        for rank, length in enumerate(lengths.tolist()):
            own = bytearray(content) if rank == self.rank else bytearray(length)
            room = torch.frombuffer(own, dtype=torch.uint8)
            self.share(room, rank)
            found.append(bytes(own) if self.leads else b"")
        return found

    def own_share(self, batch: Tensor) -> Tensor:
        """Return this process's sequences of a batch; the first processes get one more if the split is uneven."""
        return torch.tensor_split(batch, self.size)[self.rank]


ALONE = Ranks()


def join(store_descriptor: int, rank: int, size: int, device: str, sharded: bool) -> Ranks:
    """Join the other processes through the memory behind `store_descriptor`; returns when all have joined."""
    from torch import distributed

    on_gpu = torch.device(device).type == "cuda"
    stay_on_this_machine()
    store = distributed.FileStore(f"/proc/self/fd/{store_descriptor}", size)  # type: ignore[attr-defined]
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=LONGEST_WAIT,
        device_id=torch.device(device) if on_gpu else None,
    )
    return Ranks(rank, size, device, sharded)


def _bring_back(there: Tensor, tensor: Tensor) -> None:
    if there is not tensor:
        tensor.copy_(there)
