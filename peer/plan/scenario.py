"""From a plan file to peers and a timetable: drawn from a crowd, or exactly those of a local set-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dht.units import HOUR_SECONDS
from peer.chaos.draw import plan_of
from peer.chaos.plan import HOST, MENDING, UNDONE_BY, ChaosPlanFile, Event, number_of
from peer.plan.population import Absence, Crowd, Cut, Population, Timetable
from peer.plan.presets import LINES, SESSIONS, UNDIALABLE
from peer.plan.swarm_plan import CrowdPart, LocalPart, PlanFile

MINUTES_DEFAULT = 5.0
HOURS_DEFAULT = 24.0
SIMULATED = frozenset({"kill", "stop", "partition"})


@dataclass(frozen=True, slots=True)
class Scenario:
    """The peers, their timetable, and the simulated seconds. `left_out`: faults in a chaos plan that are not played."""

    population: Population
    timetable: Timetable
    seconds: float
    left_out: tuple[str, ...] = ()


def scenario_of(plan: PlanFile, path: Path, rng: np.random.Generator, warmup_seconds: float) -> Scenario:
    """Return the scenario of a plan; all of its events happen after the warm-up."""
    if plan.local is not None:
        return _local(plan, plan.local, path, warmup_seconds)
    assert plan.swarm is not None
    seconds = (plan.hours or HOURS_DEFAULT) * HOUR_SECONDS
    crowd = _crowd(plan.swarm)
    population = crowd.draw(rng)
    usable = plan.swarm.usable_share
    population = replace(population, up=population.up * usable, down=population.down * usable)
    return Scenario(population, Timetable(crowd.absences(rng, warmup_seconds + seconds)), seconds)


def _crowd(part: CrowdPart) -> Crowd:
    lines = tuple(
        replace(
            one,
            up_mbit=part.up_mbit or one.up_mbit,
            down_mbit=part.down_mbit or one.down_mbit,
            latency_seconds=one.latency_seconds if part.latency_seconds is None else part.latency_seconds / 2,
            sigma=0.0 if part.up_mbit is not None else one.sigma,
        )
        for one in LINES[part.preset]
    )
    sessions = SESSIONS[part.preset]
    if part.session_hours is not None:
        sessions = replace(sessions, mean_seconds=part.session_hours * HOUR_SECONDS)
    if part.on_share is not None:
        sessions = replace(sessions, on_share=part.on_share)
    if part.kill_share is not None:
        sessions = replace(sessions, kill_share=part.kill_share)
    undialable = UNDIALABLE.get(part.preset, 0.0) if part.undialable_share is None else part.undialable_share
    return Crowd(part.peers, part.step_seconds, part.speed_sigma, lines, undialable, part.restart_seconds, sessions)


def _local(plan: PlanFile, part: LocalPart, path: Path, warmup_seconds: float) -> Scenario:
    peers = part.peers
    population = Population(
        up=np.full(peers, part.mbit_per_second * 1e6),
        down=np.full(peers, part.mbit_per_second * 1e6),
        latency_seconds=np.full(peers, part.rtt_seconds / 4),  # there and back, through the middle
        steps_per_second=np.full(peers, 1 / part.step_seconds),
        dialable=np.ones(peers, dtype=bool),
    )
    if part.chaos is None:
        return Scenario(population, Timetable(), (plan.hours or MINUTES_DEFAULT / 60) * HOUR_SECONDS)
    file = ChaosPlanFile.load(path.parent / part.chaos)
    minutes = (file.minutes or MINUTES_DEFAULT) if plan.hours is None else plan.hours * 60
    events = plan_of(file, peers, minutes, plan.seed).events
    timetable = Timetable(_absences(events, part, warmup_seconds), _cuts(events, minutes * 60, warmup_seconds))
    left_out = {event.name for event in events if event.do not in SIMULATED | MENDING}
    left_out |= {event.name for event in events if event.do not in MENDING and event.peer == HOST}
    left_out |= {f"{event.name} at a point" for event in events if event.do in SIMULATED and event.at_point is not None}
    return Scenario(population, timetable, minutes * 60, tuple(sorted(left_out)))


def _absences(events: Sequence[Event], part: LocalPart, offset: float) -> tuple[Absence, ...]:
    """Return every kill and stop of a learner; one without an end lasts."""
    found = []
    for event in events:
        if event.do not in ("kill", "stop") or event.peer == HOST or event.at_seconds is None:
            continue
        kills, start = event.do == "kill", event.at_seconds + offset
        lasts = event.for_seconds if event.for_seconds is not None else _undone_after(events, event)
        back = start + lasts + (part.restart_seconds if kills else 0.0)
        found.append(Absence(int(number_of(event.target)) - 1, start, back, kills, lasts))
    return tuple(found)


def _undone_after(events: Sequence[Event], fault: Event) -> float:
    at = fault.at_seconds or 0.0
    times = [
        one.at_seconds for one in events if one.do == UNDONE_BY[fault.do] and one.peer == fault.peer and one.at_seconds
    ]
    return min((time - at for time in times if time > at), default=float("inf"))


def _cuts(events: Sequence[Event], seconds: float, offset: float) -> tuple[Cut, ...]:
    found = []
    for event in events:
        if event.do != "partition" or event.at_seconds is None:
            continue
        rest = min(_undone_after(events, event), seconds - event.at_seconds)
        lasts = event.for_seconds if event.for_seconds is not None else rest
        away = {number_of(name) for group in event.groups()[1:] for name in group}
        side = frozenset(int(number) - 1 for number in away if number != HOST)
        found.append(Cut(event.at_seconds + offset, event.at_seconds + lasts + offset, side))
    return tuple(found)
