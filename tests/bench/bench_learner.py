"""Compares the speed of Muster's learner and of two loops without a peer: `python tests/bench/bench_learner.py`.

`plain` is the loop that most people write with `transformers`, `leanest` the fastest loop that we can write. All make
the same steps from the same values; they take turns, some steps each, in one process. Options are `--sizes tiny,25m`
(and 124m, 350m, 1b on a GPU), `--optimizer adamw`, and `--compiled`, with which torch compiles all of them (the default
on a GPU). Ratios are medians over turns. MFU is 6 operations per parameter and token, and those of attention, over the
device's peak. For a processor that is the speed of a large matrix product, for a GPU its maker's figure. On a machine
with other work, add `--threads 1 --cpu-time`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.cli.consent import measured_flops
from peer.learner.devices import devices_name
from peer.model.build import parameter_specs
from tests.bench.speed.loops import LOOPS, Loop

Clock = Callable[[], float]

TURN_SECONDS = 2.0
WARM_UP_STEPS = 3
LOSS_TOLERANCE = 0.02  # relative, between loops after the same few steps
BF16_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12, "3090": 71e12}


def _model(width: int, layers: int, vocabulary: int) -> ModelSpec:
    return ModelSpec(
        hidden_size=width,
        layers=layers,
        heads=max(4, width // 64),
        intermediate_size=width // 4 * 11,
        vocabulary=vocabulary,
    )


SIZES: Mapping[str, tuple[ModelSpec, DataSpec]] = {
    "tiny": (_model(128, 2, 256), DataSpec(context_tokens=128, sequences_per_step=8)),
    "25m": (_model(512, 6, 8192), DataSpec(context_tokens=256, sequences_per_step=8)),
    "124m": (_model(768, 12, 50_304), DataSpec(context_tokens=1024, sequences_per_step=16)),
    "350m": (_model(1024, 24, 32_000), DataSpec(context_tokens=1024, sequences_per_step=16)),
    "1b": (_model(2048, 18, 32_000), DataSpec(context_tokens=2048, sequences_per_step=4)),
}


def config_of(size: str, optimizer: str) -> RunConfig:
    model, data = SIZES[size]
    inner = InnerSpec.model_validate({"optimizer": optimizer, "learning_rate": 1e-4, "warmup_steps": 0})
    return RunConfig(model=model, data=data, inner=inner)


def flops_per_token(config: RunConfig) -> float:
    """Return the operations per token, forward and backward, with half of causal attention.

    The embedding's table counts, because it is the head too.
    """
    elements = sum(spec.elements for spec in parameter_specs(config.model))
    return 6.0 * elements + 6.0 * config.model.layers * config.model.hidden_size * config.data.context_tokens


def peak_flops(device: str, threads: int) -> float | None:
    if device == "cpu":
        return measured_flops(threads)
    name = torch.cuda.get_device_name(device)
    return next((flops for card, flops in BF16_PEAK_FLOPS.items() if card in name), None)


def turn(loop: Loop, device: str, clock: Clock, seconds: float) -> float:
    """Return the steps per second by this clock, over about so many seconds."""
    began, steps = clock(), 0
    while clock() - began < seconds:
        loop()
        steps += 1
    if device != "cpu":
        torch.cuda.synchronize(device)
    return steps / (clock() - began)


def compare(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compare the loops on a model of this size; raises RuntimeError if they do not train the same model."""
    config, device = config_of(size, options.optimizer), options.device
    loops = {name: make(config, device, options.compiled) for name, make in LOOPS.items()}
    losses: dict[str, float] = {}
    for name, loop in loops.items():
        losses[name] = [loop() for _ in range(WARM_UP_STEPS)][-1]
    if max(losses.values()) - min(losses.values()) > LOSS_TOLERANCE * min(losses.values()):
        raise RuntimeError(f"the loops do not train the same model: {losses}")
    rates: dict[str, list[float]] = {name: [] for name in loops}
    clock = time.process_time if options.cpu_time else time.perf_counter
    for _ in range(options.turns):
        for name, loop in loops.items():
            rates[name].append(turn(loop, device, clock, options.seconds))
    tokens, peak = config.data.context_tokens * config.data.sequences_per_step, peak_flops(device, options.threads)
    found: dict[str, Any] = {"size": size, "optimizer": options.optimizer, "compiled": options.compiled}
    for name, own in rates.items():
        speed = statistics.median(own) * tokens
        mfu = None if peak is None else round(speed * flops_per_token(config) / peak, 3)
        found[name] = {"tokens_per_second": round(speed), "mfu": mfu}
    for name in list(loops)[1:]:
        pairs = zip(rates["muster"], rates[name], strict=True)
        found[f"muster_over_{name}"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--sizes", default="124m,350m" if has_gpu else "tiny,25m")
    parser.add_argument("--device", default="cuda:0" if has_gpu else "cpu")
    parser.add_argument("--optimizer", default="adamw8bit")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="of a turn")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=has_gpu)
    parser.add_argument("--cpu-time", action="store_true", help="count this process's own, beside other work")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = devices_name((options.device,), options.threads)
    for size in options.sizes.split(","):
        print(json.dumps({"device": device, **compare(size, options)}))


if __name__ == "__main__":
    main()
