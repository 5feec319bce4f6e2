"""Recommended settings for a swarm: H, P, K, γ, group size, codec and deadline, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from coordinator.cells.subordinates import GATHER_SHARE
from coordinator.core.timeline import BUNDLE_SHARE, INPUTS_SHARE
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from peer.plan.cost import CODEC_BITS, Members, RoundCost, Workload, round_cost, statement_bits
from peer.plan.population import Population
from peer.plan.risk import tiers

SLOW_QUANTILE = 0.1  # the settings suit all peers but the slowest tenth
LINE_SHARE = 0.5  # of such a line for the rounds of one cycle, so that a lost attempt can be repeated
PERIODS = (24, 48, 100, 200, 500, 1000)
PERIODS_TOLD = "H = 24 is the paper's, 100 Streaming DiLoCo's, 500 DiLoCo's: each costs a little quality"
CODECS = ("int8", "int4")
FRAGMENTS_LEAST = 8
STATEMENTS_SHARE = 0.1  # of a slow line for statements
GROUP_LEAST = 4
DEADLINE_ROOM = 1.5
ROUND_SECONDS_MIN = 8.0


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings and reasons, in the order of a run file; `fits` is False if no known setting keeps up."""

    work: Workload
    fits: bool
    reasons: tuple[str, ...]


def advise(work: Workload, people: Population, present: float) -> Advice:
    """Return the smallest period and the finest codec with which all but the slowest tenth keep up.

    `present` is the number of peers present at a time.
    """
    group = _group_size(work, people)
    members = typical_members(people, group, work.pace.overlap)
    chosen, fits = work, False
    for period in PERIODS:
        for codec in CODECS:
            chosen = _with(work, period, codec, group, present)
            if fits := keeps_up(chosen, people, present):
                break
        if fits:
            break
    cost = round_cost(chosen, members)
    pace = chosen.pace.model_copy(update={"round_seconds": _deadline_seconds(cost, people)})
    chosen = replace(chosen, pace=pace)
    return Advice(chosen, fits, (*_reasons(chosen, people, cost), *_cell_reasons(chosen, present)))


def typical_members(people: Population, group_max: int, rounds: int) -> Members:
    """Return a typical group: lines at equal quantiles of the swarm's, each shared by `rounds` rounds at once."""
    n = min(group_max, len(people))
    at, step = (np.arange(n) + 0.5) / n, 1 / float(np.median(people.steps_per_second))
    return Members(
        np.quantile(people.up, at) / rounds,
        np.quantile(people.down, at) / rounds,
        np.full(n, float(np.median(people.latency_seconds))),
        np.full(n, step / 2),
        np.arange(n) < max(1, round(n * float(people.dialable.mean()))),  # slow lines reduce, as the worst case
    )


def keeps_up(work: Workload, people: Population, present: float) -> bool:
    """Whether a slow line carries a cycle in its share of the time, and τ concurrent rounds end in time."""
    pace = work.pace
    members = typical_members(people, work.group_max, pace.overlap)
    cost = round_cost(work, members)
    cells = present > work.group_max
    levels = 1 + (tiers(present) if cells else 0)  # each tier commits, scatters and merges
    gathering = GATHER_SHARE * _deadline_seconds(cost, people) if cells else 0.0
    period = pace.steps_per_version / float(np.median(people.steps_per_second))
    up, down = cost.sent_bits * pace.fragments / members.up, cost.received_bits * pace.fragments / members.down
    carried = np.quantile(np.maximum(up, down), 1 - SLOW_QUANTILE) / pace.overlap <= LINE_SHARE * period
    merged = float(np.quantile(cost.results_at, 1 - SLOW_QUANTILE))
    lasts = gathering + levels * merged + cost.voted_after_seconds
    return bool(carried and lasts <= pace.overlap * period / pace.fragments)


