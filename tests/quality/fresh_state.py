"""Measures what a newcomer loses that begins with the swarm's parameters, but without an inner optimizer's state.

Run `python -m tests.quality.fresh_state [--seeds 0,1,2] [--joins-at 200]`. It prints the held-out loss some steps after
a learner took a trained one's place. It does so with that one's state, without it, and without it at the full rate
from the first step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from peer.cli.arguments import run_config
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.evaluation import Evaluator
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.learner.optimizers.inner_optimizer import REWARM_STEPS

CONFIG = Path("examples/tiny.toml")
LOOKS = (8, 24, 48, 96)  # steps after that


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--joins-at", type=int, default=200, help="the step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds.split(","):
        compare(seed, options.joins_at)


def compare(seed: str, joins_at: int) -> None:
    """Train each way to begin, and print a line for it."""
    config = run_config(CONFIG, None)
    data = load_tokens(config.data, config.model.vocabulary)
    evaluator = Evaluator(config, data.heldout)

    def learner(text: str) -> Learner:
        return make_learner(config, TrainingWindows(data.train, config.data, b"fresh-state", f"{text}-{seed}"))

    veteran = learner("veteran")
    train(veteran, 0, joins_at)
    saved = veteran.export_state()
    for way in ("with state", "without state", "without state, full rate"):
        newcomer = learner("newcomer")
        if way == "with state":
            newcomer.import_state(saved)
        else:
            newcomer.load_all(torch.cat(parameters_of(veteran)))
        if way == "without state, full rate":
            newcomer._state_steps = REWARM_STEPS
        found = []
        for before, after in zip((0, *LOOKS), LOOKS, strict=False):
            train(newcomer, joins_at + before, after - before)
            found.append(f"{evaluator.loss(parameters_of(newcomer)):.4f}")
        print(f"seed {seed}, {way}: {', '.join(found)} after {', '.join(map(str, LOOKS))} steps", flush=True)


def train(learner: Learner, progress_steps: int, steps: int) -> None:
    for step in range(steps):
        learner.set_progress(progress_steps + step)
        learner.step()


if __name__ == "__main__":
    main()
