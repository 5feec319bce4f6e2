"""Goodput and uptime, checked against the paper's Table 1, against theory where it exists, and for plausibility."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import UsageError
from peer.plan import paper
from peer.plan.chips import SECONDS_PER_YEAR, Cluster, ExponentiatedWeibull, Speeds, Sync, Timing
from peer.plan.events import Runs
from peer.plan.goodput import covered_seconds, scavenged_time, simulate
from peer.plan.tables import straggler
from tests.extra import extra

TOLERANCE = 4.0  # points, of Table 1
AT_ONCE = ExponentiatedWeibull(1e-6, 1.0, 1.0)  # slices that are back at once
NEVER_YEARS = 1e12

CELLS = [
    (row, column, field)
    for row in paper.AVAILABILITY
    for column in range(len(paper.CHIPS))
    for field in ("goodput", "uptime")
]


@pytest.mark.parametrize(
    ("row", "column", "field"),
    [*CELLS[::7], *extra(one for at, one in enumerate(CELLS) if at % 7)],
    ids=lambda value: str(value),
)
def test_table_1(simulated, row, column, field) -> None:
    """DiLoCo 2604.21428 Table 1 a and b (within 4 points): all sixty cells."""
    ours = 100 * getattr(simulated[row][column], field)
    assert ours == pytest.approx(getattr(paper.AVAILABILITY[row], field)[column], abs=TOLERANCE)


def test_headline_at_1_2_million_chips(simulated) -> None:
    """88 % against 58 % (elastic) and 27 % (not elastic), DiLoCo 2604.21428 Table 1a."""
    column = paper.CHIPS.index(1_200_000)
    found = [100 * simulated[row][column].goodput for row in (("decoupled", 8), ("elastic", 1), ("rigid", 1))]
    assert found == pytest.approx([88, 58, 27], abs=TOLERANCE)


def test_more_chips_never_help_and_more_learners_do(simulated) -> None:
    """Goodput is monotone in N and M."""
    rows = [[cell.goodput for cell in row] for row in simulated.values()]
    for row in rows:
        assert all(more < fewer for fewer, more in pairwise(row))
    for fewer, more in pairwise(rows):
        assert all(one < other for one, other in zip(fewer, more, strict=True))


def test_rule_of_thumb(simulated) -> None:
    """Goodput depends on chips per learner (DiLoCo 2604.21428 §5.2: within 4)."""
    by_size: dict[int, list[float]] = {}
    for (method, learners), row in simulated.items():
        if method != "rigid":
            for chips, cell in zip(paper.CHIPS, row, strict=True):
                by_size.setdefault(chips // learners, []).append(100 * cell.goodput)
    shared = [found for found in by_size.values() if len(found) > 1]
    assert len(shared) == 7
    assert all(max(found) - min(found) < 2 for found in shared)


def test_a_month_of_the_largest_headline_run(simulated) -> None:
    found = simulate(Cluster(1_200_000, 8), days=30, seed=3)
    assert found.goodput == pytest.approx(simulated["decoupled", 8][3].goodput, abs=0.01)
    assert found.seconds_between_failures == pytest.approx(26.3, abs=0.1)


@pytest.mark.parametrize("method", ["decoupled", "elastic", "rigid"])
def test_one_learner_whose_slices_return_at_once(method) -> None:
    """Renewal theory: every step fails with probability p and then costs one pause."""
    timing = Timing(step_seconds=10.0, down_seconds=20.0, up_seconds=20.0, absence=AT_ONCE)
    if method != "rigid":
        timing = Timing(step_seconds=10.0, down_seconds=20.0, up_seconds=0.0, absence=AT_ONCE)
    chips = 1_000_000
    p = -math.expm1(-chips * 10.0 / SECONDS_PER_YEAR)
    found = simulate(Cluster(chips, 1, method, timing=timing), days=20, seed=5)
    assert found.uptime == pytest.approx(10 / (10 + 20 * p), abs=0.01)


def test_uptime_of_independent_learners() -> None:
    alone = simulate(Cluster(1_200_000, 1), days=20, seed=5)
    pair = simulate(Cluster(2_400_000, 2), days=20, seed=6)
    assert pair.goodput == pytest.approx(alone.goodput, abs=0.01)
    assert pair.uptime == pytest.approx(1 - (1 - alone.uptime) ** 2, abs=0.01)


def test_missing_slices_count_in_proportion() -> None:
    """Slices that live 1,000 s and stay away 200 s are there 5/6 of the time, and the learner never stops."""
    away = ExponentiatedWeibull.with_mean(200.0, 1.0, 1.0)
    timing = Timing(step_seconds=5.0, down_seconds=0.0, up_seconds=0.0, absence=away, slice_chips=100)
    cluster = Cluster(10_000, 1, mtbi_years=1e5 / SECONDS_PER_YEAR, timing=timing)
    found = simulate(cluster, days=1, seed=2)
    assert found.uptime == pytest.approx(1.0)
    assert found.goodput == pytest.approx(5 / 6, abs=0.01)


def test_a_learner_of_one_slice_waits_for_it() -> None:
    timing = Timing(slice_chips=100)
    elastic, rigid = (
        simulate(Cluster(100, 1, method, mtbi_years=1e-4, timing=timing), days=5, seed=4)  # type: ignore[arg-type]
        for method in ("elastic", "rigid")
    )
    assert elastic == rigid
    assert elastic.goodput == pytest.approx(elastic.uptime)
    assert elastic.uptime < 0.5


@pytest.mark.parametrize("sync", [Sync(), Sync(quorum=4), Sync(grace_steps=1.0), Sync(quorum=4, overlap_steps=0)])
def test_nothing_is_lost_when_nothing_fails(sync) -> None:
    found = simulate(Cluster(4096, 4, mtbi_years=NEVER_YEARS, sync=sync), days=0.2, seed=0)
    assert found.goodput == found.uptime == pytest.approx(1.0)


def test_grace_costs_no_time_and_fills_merges() -> None:
    """DiLoCo 2604.21428 §3.2: a window inside the overlap makes nobody wait."""
    without, within = (
        simulate(Cluster(1_200_000, 8, sync=Sync(grace_steps=grace)), days=2, seed=1) for grace in (0.0, 0.5)
    )
    assert within.goodput == pytest.approx(without.goodput, abs=0.01)
    assert without.learners_per_merge == 1.0
    assert within.learners_per_merge > 2.0


def test_waiting_for_everyone_couples_failures() -> None:
    """With K = M a learner that pauses soon stops all others."""
    alone, together = (simulate(Cluster(1_200_000, 8, sync=Sync(quorum=k)), days=2, seed=1) for k in (1, 8))
    assert together.goodput < alone.goodput - 0.05
    assert together.learners_per_merge == 8.0


def test_a_straggler_of_18_percent() -> None:
    """DiLoCo 2604.21428 Table 5: about 84 % when all are waited for, all of the time otherwise.

    K = M with an 18 % straggler, and K = 1.
    """
    waited_for = straggler(1, Sync(quorum=8), jitter=0.0, seed=0)
    assert 100 * waited_for.goodput == pytest.approx(paper.STRAGGLER_GOODPUT["K = M"], abs=TOLERANCE)
    assert waited_for.goodput == pytest.approx((7 / paper.STRAGGLER_SLOWDOWN + 1) / 8, abs=0.005)
    assert straggler(1, Sync(), jitter=0.0, seed=0).goodput == pytest.approx(1.0)
    assert straggler(1, Sync(grace_steps=0.5), jitter=0.0, seed=0).goodput == pytest.approx(1.0)


def test_four_stragglers_with_jitter_and_no_overlap() -> None:
    """The other reading of the same experiment: half of the learners slow, and 10 % variance on top."""
    found = straggler(4, Sync(quorum=8, overlap_steps=0), jitter=0.1, seed=0)
    assert 100 * found.goodput == pytest.approx(84, abs=TOLERANCE)


@pytest.mark.parametrize("column", range(len(paper.EXTRA_LEARNERS)))
def test_scavenging_reaches_the_bound(column) -> None:
    """DiLoCo 2604.21428 Table 4: 0.5 + 0.5 / (1 + e), which elastic data-parallel does not reach.

    The time of scavenging at equal FLOPs.
    """
    bound = scavenged_time(paper.EXTRA_LEARNERS[column])
    assert bound == pytest.approx(paper.SCAVENGING["decoupled"][column], abs=0.0051)  # printed to two digits
    assert paper.SCAVENGING["dp"][column] >= bound


def test_the_same_seed_gives_the_same_answer() -> None:
    cluster = Cluster(600_000, 4, speeds=Speeds(jitter=0.1), sync=Sync(quorum=2))
    assert simulate(cluster, 0.1, seed=1) == simulate(cluster, 0.1, seed=1) != simulate(cluster, 0.1, seed=2)


@pytest.mark.parametrize("days", [0.0, -1.0, math.inf, math.nan, 1e7])
def test_too_much_or_nothing_to_simulate(days) -> None:
    with pytest.raises(UsageError):
        simulate(Cluster(8, 8), days, seed=0)


@pytest.mark.parametrize("call", [lambda: scavenged_time(-0.5), lambda: scavenged_time(1.0, 2.0)])
def test_impossible_scavenging(call) -> None:
    with pytest.raises(UsageError):
        call()


spells = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=30)


@given(spells, st.integers(0, 10), st.integers(11, 30))
def test_covered_time_is_a_union(drawn, start, end) -> None:
    lanes, begin, length = (np.array(column) for column in zip(*drawn, strict=True))
    runs = Runs(lanes.astype(np.int64), begin.astype(float), (begin + length).astype(float))
    seconds = {
        (lane, second) for lane, first, size in drawn for second in range(first, first + size) if start <= second < end
    }
    assert covered_seconds(runs, start, end).sum() == pytest.approx(len(seconds))