def _with(work: Workload, period: int, codec: str, group: int, present: float) -> Workload:
    fragments = FRAGMENTS_LEAST if present > group else min(period, 24 if period < 100 else 48)
    fragments = min(fragments, work.fragments_max)
    pace = work.pace.model_copy(update={"steps_per_version": period, "fragments": fragments, "overlap": 2})
    outer = work.outer.model_copy(update={"contribution_codec": codec, "result_codec": codec})
    return replace(work, pace=pace, outer=outer, group_max=group)


def _group_size(work: Workload, people: Population) -> int:
    """Return the largest group whose statements, which grow with its square, take a small part of a slow line."""
    between = work.pace.steps_per_version / work.pace.fragments / float(np.median(people.steps_per_second))
    line = float(np.quantile(people.up, SLOW_QUANTILE)) * between
    sizes = range(min(PEERS_PER_GROUP_MAX, len(people)), GROUP_LEAST, -1)
    return next((n for n in sizes if max(statement_bits(n, n)) <= STATEMENTS_SHARE * line), GROUP_LEAST)


def _deadline_seconds(cost: RoundCost, people: Population) -> float:
    """Return a deadline for nine tenths to deliver their parts, and to commit after a step that had just begun."""
    delivered, committed = _nine_tenths(cost) / INPUTS_SHARE, _slow_step_seconds(people) / BUNDLE_SHARE
    return float(math.ceil(max(ROUND_SECONDS_MIN, DEADLINE_ROOM * delivered, committed)))


def _slow_step_seconds(people: Population) -> float:
    """Return the seconds within which nine tenths make a step."""
    return 1 / float(np.quantile(people.steps_per_second, SLOW_QUANTILE))


def _nine_tenths(cost: RoundCost) -> float:
    """Return the seconds until nine tenths have their parts at the reducers."""
    return float(np.quantile(cost.inputs_at, 1 - SLOW_QUANTILE))


def _reasons(work: Workload, people: Population, cost: RoundCost) -> tuple[str, ...]:
    pace, step = work.pace, 1 / float(np.median(people.steps_per_second))
    slow = float(np.quantile(people.up, SLOW_QUANTILE))
    cycle = float(np.median(cost.sent_bits)) * pace.fragments
    between = pace.steps_per_version * step / pace.fragments
    slack = pace.overlap * between - cost.seconds
    room = "leaves time" if slack > 0 else "leaves none, so the window shuts at once"
    codec = work.outer.contribution_codec
    return (
        f"H = {pace.steps_per_version}: a cycle is {cycle / 8e6:,.3g} MB up per peer; a line of {slow / 1e6:,.3g} "
        f"Mbit/s, and nine tenths have more, needs {cycle / slow:,.3g} s for it, and H steps last "
        f"{pace.steps_per_version * step:,.3g} s. {PERIODS_TOLD}.",
        f"P = {pace.fragments}: a round every {between:,.3g} s, {cost.seconds:,.3g} s long; at most two at a time.",
        f"K = {pace.quorum}: only starts the grace window; raising it makes everybody wait (DiLoCo 2604.21428 §3.2).",
        f"γ = {pace.grace_share:g}: of {pace.overlap} intervals a round {room}.",
        f"groups of {work.group_max}: statements stay under {STATEMENTS_SHARE:.0%} of a slow line, and large groups "
        "are hard to capture.",
        f"{codec}: {CODEC_BITS[codec]:g} bits per parameter; 4 bits cost no quality that the paper or our own runs "
        "could measure, 2 bits do.",
        f"round_seconds = {pace.round_seconds:g}: nine tenths have delivered their parts in {_nine_tenths(cost):,.3g} "
        f"s, and must within {INPUTS_SHARE:.0%} of it; they make a step in {_slow_step_seconds(people):,.3g} s, "
        f"and must within {BUNDLE_SHARE:.0%}.",
    )


def _cell_reasons(work: Workload, present: float) -> tuple[str, ...]:
    if present <= work.group_max:
        return ()
    levels = "two tiers of cells" if tiers(present) > 1 else "one tier of cells"
    return (
        f"Cells: {present:,.0f} peers at a time and groups of {work.group_max}; {levels} bring everybody's work "
        f"into every version, and a round lasts {1 + tiers(present)} times as long, so P is small.",
    )
