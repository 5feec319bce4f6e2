"""`muster plan`: predict the cost of failures and the links that a run needs, before inviting anybody."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dht.errors import UsageError

if TYPE_CHECKING:
    from peer.plan.tables import Table

app = typer.Typer(
    help="Predict goodput, bandwidth and whole swarms.",
    epilog="Example: muster plan bandwidth --params 1e9 --sites 40 --link home",
    rich_markup_mode=None,
)


class GoodputMethod(StrEnum):
    """How the chips train together."""

    decoupled = "decoupled"
    elastic = "elastic"
    rigid = "rigid"


class BandwidthMethod(StrEnum):
    """Training methods, which differ in what they send over the links."""

    decoupled = "decoupled"
    dp = "dp"


class LinkName(StrEnum):
    """How the sites are connected."""

    ring = "ring"
    butterfly = "butterfly"
    home = "home"


class GoodputTable(StrEnum):
    """The paper's tables about time."""

    availability = "1"
    scavenging = "4"
    straggler = "5"


class BandwidthTable(StrEnum):
    """The paper's tables about links."""

    bandwidth = "13"


@app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _drawable(path: Path | None) -> Path | None:
    """Return the path of a plot; raises UsageError for a format that cannot be drawn, before anything is computed."""
    if path is not None:
        from peer.plan.plots import check_format

        check_format(path)
    return path


