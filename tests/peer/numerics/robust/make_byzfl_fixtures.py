"""Freezes byzfl's results for a few stacks, as JSON on standard output, for fixtures/byzfl.json.

Needs byzfl 0.0.11, which is no dependency: it pulls in torchvision and plotting libraries. Its differences are
allowed for here. Its Krum counts n − f − 1 neighbours, so f + 1 is asked for; its Multi-Krum does too, so it only sees
stacks in which the hostile members are out of the question; centered clipping cannot be given a start, and starts
at 0, which the fixed point forgets; pre-aggregators change their input. Arrays are float64, where no median is
interpolated in float32.
"""

import json
import sys
from importlib.metadata import version

import byzfl
import numpy as np

STEPS = 5000
CASES = ((5, 1, 6), (8, 2, 10), (12, 3, 8))  # members, hostile, elements


def median_distance(values: np.ndarray) -> float:
    """Return ρ as `peer.numerics.robust` chooses it, computed with byzfl's own geometric median."""
    centre = byzfl.GeometricMedian(nu=1e-9, T=STEPS)(values.copy())
    return float(np.median(np.linalg.norm(values - centre, axis=1)))


def results(values: np.ndarray, hostile: int) -> dict[str, list[float]]:
    rules = {
        "mean": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed_mean": byzfl.TrMean(f=hostile),
        "geometric_median": byzfl.GeometricMedian(nu=1e-9, T=STEPS),
        "krum": byzfl.Krum(f=hostile + 1),
        "multi_krum": byzfl.MultiKrum(f=hostile),
        "centered_clip": byzfl.CenteredClipping(L=STEPS, tau=median_distance(values)),
        "nnm_trimmed_mean": lambda stack: byzfl.TrMean(f=hostile)(byzfl.NNM(f=hostile)(stack)),
    }
    return {name: rule(values.copy()).tolist() for name, rule in rules.items()}


def main() -> None:
    generator = np.random.default_rng(0)
    cases = []
    for members, hostile, elements in CASES:
        values = generator.standard_normal(elements) + generator.standard_normal((members, elements))
        values[:hostile] *= -20
        values = values.astype(np.float32).astype(np.float64)
        expected = results(values, hostile)
        cases.append({"hostile": hostile, "values": values.tolist(), "results": expected})
    json.dump({"byzfl": version("byzfl"), "cases": cases}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
