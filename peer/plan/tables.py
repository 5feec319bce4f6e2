"""Our numbers beside the paper's (DiLoCo 2604.21428), table by table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

from peer.plan import bandwidth, paper
from peer.plan.chips import Cluster, ExponentiatedWeibull, Method, Speeds, Sync, Timing
from peer.plan.goodput import Availability, scavenged_time, simulate

NEVER_YEARS = 1e9
STRAGGLER_DAYS = 0.05  # 4,320 steps; a longer time without failures adds no information
AT_ONCE = ExponentiatedWeibull(1e-6, 1.0, 1.0)


class TableCell(NamedTuple):
    """One number of ours, as text, and the paper's, if it prints one."""

    row: str
    column: str
    ours: str
    paper: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table's cells by row, then by column, in display order. `across` describes the columns."""

    title: str
    across: str
    cells: tuple[TableCell, ...]

    def markdown(self) -> str:
        """Return the table as Markdown; every cell is `ours (paper)`."""
        columns = list(dict.fromkeys(cell.column for cell in self.cells))
        lines = [f"| {self.title} | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
        for row in dict.fromkeys(cell.row for cell in self.cells):
            found = {cell.column: _shown(cell) for cell in self.cells if cell.row == row}
            lines.append(f"| {row} | {' | '.join(found.get(column, '') for column in columns)} |")
        return "\n".join(lines)


def availability(days: float, seed: int) -> dict[tuple[str, int], tuple[Availability, ...]]:
    """Simulate all of Table 1: a row for each method and number of learners, a column for each of `paper.CHIPS`."""
    return {
        (method, learners): tuple(
            simulate(Cluster(chips, learners, cast(Method, method)), days, seed) for chips in paper.CHIPS
        )
        for method, learners in paper.AVAILABILITY
    }


def availability_tables(days: float, seed: int) -> tuple[Table, ...]:
    """Return Table 1 a and b, in percent."""
    simulated = availability(days, seed)

    def cells(field: str) -> Iterable[TableCell]:
        for (method, learners), row in simulated.items():
            name = f"{method}, {learners} learners" if method == "decoupled" else f"{method} data-parallel"
            printed = getattr(paper.AVAILABILITY[method, learners], field)
            for chips, ours, theirs in zip(paper.CHIPS, row, printed, strict=True):
                yield TableCell(name, f"{chips:,} chips", f"{100 * getattr(ours, field):.0f}", str(theirs))

    return tuple(Table(f"{field}, %", "chips in the cluster", tuple(cells(field))) for field in ("goodput", "uptime"))


def straggler(slow: int, sync: Sync, jitter: float, seed: int) -> Availability:
    """Simulate eight learners, the first `slow` with 18 % more time per step, without failures (Table 5)."""
    speeds = Speeds((paper.STRAGGLER_SLOWDOWN,) * slow, jitter=jitter)
    timing = Timing(step_seconds=1.0, down_seconds=0.0, up_seconds=0.0, absence=AT_ONCE)
    cluster = Cluster(1024, 8, mtbi_years=NEVER_YEARS, timing=timing, speeds=speeds, sync=sync)
    return simulate(cluster, STRAGGLER_DAYS, seed)


def straggler_tables(seed: int) -> tuple[Table, ...]:
    """Return the goodput of Table 5, in percent: the cost of waiting for a slow learner."""
    syncs = {"K = M": Sync(quorum=8), "K = 1": Sync(), "K = 1 with grace": Sync(grace_steps=0.5)}
    variants = {
        "1 of 8 learners slow": (1, 2, 0.0),
        "4 of 8 slow": (4, 2, 0.0),
        "4 of 8 slow, 10 % jitter": (4, 2, 0.1),
        "4 of 8 slow, 10 % jitter, no overlap": (4, 0, 0.1),
    }
    cells = []
    for row, (slow, overlap, jitter) in variants.items():
        for column, sync in syncs.items():
            grace = min(sync.grace_steps, overlap)
            ours = straggler(slow, Sync(sync.quorum, overlap, grace), jitter, seed).goodput
            cells.append(TableCell(row, column, f"{100 * ours:.0f}", str(paper.STRAGGLER_GOODPUT[column])))
    return (Table("goodput, %", "whom a round waits for", tuple(cells)),)


def scavenging_tables() -> tuple[Table, ...]:
    """Return Table 4: training time with extra learners for half of the FLOPs, relative to none."""
    cells = []
    for method, printed in paper.SCAVENGING.items():
        for extra, theirs in zip(paper.EXTRA_LEARNERS, printed, strict=True):
            cells.append(
                TableCell(
                    f"bound (paper: {method})", f"+{100 * extra:.0f} %", f"{scavenged_time(extra):.3f}", f"{theirs:.2f}"
                )
            )
    return (Table("training time, relative to none", "extra learners for half of the work", tuple(cells)),)


def table_13(setting: paper.Setting, utilisation: float) -> float:
    """Return our Gbit/s for one cell of Table 13, counted as in the paper."""
    if setting.method == "dp":
        rhythm = bandwidth.data_parallel()
    else:
        rhythm = bandwidth.decoupled(bandwidth.Fragments().as_the_paper_counts())
    return _needed(setting, rhythm, utilisation)


def bandwidth_tables() -> tuple[Table, ...]:
    """Return Table 13 in Gbit/s, and the same settings' needs if the whole model is sent once in H = 24 steps."""
    counted, whole = [], []
    honest = bandwidth.decoupled(bandwidth.Fragments())
    for setting, printed in paper.BANDWIDTH.items():
        row = f"{setting.step_seconds} s, {setting.sites} sites, {setting.method}, {setting.bits} bit"
        for utilisation, theirs in zip(paper.UTILISATIONS, printed, strict=True):
            column = f"{100 * utilisation:.0f} %"
            counted.append(TableCell(row, column, f"{table_13(setting, utilisation):.3g}", theirs))
            if setting.method == "decoupled":
                whole.append(TableCell(row, column, f"{_needed(setting, honest, utilisation):.3g}", None))
    across = "utilisation of compute"
    return (
        Table("Gbit/s, as the paper counts", across, tuple(counted)),
        Table("Gbit/s, whole model in 24 steps", across, tuple(whole)),
    )


def _needed(setting: paper.Setting, rhythm: bandwidth.Rhythm, utilisation: float) -> float:
    work = bandwidth.TrafficWorkload(paper.MODEL_PARAMS, setting.step_seconds, setting.bits)
    return bandwidth.gbit_per_second(work, rhythm, bandwidth.SiteLink(setting.sites), utilisation)


def _shown(cell: TableCell) -> str:
    return cell.ours if cell.paper is None else f"{cell.ours} ({cell.paper})"
