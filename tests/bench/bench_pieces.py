"""Finds how many tokens a processor should take through the model at once: `python tests/bench/bench_pieces.py`.

It makes steps of 12,288 tokens of the tiny model on one thread, in pieces of different sizes (`peer.learner.devices`),
after one step that is not counted. Prints tokens per second of CPU time, also as a multiple of that with all at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.run.manifest import RunConfig
from peer.cli.arguments import run_config
from peer.learner import devices
from peer.learner.learner import make_learner

STEP_TOKENS = 12_288
PIECES = (12_288, 6_144, 4_096, 2_048, 1_024, 512)


class Same:
    """A source that repeats one window; `batch` is int64[sequences, context_tokens + 1]."""

    def __init__(self, config: RunConfig) -> None:
        shape = (STEP_TOKENS // config.data.context_tokens, config.data.context_tokens + 1)
        self._tokens = torch.randint(config.model.vocabulary, shape, generator=torch.Generator().manual_seed(0))

    def batch(self, window: int) -> Tensor:
        return self._tokens


def tokens_per_second(config: RunConfig, tokens_at_once: int, steps: int) -> float:
    """Return the tokens per second of one core's CPU time."""
    devices.PROCESSOR_TOKENS_AT_ONCE = tokens_at_once
    learner = make_learner(config, Same(config))
    learner.step()
    started = time.process_time()
    for _ in range(steps):
        learner.step()
    return steps * STEP_TOKENS / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    config = run_config(None, None)
    found = {size: tokens_per_second(config, size, steps) for size in PIECES}
    print("| tokens at once | tokens/s | times all at once |\n| --- | --- | --- |")
    for size, rate in found.items():
        print(f"| {size:,} | {rate:,.0f} | {rate / found[STEP_TOKENS]:.2f} |")


if __name__ == "__main__":
    main()
