"""The figures of a run of elastic data-parallel count only steps that were kept."""

from __future__ import annotations

import pytest

from peer.chaos.measure import UndisturbedPace
from peer.chaos.plan import HOST, Plan
from peer.chaos.score import Window
from tests.bench.elastic.score import Step, figures, kept, lives_of, ratios
from tests.bench.elastic.swarm import for_workers
from tests.peer.chaos.builders import event, happened

NAMES = ["peer-1", "peer-2"]


def made(step: int, seconds: float, name: str = "peer-1", generation: int = 1, pid: int = 1) -> Step:
    return Step(name, pid, generation, step, members=2, seconds=seconds)


def test_a_step_counts_once_when_the_first_member_has_made_it() -> None:
    told = [made(1, 10.2, "peer-2"), made(1, 10.1), made(2, 11.1), made(2, 11.3, "peer-2")]
    assert [(one.step, one.seconds) for one in kept(told)] == [(1, 10.1), (2, 11.1)]


def test_repeated_steps_count_for_the_workers_that_did_them_last() -> None:
    told = [made(1, 10.0), made(2, 11.0), made(2, 14.0, "peer-2", generation=2), made(3, 15.0, "peer-2", generation=2)]
    assert [(one.step, one.generation) for one in kept(told)] == [(1, 1), (2, 2), (3, 2)]


def test_each_process_is_a_life_that_contributes_with_its_first_step() -> None:
    lives = lives_of([made(5, 9.0, pid=2), made(1, 1.0), made(2, 2.0)])
    assert [(life.pid, life.stepped_at, life.contributed_at) for life in lives["peer-1"]] == [
        (1, [1.0, 2.0], 1.0),
        (2, [9.0], 9.0),
    ]


def test_figures_are_by_the_rules_of_chaos() -> None:
    told = [made(number, float(number), name) for number in range(1, 5) for name in NAMES]
    told += [Step("peer-1", 1, 2, number, 1, number + 2.0) for number in range(5, 9)]
    told += [made(9, 12.0, name, generation=3, pid=7 if name == "peer-2" else 1) for name in NAMES]
    outcomes = [happened("kill", 4.5, 2), happened("restart", 8.5, 2)]
    found = figures(told, outcomes, NAMES, Window(0.0, 13.0), UndisturbedPace(10, 1.0))
    assert found["measured_peer_seconds"] == 22.0
    assert found["measured_tokens"] == 10 * (4 * 2 + 4 * 1 + 2)
    assert found["goodput_ideal"] == pytest.approx(140 / 220)
    assert found["longest_gap_seconds"] == 3.0
    assert found["recovery_seconds"] == {"median": 3.5, "max": 3.5}
    assert found["uptime"] == pytest.approx((11 + 3) / 26)
    assert found["faults"] == {"kill": 1}
    assert (found["steps"], found["generations"]) == (9, 3)


def test_ratios_are_muster_s_over_the_other_s() -> None:
    muster = {"goodput_ideal": 0.96, "uptime": 0.98, "longest_gap_seconds": 6.0}
    assert ratios(muster, {"goodput_ideal": 0.8, "uptime": None, "longest_gap_seconds": 12.0}) == {
        "goodput_ideal": pytest.approx(1.2),
        "longest_gap_seconds": 0.5,
    }


def test_faults_of_the_host_befall_no_worker_here() -> None:
    skew, attack = event("clock_skew", 7.0, 1, skew_seconds=60.0), event("attacker", 8.0, 2, attack="zero")
    kills = event("kill", 5.0, HOST), event("kill", 6.0, 1), event("restart", 50.0, HOST)
    plan = Plan.of(2, 60.0, (*kills, skew, attack))
    assert [(one.do, one.target) for one in for_workers(plan).events] == [("kill", "peer-1")]
