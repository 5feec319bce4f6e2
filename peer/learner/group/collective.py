"""What the processes of one learner compute together; each call is made by all of them, in the same order.

A learner on one device is a group of its own: then nothing is sent, and `torch.distributed` is not even imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from peer.learner.imports import stay_on_this_machine

LONGEST_WAIT = timedelta(days=30)  # nobody waits for the dead: they end all others (`peer.learner.ranks.first_rank`)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The process `rank` of `size`. `sharded`: each holds a part of every tensor, otherwise all hold the same."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    sharded: bool = False

    @property
    def leads(self) -> bool:
        """Whether this process is the learner that its peer knows."""
        return self.rank == 0

    def own_threads(self, threads: int) -> int:
        """How many of a learner's are this process's."""
        return max(1, threads // self.size)

    def add(self, tensor: Tensor) -> None:
        """The sum of everybody's, the same bits everywhere."""
        if self.size > 1:
            from torch import distributed

            there = tensor.to(self.device)
            distributed.all_reduce(there)
            _bring_back(there, tensor)

    def add_parts(self, tensor: Tensor) -> None:
        """The sum of what each has of a part of its own; where nobody has parts, everybody has the sum already."""
        if self.sharded:
            self.add(tensor)

    def share(self, tensor: Tensor, source: int = 0) -> None:
        """What the process `source` has."""
        if self.size > 1:
            from torch import distributed

            there = tensor.to(self.device)
            distributed.broadcast(there, source)
            _bring_back(there, tensor)

    def largest(self, number: int) -> int:
        """The largest of everybody's."""
        if self.size == 1:
            return number
        from torch import distributed

        found = torch.tensor(number, device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def gathered(self, content: bytes) -> list[bytes]:
        """Everybody's, in order, for the first process; the others hear nothing."""
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
        """The sequences of a batch that are this process's, the first processes having one more if need be."""
        return torch.tensor_split(batch, self.size)[self.rank]


ALONE = Ranks()


def join(store_descriptor: int, rank: int, size: int, device: str, sharded: bool) -> Ranks:
    """Meet the others, who have the same memory behind `store_descriptor`; returns when all are there."""
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
