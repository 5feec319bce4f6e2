"""`muster chaos`: break a real swarm on this machine on purpose, and measure the cost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dht.errors import LocalError, UsageError
from peer.chaos.draw import draw_plan, plan_of
from peer.chaos.plan import MINUTES_DEFAULT, PEERS_DEFAULT, SECONDS_MAX, ChaosPlanFile, Plan
from peer.cli import arguments
from peer.cli.common import RunFile, RunFileOption, StepSeconds
from peer.machine import paths

if TYPE_CHECKING:
    from coordinator.views.report import ChaosReport
    from peer.chaos.containers import Containers
    from peer.chaos.record import ChaosWatch
    from peer.chaos.swarm import ChaosOptions
    from peer.chaos.view import ChaosDisplay
    from peer.swarm.run import SwarmOptions


app = typer.Typer()


@app.command(epilog="Example: muster chaos --seed 1 --peers 6 --minutes 4 --step-seconds 0.5")
def chaos(
    file: RunFile = None,
    plan: Annotated[
        Path | None, typer.Option(help="What to do and when (TOML); docs/how-to/chaos.md has the keys.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Draw a plan, or what a plan file repeats.")] = None,
    peers: Annotated[
        int | None, typer.Option(min=1, help="How many peers to start; default: the plan's, or 4.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="How long to measure; default: the plan's, or 5.")] = None,
    step_seconds: StepSeconds = 0.0,
    netns: Annotated[bool, typer.Option("--netns", help="A network of its own for every peer (root only).")] = False,
    beside: Annotated[
        str | None, typer.Option(help="Break the docker-compose swarm of this container instead of one of its own.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="Compare with this report of a run without faults.")] = None,
    with_baseline: Annotated[bool, typer.Option("--with-baseline", help="Run without faults first.")] = False,
    config: RunFileOption = None,
    report: Annotated[Path | None, typer.Option(help="Write the report to this file (JSON).")] = None,
    data: Annotated[Path | None, typer.Option(help="Keep what the peers hold in this new folder.")] = None,
    no_ui: Annotated[bool, typer.Option("--no-ui", help="Print plain lines instead of a live view.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Have the peers log more.")] = False,
) -> None:
    """Break a real swarm here on purpose, and measure it."""
    from peer.chaos.executor import Loopback, refused
    from peer.chaos.measure import FaultFreeReport, against, load_baseline
    from peer.chaos.namespaces import Namespaces
    from peer.chaos.swarm import ChaosOptions
    from peer.swarm.report import check_writable, write_report
    from peer.swarm.run import SwarmOptions

    if beside is not None and (netns or with_baseline or data is not None):
        raise UsageError("--beside breaks a swarm that runs already, so it takes no --netns, --with-baseline or --data")
    containers = None if beside is None else _containers(beside)
    chosen = _plan(plan, seed, peers if containers is None else containers.peers, minutes)
    if report is not None:
        check_writable(report)
    if baseline is not None and with_baseline:
        raise UsageError("--baseline names a run without faults, --with-baseline makes one; give one of the two")
    usual = None if baseline is None else load_baseline(baseline, chosen.peers, step_seconds)
    path = arguments.run_file(file, config)
    swarm = SwarmOptions(
        config=arguments.run_config(path, None),
        config_path=path,
        peers=chosen.peers,
        step_seconds=step_seconds,
        data_directory=paths.swarm_directory(data, new=True),
        verbose=verbose,
    )
    place = Namespaces if netns else Loopback
    plain = no_ui or not sys.stdout.isatty()
    if warning := refused(chosen.events, place() if containers is None else containers):
        typer.echo(warning)
    if with_baseline:
        calm = replace(swarm, data_directory=paths.swarm_directory(None if data is None else data / "baseline"))
        without = Plan.of(chosen.peers, chosen.seconds, ())
        usual = FaultFreeReport.model_validate(_run(ChaosOptions(calm, without, place()), plain)[1])
    if containers is None:
        done, found = _run(ChaosOptions(swarm, chosen, place()), plain)
    else:
        done, found = _run_beside(containers, swarm, chosen, plain)
    if usual is not None:
        found = against(found, usual)
    if report is not None:
        write_report(found, report)
    _conclude(done, found, plain)


def _plan(path: Path | None, seed: int | None, peers: int | None, minutes: float | None) -> Plan:
    """Load the plan, or draw one if there is no file; raises UsageError.

    Numbers on the command line replace those in the file.
    """
    if minutes is not None and not minutes > 0:
        raise UsageError("--minutes must be more than 0")
    if minutes is not None and minutes * 60 > SECONDS_MAX:
        raise UsageError(f"--minutes must be at most {SECONDS_MAX / 60:.0f}, which is a week")
    if path is None:
        return draw_plan(seed or 0, peers or PEERS_DEFAULT, minutes or MINUTES_DEFAULT)
    file = ChaosPlanFile.load(path)
    return plan_of(file, peers or file.peers or PEERS_DEFAULT, minutes or file.minutes or MINUTES_DEFAULT, seed)


def _containers(beside: str) -> Containers:
    from peer.chaos.containers import Containers
    from peer.chaos.engine import ContainerEngine

    return Containers(ContainerEngine(), beside)


def _run(options: ChaosOptions, plain: bool) -> tuple[ChaosWatch, ChaosReport]:
    from peer.chaos.swarm import ChaosSwarm

    with _display(plain) as display:
        run = ChaosSwarm(options, display)
        return run.watch, asyncio.run(run.measure())


def _run_beside(place: Containers, options: SwarmOptions, plan: Plan, plain: bool) -> tuple[ChaosWatch, ChaosReport]:
    from peer.chaos.container_swarm import ContainerOptions, ContainerSwarm

    with _display(plain) as display:
        run = ContainerSwarm(ContainerOptions(options.config, options.step_seconds, plan), place, display)
        return run.watch, asyncio.run(run.measure())


@contextmanager
def _display(plain: bool) -> Iterator[ChaosDisplay]:
    from rich.console import Console

    from peer.chaos.view import ChaosDisplay
    from peer.observer.terminal import LiveView
    from peer.swarm.view import LiveSwarm, PlainLines

    console = Console(highlight=False, soft_wrap=plain)
    live = LiveView(console)
    with nullcontext() if plain else live:
        shown = PlainLines(typer.echo) if plain else LiveSwarm(live)
        yield ChaosDisplay(shown, typer.echo if plain else console.print)


def _conclude(watch: ChaosWatch, report: ChaosReport, plain: bool) -> None:
    """Print the summary; raises LocalError if the swarm did not end well."""
    from rich.console import Console

    from peer.chaos.view import chaos_summary
    from peer.swarm.report import disagreement
    from peer.swarm.view import summary

    reason = disagreement(watch)
    console = Console(highlight=False, soft_wrap=plain)
    console.print(chaos_summary(report))
    console.print(summary(report, watch.host_snapshot.sample if watch.host_snapshot else "", reason))
    if reason is not None:
        raise LocalError(f"the swarm did not end well: {reason}; `muster chaos --data DIR` keeps the logs")
