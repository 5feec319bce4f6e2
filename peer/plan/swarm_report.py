"""A prediction as text for people, as JSON for scripts, and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.views import quantity
from dht.errors import UsageError
from dht.units import DAY_SECONDS, GIGABYTE_BYTES, HOUR_SECONDS
from peer.plan.advice import Advice, advise
from peer.plan.alternatives import ClosedFormInputs, alternatives
from peer.plan.cost import Workload
from peer.plan.plots import lines_plot
from peer.plan.prediction import Prediction, predict, scaled, warmup_seconds
from peer.plan.scenario import Scenario, scenario_of
from peer.plan.swarm_plan import PlanFile

SLOWER_BY = 1.25  # rounds do not keep up if versions take this many times H steps
FACTORS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SWEEP_SECONDS_MAX = 4 * HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class PlanReport:
    """One plan: as configured, and with our recommended settings."""

    name: str
    work: Workload
    scenario: Scenario
    seed: int
    hostile_share: float
    configured: Prediction
    advice: Advice
    advised: Prediction
    gpu_gigabytes: float | None = None

    @property
    def gpu_bytes_left(self) -> float | None:
        """What the learner leaves of the smallest peer's GPU for activations, below 0 if it does not fit."""
        if self.gpu_gigabytes is None:
            return None
        return self.gpu_gigabytes * GIGABYTE_BYTES - self.configured.learner_bytes


def report_of(plan: PlanFile, path: Path) -> PlanReport:
    """Simulate a plan twice: with its own settings and with the recommended ones. Raises UsageError."""
    work = plan.workload(path)
    scenario, configured = _predicted(plan, path, work)
    advice = advise(work, scenario.population, configured.uptime * len(scenario.population))
    _, advised = _predicted(plan, path, advice.work)
    return PlanReport(
        path.stem, work, scenario, plan.seed or 0, plan.hostile_share, configured, advice, advised, plan.gpu_gigabytes
    )


def _predicted(plan: PlanFile, path: Path, work: Workload) -> tuple[Scenario, Prediction]:
    part = plan.local if plan.local is not None else plan.swarm
    assert part is not None
    rng = np.random.default_rng(plan.seed or 0)
    warmup = warmup_seconds(work, part.step_seconds)
    scenario = scenario_of(plan, path, rng, warmup)
    return scenario, predict(work, scenario, warmup, plan.hostile_share, rng)


def as_json(report: PlanReport) -> dict[str, Any]:
    """Return one object; `recommended` holds the settings, the reasons and the prediction with them."""
    return {
        "plan": report.name,
        "peers": len(report.scenario.population),
        "settings": _settings(report.work),
        **report.configured.as_json(),
        "gpu_bytes_left": report.gpu_bytes_left,
        "left_out": list(report.scenario.left_out),
        "recommended": {
            **_settings(report.advice.work),
            "fits": report.advice.fits,
            "reasons": list(report.advice.reasons),
            "prediction": report.advised.as_json(),
        },
        "seed": report.seed,
    }


def _settings(work: Workload) -> dict[str, Any]:
    pace = work.pace
    return {
        "parameters": work.parameters,
        "tokens_per_step": work.tokens_per_step,
        "steps_per_version": pace.steps_per_version,
        "fragments": pace.fragments,
        "quorum": pace.quorum,
        "grace_share": pace.grace_share,
        "round_seconds": pace.round_seconds,
        "group_max": work.group_max,
        "codec": work.outer.contribution_codec,
    }


def text(report: PlanReport) -> str:
    """Return the report for people."""
    people, work = report.scenario.population, report.work
    up = np.quantile(people.up, [0.1, 0.5, 0.9]) / 1e6
    lines = [
        f"{report.name}: {len(people)} peers, {work.parameters:,.4g} parameters, uplinks for training "
        f"{up[0]:,.3g} / {up[1]:,.3g} / {up[2]:,.3g} Mbit/s (slow tenth, median, fast tenth)",
        "",
        *_table(report),
        "",
        _verdict(report),
        *_room(report),
        "",
        "Recommended:",
        *(f"* {reason}" for reason in report.advice.reasons),
        *(
            ()
            if report.advice.fits
            else ("* Even so the slow tenth does not keep up: fewer parameters, or better lines.",)
        ),
        "",
        *_beside(report),
    ]
    if report.scenario.left_out:
        lines += ["", f"Not simulated of the chaos plan: {', '.join(report.scenario.left_out)}."]
    return "\n".join(lines)