Plot = Annotated[
    Path | None, typer.Option(help="Also draw the paper's table and ours: .html or .png.", callback=_drawable)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
COUNT_MAX = 1_000_000_000  # of sites and fragments; far larger ones fit in no float


@app.command(
    epilog="Example: muster plan goodput --method decoupled --chips 1200000 --learners 8 --mtbi-years 1 --json"
)
def goodput(
    method: Annotated[
        GoodputMethod, typer.Option(help="`elastic` and `rigid`: data-parallel.")
    ] = GoodputMethod.decoupled,
    chips: Annotated[int, typer.Option(help="Chips of all learners together.")] = 1_200_000,
    learners: Annotated[int, typer.Option(help="Only for `decoupled`; data-parallel training is one learner.")] = 8,
    mtbi_years: Annotated[float, typer.Option(help="Mean time between interruptions of one chip.")] = 1.0,
    quorum: Annotated[int, typer.Option(help="K: learners that must have reported before a merge.")] = 1,
    overlap: Annotated[int, typer.Option(help="τ: steps a learner takes before it waits for a merge.")] = 2,
    grace_steps: Annotated[
        float, typer.Option(max=1e9, help="A merge waits this many step times after its quorum.")
    ] = 0.0,
    step_seconds: Annotated[float, typer.Option(max=1e9, help="Time of one step.")] = 10.0,
    slice_chips: Annotated[int, typer.Option(help="Chips that leave together when one fails.")] = 1024,
    down_seconds: Annotated[float, typer.Option(max=1e9, help="A learner's pause to go on without a slice.")] = 13.0,
    up_seconds: Annotated[float, typer.Option(max=1e9, help="And to take one in again.")] = 13.0,
    absence_seconds: Annotated[float, typer.Option(max=1e9, help="How long a slice is away, on average.")] = 75.0,
    slow_learners: Annotated[int, typer.Option(help="This many learners are slower.")] = 0,
    slowdown: Annotated[float, typer.Option(max=1e9, help="Their step time as a multiple of the others'.")] = 1.18,
    chip_spread: Annotated[float, typer.Option(max=1e9, help="Spread of the chips' speeds; 0.1 is 10 %.")] = 0.0,
    jitter: Annotated[float, typer.Option(max=1e9, help="Spread of a learner's step time from step to step.")] = 0.0,
    days: Annotated[float, typer.Option(help="Simulated days.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 0,
    paper_table: Annotated[GoodputTable | None, typer.Option(help="Instead, this table beside the paper's.")] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Say how much time trains the model when chips fail."""
    from peer.plan import chips as parts
    from peer.plan import tables
    from peer.plan.goodput import simulate

    if paper_table is not None:
        of_time = {
            GoodputTable.availability: lambda: tables.availability_tables(days, seed),
            GoodputTable.straggler: lambda: tables.straggler_tables(seed),
            GoodputTable.scavenging: tables.scavenging_tables,
        }
        _show_tables(of_time[paper_table](), as_json, plot)
        return
    _refuse_plot(plot)
    absence = parts.ExponentiatedWeibull.with_mean(absence_seconds, parts.ABSENCE_SHAPE, parts.ABSENCE_EXPONENT)
    cluster = parts.Cluster(
        chips=chips,
        learners=learners if method is GoodputMethod.decoupled else 1,
        method=method.value,
        mtbi_years=mtbi_years,
        timing=parts.Timing(step_seconds, down_seconds, up_seconds, absence, slice_chips),
        speeds=parts.Speeds((slowdown,) * slow_learners, chip_spread, jitter),
        sync=parts.Sync(quorum, overlap, grace_steps),
    )
    found = simulate(cluster, days, seed)
    settings = {"method": method.value, "chips": chips, "learners": cluster.learners, "mtbi_years": mtbi_years}
    if as_json:
        typer.echo(json.dumps({**asdict(found), **settings, "seed": seed}))
        return
    typer.echo(f"{method.value}: goodput {found.goodput:.1%}, uptime {found.uptime:.1%}")
    typer.echo(
        f"{chips:,} chips, {cluster.learners:,} learners, a failure every {found.seconds_between_failures:,.3g} s, "
        f"{days:g} days simulated"
    )


@app.command(
    epilog="Example: muster plan bandwidth --params 5e9 --step-seconds 1 --sites 8 --utilisation 0.95 --bits 4"
)
def bandwidth(
    method: Annotated[BandwidthMethod, typer.Option(help="`dp`: data-parallel.")] = BandwidthMethod.decoupled,
    params: Annotated[float, typer.Option(help="Parameters of the model; 5e9 is fine.")] = 5e9,
    step_seconds: Annotated[float, typer.Option(help="Compute time of one step.")] = 1.0,
    sites: Annotated[int, typer.Option(max=COUNT_MAX, help="Data centres, or homes.")] = 8,
    utilisation: Annotated[float, typer.Option(help="Wanted share of compute in all time, 0 to 1.")] = 0.95,
    bits: Annotated[float, typer.Option(help="Bits sent per parameter.")] = 16.0,
    period: Annotated[float, typer.Option(help="H: steps between two merges of one fragment.")] = 24.0,
    fragments: Annotated[int, typer.Option(max=COUNT_MAX, help="P: fragments of the model.")] = 24,
    overlap: Annotated[float, typer.Option(help="τ: steps that a fragment may take to travel.")] = 2.0,
    link: Annotated[LinkName, typer.Option(help="How the sites reduce.")] = LinkName.ring,
    latency_seconds: Annotated[float, typer.Option(help="One way, between two sites.")] = 0.0,
    group: Annotated[int, typer.Option(help="Homes that reduce together; data-parallel takes all.")] = 16,
    gbit: Annotated[float | None, typer.Option(help="Also say what this rate of each line allows.")] = None,
    paper_table: Annotated[BandwidthTable | None, typer.Option(help="Instead, this table beside the paper's.")] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Say what rate the line of each site needs.

    It counts twice: as the paper does, and with the whole model sent once in H steps.
    """
    from peer.plan import bandwidth as links
    from peer.plan import tables

    if paper_table is not None:
        _show_tables(tables.bandwidth_tables(), as_json, plot, log=True)
        return
    _refuse_plot(plot)
    work = links.TrafficWorkload(params, step_seconds, bits)
    lines = links.SiteLink(sites, link.value, latency_seconds, group if method is BandwidthMethod.decoupled else sites)
    if lines.members == 1:
        raise UsageError("one site alone sends nothing, so any line will do; --sites and --group begin at 2")
    whole = counted = links.data_parallel()
    if method is BandwidthMethod.decoupled:
        parts = links.Fragments(period, fragments, overlap)
        whole, counted = links.decoupled(parts), links.decoupled(parts.as_the_paper_counts())
    found = {
        "gbit_per_second": links.gbit_per_second(work, counted, lines, utilisation),
        "gbit_per_second_full_payload": links.gbit_per_second(work, whole, lines, utilisation),
    }
    if gbit is not None:
        found["utilisation_at_gbit"] = links.utilisation(work, counted, lines, gbit)
        found["utilisation_at_gbit_full_payload"] = links.utilisation(work, whole, lines, gbit)
    if as_json:
        settings = {"method": method.value, "params": params, "sites": sites, "utilisation": utilisation, "bits": bits}
        typer.echo(json.dumps({**found, **settings}))
        return
    typer.echo(f"{found['gbit_per_second_full_payload']:.3g} Gbit/s per site, for the whole model")
    if method is BandwidthMethod.decoupled:
        typer.echo(
            f"{found['gbit_per_second']:.3g} Gbit/s as the paper counts (a quarter of the model in {period:g} steps)"
        )
    if gbit is not None:
        typer.echo(f"{gbit:g} Gbit/s allow a utilisation of {found['utilisation_at_gbit_full_payload']:.1%}")


@app.command(epilog="Example: muster plan swarm examples/plan/homes.toml --plot homes.html")
def swarm(
    config: Annotated[Path, typer.Argument(help="What the swarm is like: a TOML file, see docs/how-to/plan.md.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw useful compute against line speed: .html or .png.", callback=_drawable)
    ] = None,
    mbit: Annotated[
        str | None, typer.Option(help="Instead, for a [local] plan: a table over these line speeds, as 1000,100,20,5.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what a swarm of volunteers will do.

    It simulates their lines, speeds and absences, recommends settings, and compares with other methods.
    """
    from peer.plan import swarm_report as reports
    from peer.plan.swarm_plan import PlanFile

    if mbit is not None:
        if plot is not None:
            raise UsageError("--plot draws the plan itself, and --mbit makes a table instead; leave out one of them")
        rows = reports.lines_table(PlanFile.load(config), config, _speeds(mbit))
        typer.echo(json.dumps(rows) if as_json else reports.as_markdown(rows))
        return
    report = reports.report_of(PlanFile.load(config), config)
    if plot is not None:
        reports.write_plot(report, plot)
    typer.echo(json.dumps(reports.as_json(report)) if as_json else reports.text(report))


def _speeds(text: str) -> list[float]:
    try:
        speeds = [float(one) for one in text.split(",")]
    except ValueError:
        speeds = []
    if not speeds or not all(0 < one < math.inf for one in speeds):
        raise UsageError(f"{text} is no list of line speeds in Mbit/s, such as 1000,100,20,5")
    return speeds


def _refuse_plot(plot: Path | None) -> None:
    if plot is not None:
        raise UsageError("--plot draws one of the paper's tables: name it with --paper-table")


def _show_tables(tables: Sequence[Table], as_json: bool, plot: Path | None, log: bool = False) -> None:
    if plot is not None:
        from peer.plan.plots import table_plot

        table_plot(tables, log, plot)
    if as_json:
        typer.echo(json.dumps({table.title: [cell._asdict() for cell in table.cells] for table in tables}))
    else:
        typer.echo("\n\n".join(table.markdown() for table in tables) + "\n\nEach cell: ours (the paper's).")
