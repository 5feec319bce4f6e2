"""The planner's simulated swarm: exact without faults, and close to measurements with faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.cells.subordinates import GATHER_SHARE
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from dht.errors import UsageError
from peer.plan.advice import advise
from peer.plan.cost import Workload
from peer.plan.population import Absence, Crowd, Cut, Lines, Population, Sessions, Timetable
from peer.plan.prediction import Prediction, predict, warmup_seconds
from peer.plan.scenario import Scenario, scenario_of
from peer.plan.swarm_plan import PlanFile
from peer.plan.swarm_report import PlanReport, as_json, lines_table, report_of, text
from peer.storage.anchors import layouts_of
from tests.checkout import ROOT

PLANS = ROOT / "examples/plan"
PACE = PaceSpec()
WORK = Workload(435e3, 1024, PACE, OuterSpec())
WARMUP = warmup_seconds(WORK, 1.0)
PERIOD = 24.0


def alike(peers: int, mbit: float = 1000.0) -> Population:
    lines = np.full(peers, mbit * 1e6)
    return Population(lines, lines, np.full(peers, 2.5e-4), np.ones(peers), np.ones(peers, dtype=bool))


def predicted(
    peers: int = 6,
    timetable: Timetable | None = None,
    work: Workload = WORK,
    seconds: float = 600.0,
    mbit: float = 1000.0,
) -> Prediction:
    scenario = Scenario(alike(peers, mbit), timetable or Timetable(), seconds)
    return predict(work, scenario, WARMUP, 0.1, np.random.default_rng(1))


def received_per_version(found: Prediction) -> float:
    return found.bytes_received_per_peer_day / (found.versions_per_hour * 24)


def away(peer: int, start: float, lasts: float, kills: bool = True, restart: float = 0.0) -> Absence:
    return Absence(peer, WARMUP + start, WARMUP + start + lasts + restart, kills, lasts)


@pytest.mark.parametrize(("step_seconds", "deadline_seconds"), [(1.0, 8.0), (4.0, 20.0), (100.0, 500.0)])
def test_a_recommended_deadline_leaves_nine_tenths_time_for_a_step(
    step_seconds: float, deadline_seconds: float
) -> None:
    people = alike(20)
    speeds = np.full(20, 1 / step_seconds)
    speeds[0] = 1e-4  # one of twenty is far slower
    advice = advise(WORK, replace(people, steps_per_second=speeds), 20.0)
    assert advice.work.pace.round_seconds >= deadline_seconds
    assert advice.work.pace.round_seconds < 2 * deadline_seconds
    assert f"make a step in {step_seconds:g} s" in advice.reasons[6]


def test_a_run_file_with_a_number_for_a_table_is_the_users(tmp_path: Path) -> None:
    """Before, merging the plan's keys into it ended in "a bug in Muster (TypeError)"."""
    (tmp_path / "run.toml").write_text("pace = 3\n")
    plan = tmp_path / "plan.toml"
    plan.write_text('run = "run.toml"\npace = {fragments = 2}\n[swarm]\npeers = 4\nstep_seconds = 1.0\n')
    with pytest.raises(UsageError, match=r"run\.toml: pace has to be a table"):
        PlanFile.load(plan).workload(plan)


def test_nothing_is_lost_where_nothing_happens() -> None:
    found = predicted()
    assert found.certified_share == pytest.approx(1.0, abs=0.02)
    assert found.utilisation == found.uptime == 1.0
    assert found.steps_per_version == pytest.approx(PERIOD, rel=0.01)
    assert found.versions_per_hour == pytest.approx(3600 * PACE.fragments / PERIOD, rel=0.02)
    assert found.void_per_hour == found.minor_share == 0
    assert found.group_size == 6
    assert found.tokens_per_second == pytest.approx(6 * 1024, rel=0.02)