def _table(report: PlanReport) -> list[str]:
    rows: list[tuple[str, str, str]] = [("", "as configured", "recommended")]
    shown = (_cells(report.work, report.configured), _cells(report.advice.work, report.advised))
    rows += [(name, one, other) for (name, one), (_, other) in zip(*shown, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(work: Workload, found: Prediction) -> list[tuple[str, str]]:
    pace, codec = work.pace, work.outer.contribution_codec
    sent, received = map(quantity.size, (found.bytes_sent_per_peer_day, found.bytes_received_per_peer_day))
    return [
        ("H, P, group, codec", f"{pace.steps_per_version}, {pace.fragments}, {work.group_max}, {codec}"),
        ("a round lasts", _seconds(found.round_seconds)),
        ("steps per version", "none made" if found.steps_per_version is None else f"{found.steps_per_version:,.3g}"),
        ("versions per hour", f"{found.versions_per_hour:,.4g} ({found.void_per_hour:,.3g} rounds void)"),
        ("peers in a version", f"{found.group_size:,.3g}"),
        ("utilisation", f"{found.utilisation:.1%} while there"),
        ("certified", f"{found.certified_share:.1%} of all work"),
        ("tokens per day", f"{found.tokens_per_day:,.3g}"),
        ("sent, received", f"{sent}, {received} per peer and day"),
        ("a peer is there", f"{found.uptime:.0%} of the day"),
        ("longest gap", _seconds(found.longest_gap_seconds)),
        ("back to contributing", _seconds(found.recovery_seconds)),
        ("group captured", f"a third {found.captured.third:.2g}, half {found.captured.half:.2g}"),
        ("steered through cells", _steered(found)),
        ("memory of the learner", f"{quantity.size(found.learner_bytes)} without activations"),
        ("memory beside it", quantity.size(found.host_bytes)),
        ("disk", quantity.size(found.disk_bytes)),
    ]


def _steered(found: Prediction) -> str:
    one = found.cells_captured
    return "no cells" if one is None else f"a cell {one.cell:.2g}, a head {one.head:.2g}, half of them {one.group:.2g}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g} s"


def _verdict(report: PlanReport) -> str:
    found, period = report.configured, report.work.pace.steps_per_version
    if found.steps_per_version is None:
        return "As configured no version would ever be certified: rounds do not end within their deadline."
    if found.steps_per_version > SLOWER_BY * period:
        return (
            f"As configured the lines do not keep up: a version holds {found.steps_per_version:,.0f} steps, not "
            f"{period}, so the peers drift apart further than was asked for."
        )
    if found.certified_share < 1 / SLOWER_BY:
        return (
            f"Only {found.certified_share:.0%} of all work is certified: the rest comes too late, or its group is void."
        )
    return "As configured the swarm keeps up."


def _room(report: PlanReport) -> tuple[str, ...]:
    """Say whether the learner fits into the GPU that the plan names."""
    left = report.gpu_bytes_left
    if left is None:
        return ()
    whose, needed = f"a GPU of {report.gpu_gigabytes:g} GB", quantity.size(report.configured.learner_bytes)
    if left < 0:
        return (f"The learner does not fit into {whose}: it takes {needed} without activations.",)
    return (f"Of {whose} the learner leaves {quantity.size(left)} for activations.",)


def _beside(report: PlanReport) -> list[str]:
    rows = [("the same peers, other ways", "tokens per day", "sent per peer and day", "to be trusted")]
    found = report.configured
    mine = ("Muster as configured", found.tokens_per_day, found.bytes_sent_per_peer_day, "two thirds of every group")
    others = [
        (one.name, one.tokens_per_second * DAY_SECONDS, one.bytes_sent_per_peer_day, one.trust)
        for one in found.alternatives
    ]
    rows += [(name, f"{tokens:,.3g}", quantity.size(sent), trust) for name, tokens, sent, trust in (mine, *others)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def sweep(report: PlanReport, factors: Sequence[float] = FACTORS) -> list[dict[str, object]]:
    """Return useful tokens relative to the possible ones, with lines scaled by each factor; one row per method."""
    part = replace(report.scenario, seconds=min(report.scenario.seconds, SWEEP_SECONDS_MAX))
    people = part.population
    median = float(np.median(people.up)) / 1e6
    rows: list[dict[str, object]] = []
    for factor in factors:
        at = scaled(part, factor)
        warmup = warmup_seconds(report.work, 1 / float(np.median(people.steps_per_second)))
        rng = np.random.default_rng(report.seed)
        own = predict(report.work, at, warmup, report.hostile_share, rng)
        inputs = ClosedFormInputs.of(report.work, at.population, at.timetable, warmup + part.seconds)
        best = inputs.present * report.work.tokens_per_step * float(people.steps_per_second.mean())
        speeds = {"Muster": own.tokens_per_second}
        speeds |= {one.name: one.tokens_per_second for one in alternatives(inputs)}
        rows += [
            {"mbit": median * factor, "useful": min(1.0, float(speed / best)), "method": name}
            for name, speed in speeds.items()
        ]
    return rows


def lines_table(plan: PlanFile, path: Path, speeds: Sequence[float]) -> list[dict[str, float]]:
    """Compare Muster with data-parallel on lines of these Mbit/s, for plans with [local]; else raises UsageError."""
    if plan.local is None:
        raise UsageError("--mbit is for plans with [local]; others draw their lines")
    rows = []
    for mbit in speeds:
        local = plan.local.model_copy(update={"mbit_per_second": mbit})
        work = plan.workload(path)
        _, found = _predicted(plan.model_copy(update={"local": local}), path, work)
        speed = {one.name: one.tokens_per_second for one in found.alternatives}
        fp32, bf16 = speed["data-parallel, 32 bit"], speed["data-parallel, 16 bit"]
        rows.append(
            {
                "mbit_per_second": mbit,
                "certified_tokens_per_second": found.tokens_per_second,
                "steps_per_version": found.steps_per_version or 0.0,
                "round_seconds": found.round_seconds or 0.0,
                "utilisation": found.utilisation,
                "data_parallel_fp32": fp32,
                "data_parallel_bf16": bf16,
                "times_fp32": found.tokens_per_second / fp32,
                "times_bf16": found.tokens_per_second / bf16,
            }
        )
    return rows


def as_markdown(rows: Sequence[dict[str, float]]) -> str:
    """Return rows of `lines_table` as a Markdown table."""
    head = [name.replace("_", " ") for name in rows[0]]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(f'{value:.4g}' for value in row.values())} |" for row in rows)])


def write_plot(report: PlanReport, path: Path) -> None:
    """Plot the sweep as a web page or a picture; raises UsageError or LocalError."""
    lines_plot(sweep(report), report.name, path)
