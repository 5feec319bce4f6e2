"""Measures the cost of merging an adapter's factors A and B separately, against ways that merge their product exactly.

Run `python -m tests.quality.adapter_merges --learners 4 --rank 8 --data own --rates 1e-3,3e-3`; prints one JSON object
per way and rate. A base of 105 thousand parameters is pretrained on half of the standard library and fine-tuned on the
other half. All learners read it, or each has its own slice. All learners merge every `--period` steps; the last way
sees all their windows at every step.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.manifest import RunConfig
from peer.data.windows import TrainingWindows
from peer.lab.baseline import JointBatches, full_schedule
from peer.lab.data import side_texts
from peer.learner.evaluation import Evaluator
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.model.build import llama_config
from peer.model.description import describe
from peer.model.located import located
from peer.numerics.fragments import named_tensors

CONFIG = Path("tests/quality/small.toml")
PERIOD = 24
PRETRAINING_STEPS = 1200
OUTER_RATE = 0.65
A, B = "lora_A", "lora_B"

Named = dict[str, Tensor]


def mean(before: Named, after: Sequence[Named]) -> Named:
    """Merge each factor separately, by its mean."""
    return {name: torch.stack([one[name] for one in after]).mean(0) for name in before}


def directions(before: Named, after: Sequence[Named]) -> Named:
    """Merge each factor separately, as Muster ships: mean direction, mean length, times OUTER_RATE."""
    found = {}
    for name, start in before.items():
        moved = [one[name] - start for one in after]
        lengths = [float(one.norm()) for one in moved]
        direction = torch.stack([one / max(length, 1e-12) for one, length in zip(moved, lengths, strict=True)]).mean(0)
        length = OUTER_RATE * sum(lengths) / len(lengths)
        found[name] = start + direction * (length / max(float(direction.norm()), 1e-12))
    return found


def product(before: Named, after: Sequence[Named]) -> Named:
    """Merge the products by their mean, cut back to the rank."""
    found = {}
    for name in (one for one in before if A in one):
        other = name.replace(A, B)
        whole = torch.stack([one[other] @ one[name] for one in after]).mean(0)
        left, sizes, right = torch.linalg.svd(whole, full_matrices=False)
        rank = before[name].shape[0]
        root = sizes[:rank].sqrt()
        found[name], found[other] = root[:, None] * right[:rank], left[:, :rank] * root
    return found


WAYS: dict[str, tuple[Callable[[Named, Sequence[Named]], Named], str]] = {  # and whose turn it is to be trained
    "apart": (mean, "both"),
    "apart, as shipped": (directions, "both"),
    "only B": (mean, B),
    "only B, as shipped": (directions, B),
    "in turn": (mean, "turns"),
    "product": (product, "both"),
}


def pretrained(folder: Path, config: RunConfig, text: Tensor) -> Path:
    """Pretrain the base, and write it with `save_pretrained`; returns its folder."""
    from transformers import LlamaForCausalLM

    learner = make_learner(config, TrainingWindows(text, config.data, b"adapter-base", "learner"))
    for step in range(PRETRAINING_STEPS):
        learner.set_progress(step)
        learner.step()
    model = LlamaForCausalLM(llama_config(config.model, config.data.context_tokens))
    state = {name: value.detach().clone() for name, value in learner.model.state_dict().items()}
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return folder


def named_of(learner: Learner) -> Named:
    found = named_tensors(learner.model)
    return {spec.name: found[spec.name].detach().clone() for layout in learner.fragments for spec in layout.tensors}


def flat(learner: Learner, named: Named) -> Tensor:
    parts = [named[spec.name].reshape(-1) for layout in learner.fragments for spec in layout.tensors]
    return torch.cat(parts)


def allow(learner: Learner, turn: str) -> None:
    """Let the learner train only the factors whose turn it is."""
    for name, parameter in learner.model.named_parameters():
        if A in name or B in name:
            parameter.requires_grad_(turn == "both" or turn in name)


def together(learners: Sequence[Learner], way: str, rounds: int, period: int) -> list[Tensor]:
    """Train and merge; returns the final parameters by fragment."""
    merge, turn = WAYS[way]
    for number in range(rounds):
        before = named_of(learners[0])
        for learner in learners:
            allow(learner, (B, A)[number % 2] if turn == "turns" else turn)
            for step in range(period):
                learner.set_progress(number * period + step)
                learner.step()
        merged = merge(before, [named_of(learner) for learner in learners])
        for learner in learners:
            learner.load_all(flat(learner, merged))
    return parameters_of(learners[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--data", choices=("all", "own"), default="all", help="what a learner reads")
    parser.add_argument("--rates", default="1e-3,3e-3,9e-3")
    parser.add_argument("--ways", default="", help="separated by semicolons; default: every one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--period", type=int, default=PERIOD, help="steps between two merges")
    parser.add_argument("--optimizer", default="adamw8bit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, help="a folder that keeps the base for the next time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    raw = RunConfig.from_toml(CONFIG)
    first, second = side_texts(raw.data)
    with tempfile.TemporaryDirectory() as folder:
        inner = raw.inner.model_copy(update={"learning_rate": 3e-3})
        base = given.base or Path(folder) / "base"
        if not base.exists():
            pretrained(base, raw.model_copy(update={"inner": inner, "versions": 10**6}), first.train)
        adapter = AdapterSpec(rank=given.rank, alpha=2.0 * given.rank, base_precision="float32")
        model = raw.model.model_copy(update={"source": str(base)})
        described = describe(raw.model_copy(update={"model": model, "adapter": adapter, "seed": given.seed}))
        config = located(described.config, str(base))
        for way in given.ways.split(";") if given.ways else (*WAYS, "every step"):
            for rate in map(float, given.rates.split(",")):
                found = judged(config, way, rate, given, second.train)
                loss = Evaluator(found[0], second.heldout).loss(found[1])
                said = {
                    name: getattr(given, name) for name in ("learners", "rank", "data", "optimizer", "seed", "period")
                }
                print(json.dumps({"way": way, "rate": rate, "loss": round(loss, 5)} | said), flush=True)


def judged(
    config: RunConfig, way: str, rate: float, given: argparse.Namespace, text: Tensor
) -> tuple[RunConfig, list[Tensor]]:
    """Train one way at one rate; returns the run's config and its parameters."""
    steps, learners = given.period * given.rounds, given.learners
    update = {"learning_rate": rate, "weight_decay": 0.0, "warmup_steps": 10, "optimizer": given.optimizer}
    # the schedule of a learner follows the versions of all fragments
    versions = math.ceil(steps * config.pace.fragments / config.pace.steps_per_version)
    run = config.model_copy(update={"inner": config.inner.model_copy(update=update), "versions": versions})
    share = len(text) // learners
    texts = [text[share * one : share * (one + 1)] if given.data == "own" else text for one in range(learners)]
    sources: list[Batches] = [
        TrainingWindows(one, run.data, b"adapter-merges", f"learner-{number}-{given.seed}")
        for number, one in enumerate(texts)
    ]
    if way != "every step":
        return run, together([make_learner(run, one) for one in sources], way, given.rounds, given.period)
    learner = make_learner(run, JointBatches(sources, full_schedule(learners, steps)))
    for step in range(steps):
        learner.set_progress(step)
        learner.step()
    return run, parameters_of(learner)


if __name__ == "__main__":
    main()
