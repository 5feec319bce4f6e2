"""Measures the memory of a learner's process over steps of the tiny run, with snapshots, adoptions and saved states.

`python -m tests.bench.soak.steps [--steps 1500] [--every 150]`. Prints steps and megabytes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from peer.cli.arguments import run_config
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.learner import Learner, make_learner
from peer.machine.heap import keep_freed_memory
from tests.bench.soak.memory import own_bytes

STEPS_PER_SAVE = 10  # every 30 s at a step in 3 s, as in the soak of an hour
MB = 1e6


def work(learner: Learner, round_number: int) -> None:
    """Do a learner's part of a round: give a snapshot, and adopt an anchor."""
    layout = learner.fragments[round_number % len(learner.fragments)]
    vector = torch.empty(layout.elements)
    counters = learner.snapshot(layout.index, vector)
    learner.adopt(layout.index, vector.clone(), vector, counters.steps, counters.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as learners' processes do
    config = run_config(None, None)
    data = load_tokens(config.data, config.model.vocabulary)
    learner = make_learner(config, TrainingWindows(data.train, config.data, b"soak", "learner"))
    spacing = config.pace.steps_per_version // config.pace.fragments
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, options.steps + 1):
            learner.step()
            if step % spacing == 0:
                work(learner, step // spacing)
            if step % STEPS_PER_SAVE == 0:
                save_file(learner.export_state(), Path(folder) / "state.safetensors")
            if step % options.every == 0:
                print(f"{step} {own_bytes(Path('/proc/self')) / MB:.1f}", flush=True)


if __name__ == "__main__":
    main()
