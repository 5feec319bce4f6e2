"""Whole runs under random faults (design §6.5): every seed must keep its promises and certify ten versions.

A seed that fails is named by its error; `python -m coordinator.simulator --seeds 1 --first SEED` replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from coordinator.simulator.chaos import STRIKES, VERSIONS_MIN, SeedReport, draw_world, run_seed
from tests.checkout import ROOT
from tests.extra import extra

SEEDS = 15  # docs/research/seed-ledger.md counts thousands, by `make seeds`
SEEDS_WITH_REAL_KEYS = 2
SEEDS_UNDER_ATTACK = 12
SEEDS_WITH_STRANGERS = 3
CHUNK = 3

pytestmark = pytest.mark.sim


def run(seed: int, real_keys: bool = False, attacked: bool = False, strangers: bool = False) -> SeedReport:
    """Run one seed; an error carries the command to replay it."""
    try:
        return run_seed(seed, real_keys, attacked, strangers)
    except Exception as error:
        flags = " --real-keys" * real_keys + " --attacked" * attacked + " --strangers" * strangers
        error.add_note(f"replay: python -m coordinator.simulator --seeds 1 --first {seed}{flags}")
        raise


def test_a_new_default_changes_no_draw() -> None:
    """Seeds are recorded by number. Every draw depends on the run's id, which depends on all settings."""
    assert draw_world(0).manifest.run_id.hex()[:16] == "f1f700bd67be3e08"


@pytest.mark.parametrize("first", [0, *extra(range(CHUNK, SEEDS, CHUNK))])
def test_seeds(first: int) -> None:
    reports = [run(seed) for seed in range(first, first + CHUNK)]
    assert [report.seed for report in reports if report.versions < VERSIONS_MIN] == []
    struck = sum((Counter(report.faults) for report in reports), Counter[str]())
    assert len(struck) >= len(STRIKES) / 2


@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SEEDS_WITH_REAL_KEYS))
def test_seeds_with_real_keys(seed: int) -> None:
    assert run(seed, real_keys=True).versions >= VERSIONS_MIN


@pytest.mark.parametrize("seeds", [range(CHUNK), *extra([range(CHUNK, SEEDS_UNDER_ATTACK)])])
def test_seeds_under_attack(seeds: range) -> None:
    """No honest peer is ever banned, versions go on, and hostile peers are banned if their acts convict them."""
    reports = [run(seed, attacked=True) for seed in seeds]
    assert all(report.versions >= VERSIONS_MIN for report in reports)
    assert sum(report.banned for report in reports) > 0


@pytest.mark.parametrize("attacked", [*extra([False]), True], ids=["honest", "attacked"])
def test_seeds_with_strangers(attacked: bool) -> None:
    """Newcomers are on probation, and members audit each other: the same promises hold."""
    reports = [run(seed, attacked=attacked, strangers=True) for seed in range(SEEDS_WITH_STRANGERS)]
    assert all(report.versions >= VERSIONS_MIN for report in reports)
    assert sum(report.events.get("audited", 0) for report in reports) > 0


@pytest.mark.parametrize("seed", [22, 138])
def test_a_silent_founder_and_a_silent_newcomer_stop_nobody(seed: int) -> None:
    """They are two of five members, but one of four voters (docs/adr/0056)."""
    assert run(seed, attacked=True, strangers=True).versions >= VERSIONS_MIN


def test_a_run_goes_on_once_a_silent_third_of_who_train_has_left() -> None:
    """Two of six never commit, and the host only votes: no version need come while they stay (docs/adr/0038)."""
    report = run(50127, attacked=True)
    assert report.hostile == 2
    assert report.versions >= VERSIONS_MIN


@pytest.mark.parametrize("hash_seed", ["1", *extra(["2"])])
def test_a_seed_repeats_itself_in_another_process(hash_seed: str) -> None:
    """Nothing may depend on the order of a set of names, which differs from process to process."""
    program = "from coordinator.simulator.chaos import run_seed; print(run_seed(7))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(run(7))
