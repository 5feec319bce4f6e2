"""Synchronous data-parallel training of the same model, as torch does it on CPUs: gradients are summed by gloo.

This is one machine of `torch.distributed`; the first prints its measurements. A step is held to a pace like a
learner's. The gradient is one vector, cut into buckets. As in `DistributedDataParallel`, each is sent as soon as
backward would have made it, to hide communication behind the computation. gloo sums in a ring, in which each of n
machines sends 2 (n - 1) / n of the gradient: no other way sends less.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from coordinator.run.manifest import RunConfig
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.learner import make_learner
from peer.model.build import loss

FORWARD_SHARE = 1 / 3  # of a step's computation; backward takes twice as long


def main() -> None:
    options = parser().parse_args()
    config = RunConfig.from_toml(options.run)
    torch.set_num_threads(1)
    windows = TrainingWindows(load_tokens(config.data).train, config.data, bytes(32), str(options.rank))
    learner = make_learner(config, windows)
    optimizer = torch.optim.AdamW(learner.model.parameters(), lr=config.inner.learning_rate)
    buckets = learner.gradient.tensor_split(options.buckets)[::-1]  # the last layers' gradients come first
    dist.init_process_group("gloo", f"tcp://{options.address}:7600", rank=options.rank, world_size=options.machines)
    seconds = []
    for step in range(options.steps):
        dist.barrier()
        began = time.monotonic()
        learner.gradient.zero_()
        loss(learner.model, windows.batch(step)).backward()
        average(buckets, getattr(torch, options.gradients), began, options.step_seconds)
        optimizer.step()
        seconds.append(time.monotonic() - began)
    if options.rank == 0:
        print(json.dumps({"step_seconds": seconds, "agreement": agree(learner.gradient)}), flush=True)
    else:
        agree(learner.gradient)
    dist.destroy_process_group()


def average(buckets: Sequence[Tensor], wire_type: torch.dtype, began: float, step_seconds: float) -> None:
    """Average every bucket over all machines; returns no sooner than at the end of the pace."""
    under_way = []
    for count, bucket in enumerate(buckets, 1):
        made_at = began + step_seconds * (FORWARD_SHARE + (1 - FORWARD_SHARE) * count / len(buckets))
        time.sleep(max(0.0, made_at - time.monotonic()))
        sent = bucket.div_(dist.get_world_size()).to(wire_type)
        under_way.append((bucket, sent, dist.all_reduce(sent, async_op=True)))
    for bucket, sent, work in under_way:
        work.wait()
        bucket.copy_(sent)


def agree(vector: Tensor) -> bool:
    """Whether the vector has the same norm on every machine."""
    least, most = vector.norm().reshape(1), vector.norm().reshape(1)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return bool(least == most)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--address", required=True, help="of the first machine")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--machines", type=int, required=True)
    parser.add_argument("--gradients", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--buckets", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    return parser


if __name__ == "__main__":
    main()