def test_in_cells_everybodys_work_is_in_a_version_for_a_few_fragments_each() -> None:
    found = predicted(peers=96, seconds=1200)
    alone = predicted(peers=32, seconds=1200)
    assert found.group_size == pytest.approx(96, abs=1)
    assert found.certified_share == pytest.approx(1.0, abs=0.02)
    assert found.steps_per_version == pytest.approx(PERIOD, rel=0.1)
    assert found.round_seconds is not None
    assert alone.round_seconds is not None
    assert found.round_seconds > alone.round_seconds + GATHER_SHARE * PACE.round_seconds
    assert received_per_version(found) < 2 * received_per_version(alone)
    assert found.cells_captured is not None
    assert alone.cells_captured is None


def test_an_absent_peer_brings_its_work_later() -> None:
    gone = Timetable(tuple(away(peer, 100, 40, kills=False) for peer in range(24)))
    found = predicted(peers=96, seconds=1200, timetable=gone)
    assert found.certified_share > 0.97
    assert found.group_size < 96
    assert found.uptime < 1


def test_cells_over_slow_lines_take_their_time_and_stop_no_learner() -> None:
    slow = replace(WORK, parameters=20e6, pace=PACE.model_copy(update={"round_seconds": 120.0}))
    found = predicted(peers=96, work=slow, mbit=20.0, seconds=6000)
    assert found.utilisation == 1.0
    assert found.round_seconds is not None
    assert found.round_seconds > 3 * slow.result_bits / 20e6
    assert found.steps_per_version is not None
    assert found.steps_per_version > 1.1 * PERIOD


def test_a_crowd_is_predicted_as_the_round_machine_was_measured() -> None:
    """docs/research/results/simulated.md, «The protocol among many peers»: 1,000 virtual peers of whom nobody dies."""
    path = PLANS / "crowd.toml"
    report = report_of(PlanFile.load(path), path)
    found, fragment = report.configured, report.work.result_bits / 8
    assert found.group_size == pytest.approx(976, rel=0.15)
    assert found.round_seconds == pytest.approx(4.9, rel=0.2)
    assert received_per_version(found) / fragment == pytest.approx(2.0, rel=0.15)
    assert any("two tiers of cells" in reason for reason in report.advice.reasons)
    assert report.advised.certified_share > 0.9


def test_cells_are_for_swarms_of_which_more_than_a_group_is_there_at_a_time() -> None:
    path = PLANS / "homes.toml"
    report = report_of(PlanFile.load(path).model_copy(update={"hours": 6.0}), path)
    assert len(report.scenario.population) > report.work.group_max
    assert not any("cells" in reason for reason in report.advice.reasons)  # 56 % of 40


def test_a_death_costs_its_work_since_the_checkpoint_and_the_time_to_start() -> None:
    calm = predicted()
    found = predicted(timetable=Timetable((away(2, 100, 15, restart=20),)))
    lost_seconds = (calm.tokens_per_second - found.tokens_per_second) * 600 / 1024
    assert 35 <= lost_seconds <= 35 + 30 + 5
    assert found.recovery_seconds is not None
    assert 20 < found.recovery_seconds < 30
    slept = predicted(timetable=Timetable((away(2, 100, 15, kills=False),)))
    assert (calm.tokens_per_second - slept.tokens_per_second) * 600 / 1024 == pytest.approx(15, abs=8)


def test_half_of_the_active_set_certifies_nothing_until_a_minor_version() -> None:
    split = Timetable((), (Cut(WARMUP + 100, WARMUP + 140, frozenset({3, 4, 5})),))
    short = predicted(timetable=split)
    assert short.longest_gap_seconds > 38
    assert short.minor_share == 0
    assert short.certified_share > 0.95  # all of it is certified afterwards
    long = predicted(timetable=Timetable((), (Cut(WARMUP + 100, WARMUP + 400, frozenset({3, 4, 5})),)))
    assert long.longest_gap_seconds < 3 * PERIOD + 30
    assert long.minor_share > 0
    assert long.certified_share < 0.9  # the other side's versions are dropped


