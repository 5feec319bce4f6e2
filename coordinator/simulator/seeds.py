"""Runs of many seeds in several processes, with each one's report or error."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from coordinator.simulator.chaos import SeedReport, run_seed

SEEDS_PER_TASK = 10


@dataclass(frozen=True, slots=True)
class Kind:
    """The options of `run_seed`: what to draw from a seed besides faults."""

    real_keys: bool = False
    attacked: bool = False
    strangers: bool = False


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "honest": Kind(),
        "attacked": Kind(attacked=True),
        "strangers": Kind(strangers=True),
        "attacked strangers": Kind(attacked=True, strangers=True),
        "real keys": Kind(real_keys=True),
    }
)
"""Kinds by the name under which their seeds are recorded (docs/research/seed-ledger.md)."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """A seed, its report or error, and its processor time."""

    seed: int
    report: SeedReport | str
    cpu_seconds: float


def outcomes(seeds: Sequence[int], kind: Kind, processes: int) -> Iterator[SeedOutcome]:
    """Yield the outcomes of the seeds in order; the error of a lone seed comes with its traceback."""
    run = partial(_run, kind=kind, verbose=len(seeds) == 1)
    if processes <= 1 or len(seeds) <= SEEDS_PER_TASK:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, seeds, chunksize=SEEDS_PER_TASK)


def _run(seed: int, kind: Kind, verbose: bool) -> SeedOutcome:
    started = time.process_time()
    try:
        report: SeedReport | str = run_seed(seed, kind.real_keys, kind.attacked, kind.strangers)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be named
        report = traceback.format_exc() if verbose else f"{type(error).__name__}: {error}"
    return SeedOutcome(seed, report, time.process_time() - started)
