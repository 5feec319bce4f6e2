"""One worker of synchronous data-parallel training that survives its members; gloo sums the gradients.

A worker that survives a failure keeps its process, its state and its computed gradient, and meets the others again at
the rendezvous. A new worker gets the state from one that has the newest. Nothing is read from a disk, and only a worker
that died starts again. A newcomer is let in between two steps, so that no step is lost for it. A step is held to a pace
like a learner's, and its gradient leaves in buckets, as in `DistributedDataParallel`. Prints a line of JSON for each
step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from peer.cli.arguments import run_config
from peer.learner.process import die_with_parent
from tests.bench.elastic.rendezvous import STORE_PORT, Desk, Generation
from tests.bench.elastic.replica import Replica
from tests.bench.links.data_parallel import FORWARD_SHARE

BUCKETS = 4


def main() -> None:
    options = parser().parse_args()
    die_with_parent(options.parent)
    torch.set_num_threads(1)
    replica = Replica(run_config(options.run, None), options.name)
    desk, tried = Desk(options.address), 0
    while True:
        generation = desk.join(options.name, replica.held, tried)
        tried = generation.number
        try:
            Worker(options, replica, generation).train(desk)
        except RuntimeError as error:  # gloo's error for a member that is gone
            print(f"generation {tried}: {error}", file=sys.stderr, flush=True)


class Worker:
    """One member of one generation."""

    def __init__(self, options: argparse.Namespace, replica: Replica, generation: Generation) -> None:
        self._replica = replica
        self._generation = generation
        self._rank = generation.members.index(options.name)
        self._pace_seconds: float = options.step_seconds
        patience = timedelta(seconds=options.timeout_seconds)
        store = TCPStore(options.address, STORE_PORT, is_master=False, timeout=patience, wait_for_workers=False)
        named = PrefixStore(f"generation {generation.number}", store)
        self._group = ProcessGroupGloo(named, self._rank, len(generation.members), patience)

    def train(self, desk: Desk) -> None:
        """Train until another worker waits to be let in; raises RuntimeError if a member is gone."""
        for part in self._replica.state:
            self._group.broadcast(part.view(-1), 0).wait()  # type: ignore[attr-defined]
        goes_on = True
        while goes_on:
            began = time.monotonic()
            if self._replica.gradient_of != self._replica.held:
                self._replica.backward()
            else:
                began = 0.0  # it was computed before the last generation failed
            gradient, goes_on = self._sum(began, desk)
            self._replica.step(gradient / len(self._generation.members), self._generation.number)
            self._tell()

    def _sum(self, began: float, desk: Desk) -> tuple[Tensor, bool]:
        """Return the sum of all members' gradients, at the end of the pace, and whether to go on after this step."""
        own = self._replica.gradient
        sent = torch.cat([own.new_zeros(1), own])
        buckets = sent.tensor_split(BUCKETS)[::-1]  # the last layers' gradients come first
        under_way = []
        for count, bucket in enumerate(buckets, 1):
            made_at = began + self._pace_seconds * (FORWARD_SHARE + (1 - FORWARD_SHARE) * count / BUCKETS)
            time.sleep(max(0.0, made_at - time.monotonic()))
            if count == BUCKETS and self._rank == 0:
                sent[0] = not desk.goes_on(self._generation.number)
            under_way.append(self._group.allreduce(bucket))  # type: ignore[attr-defined]
        for work in under_way:
            work.wait()
        return sent[1:], not sent[0]

    def _tell(self) -> None:
        held = self._replica.held
        told = {"generation": held.generation, "step": held.step, "members": len(self._generation.members)}
        print(json.dumps({**told, "seconds": time.monotonic()}), flush=True)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True, help="of the rendezvous")
    parser.add_argument("--run", type=Path, help="default: the tiny run")
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--timeout-seconds", type=float, required=True, help="when a silent member is given up")
    parser.add_argument("--parent", type=int, default=os.getppid())
    return parser


if __name__ == "__main__":
    main()
