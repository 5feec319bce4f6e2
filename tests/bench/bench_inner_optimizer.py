"""Compares the cost of a learner's step under two inner optimizers: `bench_inner_optimizer.py [--layers N] …`.

Turns alternate between the optimizers, on one thread. Prints for each the CPU time of a whole step and of the
optimizer's part, the least of all turns.
"""

from __future__ import annotations

import argparse
import time

import torch

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.learner.learner import Learner, make_learner
from peer.learner.optimizers.inner_optimizer import state_bytes

SIZES = {  # hidden size, layers: about so many million parameters
    "0.4M": (128, 2),
    "6M": (256, 7),
    "25M": (512, 8),
}
NAMES = ("adamw8bit", "muon8bit", "muon")


class Windows:
    """Random tokens, whose values do not change the cost of a step."""

    def __init__(self, config: RunConfig) -> None:
        shape = (config.data.sequences_per_step, config.data.context_tokens + 1)
        self._tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))

    def batch(self, window: int) -> torch.Tensor:
        return self._tokens


def learner(name: str, size: str, sequences: int, context: int) -> Learner:
    hidden, layers = SIZES[size]
    model = ModelSpec(hidden_size=hidden, layers=layers, heads=hidden // 32, intermediate_size=hidden * 11 // 4)
    data = DataSpec(sequences_per_step=sequences, context_tokens=context)
    config = RunConfig(model=model, data=data, inner=InnerSpec(optimizer=name))
    return make_learner(config, Windows(config))


def timed(one: Learner) -> tuple[float, float]:
    """Return the CPU seconds of a step, and of the optimizer in it."""
    spent = []
    optimizer = one._optimizer
    plain = optimizer.step

    def step(closure: object = None) -> None:
        started = time.thread_time()
        plain(closure)
        spent.append(time.thread_time() - started)

    optimizer.step = step
    started = time.thread_time()
    one.step()
    whole = time.thread_time() - started
    optimizer.step = plain
    return whole, spent[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="25M")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    learners = {name: learner(name, given.size, given.sequences, given.context) for name in NAMES}
    parameters = sum(one.elements for one in learners[NAMES[0]].fragments)
    print(f"{parameters:,} parameters, {given.sequences * given.context:,} tokens a step, least of {given.turns} turns")
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for one in learners.values():
        one.step()  # makes the state
    for _ in range(given.turns):
        for name, one in learners.items():
            took[name].append(timed(one))
    base = min(whole for whole, _ in took[NAMES[0]])
    for name, turns in took.items():
        whole, optimizer = min(one for one, _ in turns), min(one for _, one in turns)
        kept = state_bytes(learners[name]._optimizer) / parameters
        print(
            f"{name:>10}: step {whole * 1e3:8.1f} ms ({whole / base:.3f} of {NAMES[0]}), "
            f"optimizer {optimizer * 1e3:8.1f} ms, {kept:.2f} bytes of state a parameter"
        )


if __name__ == "__main__":
    main()