def test_slow_lines_stretch_the_interval_and_stop_no_learner() -> None:
    work = Workload(100e6, 1024, PACE.model_copy(update={"round_seconds": 600.0}), OuterSpec())
    found = predicted(work=work, mbit=20.0, seconds=6000)
    cycle = 2 * 5 / 6 * work.parameters * 8.25 / 20e6
    assert found.steps_per_version == pytest.approx(cycle, rel=0.25)
    assert found.utilisation == 1.0
    hopeless = predicted(work=replace(work, pace=PACE), mbit=0.5)
    assert hopeless.versions_per_hour == 0
    assert hopeless.round_seconds is None


def test_the_same_seed_gives_the_same_answer() -> None:
    reports = [report_of(PlanFile.load(PLANS / "chaos.toml"), PLANS / "chaos.toml") for _ in range(2)]
    assert reports[0].configured == reports[1].configured


def test_sessions_leave_the_share_that_they_promise() -> None:
    lines = (Lines(1.0, 100, 20, 0.02, sigma=0.3),)
    sessions = Sessions(mean_seconds=3600, on_share=0.6, shape=0.7, kill_share=0.5)
    crowd = Crowd(400, 1.0, 0.5, lines, 0.15, 0.0, sessions)
    rng = np.random.default_rng(3)
    people, days = crowd.draw(rng), 5 * 86_400.0
    gone, excused = Timetable(crowd.absences(rng, days)).absent_seconds(400, days)
    assert 1 - gone.mean() / days == pytest.approx(0.6, abs=0.03)
    assert excused == pytest.approx(gone)
    assert np.median(people.up) == pytest.approx(20e6, rel=0.1)
    assert np.mean(~people.dialable) == pytest.approx(0.15, abs=0.05)


@pytest.fixture(scope="module")
def chaos() -> PlanReport:
    return report_of(PlanFile.load(PLANS / "chaos.toml"), PLANS / "chaos.toml")


def test_the_chaos_harness_is_predicted(chaos) -> None:
    """docs/research/experiments/faults.md, «Faults by plan»: the same plan, run twice on busy cores."""
    found, calm = chaos.configured, predicted(seconds=240)
    for measured in (0.906, 0.916):
        assert found.goodput_ideal == pytest.approx(measured, rel=0.15)
    for measured in (0.877, 0.887):
        assert found.tokens_per_second / calm.tokens_per_second == pytest.approx(measured, rel=0.15)
    for measured in (0.875, 0.916):
        assert found.uptime == pytest.approx(measured, rel=0.15)
    assert found.versions_per_hour / 60 == pytest.approx(16.2, rel=0.15)
    assert found.recovery_seconds == pytest.approx(36.5, rel=0.15)
    assert calm.versions_per_hour / 60 == pytest.approx(19.7, rel=0.15)
    assert calm.goodput_ideal == pytest.approx(1.001, rel=0.15)


def test_shaped_lines_reach_what_the_benchmark_asks_for() -> None:
    rows = lines_table(PlanFile.load(PLANS / "shaped.toml"), PLANS / "shaped.toml", [1000.0, 100.0, 20.0, 5.0])
    slow = rows[2]
    assert slow["times_fp32"] >= 20
    assert slow["times_bf16"] >= 10
    assert slow["steps_per_version"] <= 1.25 * PERIOD
    ratios = [row["times_fp32"] for row in rows]
    assert ratios == sorted(ratios)


