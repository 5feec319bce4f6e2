"""Times merging 16 vectors of 1 Mi elements, beside a plain element-wise mean and byzfl's centered clipping.

Run `python tests/bench/bench_aggregators.py`; prints one JSON object. One thread; the best of several interleaved
runs, so that ratios come from one machine in one state. byzfl is not a dependency, and null if it is not found:
`pip install --no-deps --target FOLDER byzfl==0.0.11`, then run with PYTHONPATH=FOLDER.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when numpy is imported

import numpy as np
import torch
from torch import Tensor

from peer.numerics.merge import weight_shares
from peer.numerics.robust.rules import AGGREGATORS

MEMBERS = 16
ELEMENTS = 1 << 20
REPEATS = 40
SLOW = frozenset({"median", "trimmed_mean", "nnm_trimmed_mean"})  # they sort; five are enough
ITERATIONS = 20  # of byzfl's rule, which does not iterate to a fixed point: BTARD's number
RADIUS = 1000.0  # near the median distance of these inputs, as the rule needs it


def plain_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Do the least that any merge must: add the inputs up in roster order, and check that they are finite.

    It is as fast as we could make it: torch multiplies and adds in one step, over whole vectors. That rounds once,
    while `mean` rounds twice, for the same bytes everywhere. Only the sum is checked, because no addition makes NaN
    or infinity finite again. Checking all inputs first takes twice as long.
    """
    first, *others = weight_shares(weights)
    total = vectors[0] * first
    for vector, share in zip(vectors[1:], others, strict=True):
        total.add_(vector, alpha=share)
    if not np.isfinite(total.numpy()).all():
        raise ValueError("an input is not finite")
    return total


def byzfl_clip() -> Callable[[Sequence[Tensor], Sequence[float]], object] | None:
    """Load byzfl's rule without the package's `__init__`, which imports torchvision and plotting libraries."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        return None
    bare = ModuleType("byzfl")
    bare.__path__ = list(found.submodule_search_locations or ())
    sys.modules["byzfl"] = bare
    rules = importlib.import_module("byzfl.aggregators.aggregators")
    return lambda vectors, weights: rules.CenteredClipping(L=ITERATIONS, tau=RADIUS)(list(vectors))


def best_seconds(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(tasks, float("inf"))
    for repeat in range(REPEATS):
        for name, task in tasks.items():
            if repeat < (5 if name in SLOW or name == "byzfl" else REPEATS):
                start = time.perf_counter()
                task()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(ELEMENTS, generator=generator)
    vectors = [common + torch.randn(ELEMENTS, generator=generator) for _ in range(MEMBERS)]
    weights = [1.0 + member / MEMBERS for member in range(MEMBERS)]
    tasks: dict[str, Callable[[], object]] = {"plain_mean": lambda: plain_mean(vectors, weights)}
    for name, rule in AGGREGATORS.items():
        tasks[name] = lambda rule=rule: rule(vectors, weights)
    if (other := byzfl_clip()) is not None:
        tasks["byzfl"] = lambda: other(vectors, weights)
    torch.set_num_threads(1)
    seconds = best_seconds(tasks)
    byzfl = seconds.get("byzfl")
    report = {
        "members": MEMBERS,
        "elements": ELEMENTS,
        "byzfl_iterations": ITERATIONS if byzfl else None,
        "milliseconds": {name: round(1000 * value, 2) for name, value in seconds.items()},
        "robust_rda_over_plain_mean": round(seconds["robust_rda"] / seconds["plain_mean"], 2),
        "robust_rda_over_mean": round(seconds["robust_rda"] / seconds["mean"], 2),
        "byzfl_over_robust_rda": round(byzfl / seconds["robust_rda"], 2) if byzfl else None,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
