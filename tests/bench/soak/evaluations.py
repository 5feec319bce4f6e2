"""Measures the memory of a host's process after each evaluation of the tiny run; with --keep, glibc keeps freed memory.

`python -m tests.bench.soak.evaluations [--evaluations 40] [--keep]`. Prints megabytes, before the first and after each.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch

from peer.cli.arguments import run_config
from peer.data.windows import load_tokens
from peer.rounds import evaluation_loop
from peer.rounds.evaluation_loop import EvaluationLoop, RunPosition
from peer.storage.anchors import genesis_states
from tests.bench.soak.memory import own_bytes

MB = 1e6


async def measure(evaluations: int) -> list[float]:
    """Return this process's own megabytes, before the first and after each evaluation; the first one is full."""
    config = run_config(None, None)
    data = load_tokens(config.data, config.model.vocabulary)
    anchors = [state.anchor for state in genesis_states(config)]
    loop = EvaluationLoop(config, data, lambda: anchors)
    held = [own_bytes(Path("/proc/self")) / MB]
    for versions in range(evaluations):
        await loop.evaluate(RunPosition(versions, 0, 0.0, complete=True), full=versions == 0)
        held.append(own_bytes(Path("/proc/self")) / MB)
    loop.close()
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--keep", action="store_true", help="as the C library would have it")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as peers do
    if options.keep:
        vars(evaluation_loop)["give_back_freed"] = lambda: None
    print(" ".join(f"{one:.0f}" for one in asyncio.run(measure(options.evaluations))))


if __name__ == "__main__":
    main()