def test_a_plan_reads_a_run_file_as_every_command_does(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[pace]\nfragments = 4\nperiod = 12\ngrace = 0.25\n[lab]\nlearners = 4\n")
    path = tmp_path / "plan.toml"
    path.write_text('run = "run.toml"\n[pace]\ngrace = 0.75\n[local]\npeers = 4\nstep_seconds = 1.0\n')
    pace = PlanFile.load(path).workload(path).pace
    assert (pace.fragments, pace.steps_per_version, pace.grace_share) == (4, 12, 0.75)


@pytest.mark.parametrize(
    ("gigabytes", "words"), [(1.0, "does not fit into a GPU of 1 GB"), (24.0, "Of a GPU of 24 GB")]
)
def test_a_plan_says_whether_a_learner_fits_into_the_gpu(tmp_path: Path, gigabytes: float, words: str) -> None:
    path = tmp_path / "plan.toml"
    plan = "parameters = 1e9\nhours = 0.05\n[local]\npeers = 4\nstep_seconds = 1.0\n"
    path.write_text(f"gpu_gigabytes = {gigabytes}\n{plan}")
    report = report_of(PlanFile.load(path), path)
    assert words in text(report)
    assert as_json(report)["gpu_bytes_left"] == gigabytes * 1e9 - report.configured.learner_bytes
    path.write_text(plan)
    assert "GPU" not in text(report_of(PlanFile.load(path), path))


def test_a_fault_that_is_not_played_is_named_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "chaos.toml").write_text(
        '[[event]]\nat_seconds = 5\ndo = "delay"\npeer = 1\ndelay_seconds = 0.1\n'
        '[[event]]\nat_seconds = 9\ndo = "clear"\npeer = 1\n'
        '[[event]]\nat_point = "vote"\ndo = "kill"\npeer = 2\n'
        '[[event]]\nat_seconds = 5\ndo = "kill"\npeer = "host"\n'
        '[[event]]\nat_seconds = 9\ndo = "restart"\npeer = "host"\n'
        '[[event]]\nat_seconds = 5\ndo = "stop"\npeer = 3\nfor_seconds = 5\n'
    )
    path = tmp_path / "plan.toml"
    path.write_text('[local]\npeers = 4\nstep_seconds = 1.0\nchaos = "chaos.toml"\n')
    found = scenario_of(PlanFile.load(path), path, np.random.default_rng(0), WARMUP)
    assert found.left_out == ("delay", "host_kill", "kill at a point")
    assert [one.peer for one in found.timetable.absences] == [2]


def test_a_partition_ends_when_the_plan_heals_it(tmp_path: Path) -> None:
    cut = '[[event]]\nat_seconds = 20\ndo = "partition"\nsides = [[1, 2, 3, "host"], [4]]\n'
    heal = '[[event]]\nat_seconds = 50\ndo = "heal"\n'
    path = tmp_path / "plan.toml"
    path.write_text('[local]\npeers = 4\nstep_seconds = 1.0\nchaos = "chaos.toml"\n')
    for text_of_plan, ends in ((cut + heal, 50), (cut, 300), (cut + "for_seconds = 10\n" + heal, 30)):
        (tmp_path / "chaos.toml").write_text(text_of_plan)
        found = scenario_of(PlanFile.load(path), path, np.random.default_rng(0), 0.0)
        assert [(one.start_seconds, one.end_seconds) for one in found.timetable.cuts] == [(20, ends)]


def test_faults_are_drawn_by_the_seed_of_the_plan_also_if_it_is_0(tmp_path: Path) -> None:
    """Without one, by that of the chaos plan."""
    (tmp_path / "chaos.toml").write_text("seed = 7\n[kills]\nevery_seconds = 20.0\nfor_seconds = 15.0\n")
    path = tmp_path / "plan.toml"
    found = {}
    for line in ("", "seed = 7\n", "seed = 0\n"):
        path.write_text(line + '[local]\npeers = 4\nstep_seconds = 1.0\nchaos = "chaos.toml"\n')
        found[line] = scenario_of(PlanFile.load(path), path, np.random.default_rng(0), 0.0).timetable.absences
    assert found[""] == found["seed = 7\n"] != found["seed = 0\n"]


def test_the_advice_cuts_no_model_into_more_fragments_than_it_has_tensors() -> None:
    path = PLANS / "chaos.toml"
    work = PlanFile.load(path).workload(path)
    tensors = sum(len(layout.tensors) for layout in layouts_of(RunConfig.from_toml(ROOT / "examples/tiny.toml")))
    assert advise(work, alike(6), 6.0).work.pace.fragments == tensors < 24
    assert advise(WORK, alike(6), 6.0).work.pace.fragments == 24
