"""The prediction of `muster plan swarm` for one workload and scenario."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dht.units import DAY_SECONDS, HOUR_SECONDS
from peer.plan.alternatives import Alternative, ClosedFormInputs, alternatives
from peer.plan.cost import CODEC_BITS, Workload
from peer.plan.population import Population
from peer.plan.risk import Capture, CellCapture, capture, capture_cells
from peer.plan.scenario import Scenario
from peer.plan.swarm import PlannedSwarm

WARMUP_PERIODS = 3.0  # uncounted H-step periods: in the first, fragments are not due all at once
ROUNDS_MAX = 20_000
SLOT_BYTES = 12.0  # per parameter of a fragment in flight, shared with the learner (`peer.learner.memory_estimate`)
STEPS_HELD = 1  # of every fragment in memory, for peers that missed one


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one set-up. Times in seconds, shares 0…1; bytes are those of the mean peer.

    With cells, a round begins when heads gather their wards, and `group_size` counts all peers with work in a version.
    """

    simulated_seconds: float
    round_seconds: float | None  # from the roster to the certificate, median
    steps_per_version: float | None  # effective H, mean
    versions_per_hour: float
    void_per_hour: float
    minor_share: float
    utilisation: float  # share of the peers' presence spent in inner steps
    uptime: float
    certified_share: float  # of all inner steps made
    goodput_ideal: float  # certified steps, relative to those possible with planned absences only
    tokens_per_second: float
    tokens_per_day: float
    group_size: float
    bytes_sent_per_peer_day: float
    bytes_received_per_peer_day: float
    longest_gap_seconds: float
    recovery_seconds: float | None  # from return to the next certified contribution, median
    captured: Capture
    cells_captured: CellCapture | None  # None: one level
    learner_bytes: float
    host_bytes: float
    disk_bytes: float
    alternatives: tuple[Alternative, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def warmup_seconds(work: Workload, step_seconds: float) -> float:
    """Return the seconds at the start that a simulation does not count."""
    return WARMUP_PERIODS * work.pace.steps_per_version * step_seconds


def predict(
    work: Workload, scenario: Scenario, warmup: float, hostile_share: float, rng: np.random.Generator
) -> Prediction:
    """Simulate a scenario whose timetable begins after the warm-up."""
    people, end = scenario.population, warmup + scenario.seconds
    swarm = PlannedSwarm(work, people, scenario.timetable, rng)
    made_before = _steps_possible(people, scenario, warmup)
    seconds = swarm.run(end, warmup, ROUNDS_MAX)
    stop = warmup + seconds
    absent, excused = scenario.timetable.absent_seconds(len(people), stop)
    absent_before, excused_before = scenario.timetable.absent_seconds(len(people), warmup)
    present = len(people) * seconds - float((absent - absent_before).sum())
    scheduled = len(people) * seconds - float((excused - excused_before).sum())
    made = _steps_possible(people, scenario, stop) - made_before
    rate, tally = float(people.steps_per_second.mean()), swarm.tally
    steps = tally.steps / work.pace.fragments
    per_day = DAY_SECONDS / seconds if seconds else 0.0
    times = [warmup, *tally.certified_at, stop]
    there = max(1, round(present / seconds) if seconds else 1)
    n = min(work.group_max, there)
    return Prediction(
        simulated_seconds=seconds,
        round_seconds=statistics.median(tally.round_seconds) if tally.round_seconds else None,
        steps_per_version=statistics.mean(tally.interval_steps) if tally.interval_steps else None,
        versions_per_hour=HOUR_SECONDS * tally.versions / seconds if seconds else 0.0,
        void_per_hour=HOUR_SECONDS * tally.void / seconds if seconds else 0.0,
        minor_share=tally.minor / max(tally.versions, 1),
        utilisation=present / scheduled if scheduled else 0.0,
        uptime=present / (len(people) * seconds) if seconds else 0.0,
        certified_share=min(1.0, steps / made) if made > 0 else 0.0,
        goodput_ideal=steps / (scheduled * rate) if scheduled else 0.0,
        tokens_per_second=steps * work.tokens_per_step / seconds if seconds else 0.0,
        tokens_per_day=steps * work.tokens_per_step * per_day,
        group_size=tally.contributions / max(tally.versions, 1),
        bytes_sent_per_peer_day=float(swarm.sent_bits.mean()) / 8 * per_day,
        bytes_received_per_peer_day=float(swarm.received_bits.mean()) / 8 * per_day,
        longest_gap_seconds=max((b - a for a, b in pairwise(times)), default=0.0),
        recovery_seconds=statistics.median(tally.recovery_seconds) if tally.recovery_seconds else None,
        captured=capture(n, hostile_share, len(people)),
        cells_captured=capture_cells(there, hostile_share) if there > work.group_max else None,
        learner_bytes=work.kept.learner_bytes * work.parameters + work.base_bytes,
        host_bytes=host_bytes(work),
        disk_bytes=work.kept.disk_bytes * work.parameters,
        alternatives=alternatives(ClosedFormInputs.of(work, people, scenario.timetable, stop)),
    )


def _steps_possible(people: Population, scenario: Scenario, until: float) -> float:
    """Return the inner steps that all learners make by then, including those lost with a kill."""
    absent, _ = scenario.timetable.absent_seconds(len(people), until)
    return float((people.steps_per_second * (until - absent)).sum())


def host_bytes(work: Workload) -> float:
    """Return the bytes beyond the learner's: state of the whole model, and the fragments of rounds in flight."""
    sent, returned = (CODEC_BITS[codec] / 8 for codec in (work.outer.contribution_codec, work.outer.result_codec))
    state = 8.0 if work.outer.momentum else 4.0
    in_flight = SLOT_BYTES + 8.0 + 3 * state + 2 * (2 * sent + returned)
    each = state + work.kept.rounding_bytes + max(STEPS_HELD * returned, 1.0)
    largest = max(work.elements, work.kept.largest_share * work.parameters)
    return each * work.parameters + work.pace.overlap * in_flight * largest


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """Return the same peers with lines this much faster."""
    people = replace(scenario.population, up=scenario.population.up * factor, down=scenario.population.down * factor)
    return replace(scenario, population=people)
