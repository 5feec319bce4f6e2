"""The commands of `muster`. Each imports what it needs when it runs, so that `--help` and `status` answer at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.run.manifest import VERSIONS_MAX
from coordinator.views.control import Command, ask, snapshot
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from peer.cli import arguments, chaos, dashboard, home, inviting, join, lab, plan, sample
from peer.cli import credit as cli_credit
from peer.cli import export as cli_export
from peer.cli import top as cli_top
from peer.cli.check import check
from peer.cli.common import (
    Announce,
    AsJson,
    Base,
    ChainKept,
    Compiled,
    Dashboard,
    DashboardListen,
    Data,
    DieWithParent,
    Limit,
    Listen,
    Metrics,
    MetricsListen,
    Name,
    Page,
    PageListen,
    PagePort,
    Port,
    RunFile,
    RunFileOption,
    RunFiles,
    ShareLimits,
    Stay,
    StepSeconds,
    Track,
    Verbose,
    given_ports,
    serve,
    serve_several,
    tell,
)
from peer.cli.help import GroupedHelp
from peer.cli.presets import INIT_HELP, init
from peer.cli.progress import ProgressBar
from peer.cli.runs import runs
from peer.export.options import ExportOptions
from peer.machine import paths
from peer.machine.local_files import LocalFiles
from peer.node.options import NodeOptions, TrialOptions
from peer.service.dashboard import PublicPage, pages_at
from peer.service.process import ServiceOptions
from peer.service.served import Start
from peer.service.trackers import tracking

if TYPE_CHECKING:
    from coordinator.run.manifest import RunConfig
    from peer.swarm.run import SwarmOptions

app = typer.Typer(
    help="Train a language model together with other people's machines. There is no server.",
    epilog="Example: muster swarm --peers 4 --minutes 5",
    rich_markup_mode=None,
    cls=GroupedHelp,
)

app.add_typer(plan.app, name="plan")
app.add_typer(lab.app)
app.add_typer(dashboard.app)
app.command(epilog="Example: muster top")(cli_top.top)
app.add_typer(chaos.app)
app.command(epilog="Example: muster verify my-model")(cli_export.verify)
app.add_typer(cli_export.app)
app.command(epilog="Example: muster credit")(cli_credit.credit)
app.command(epilog="Example: muster init run.toml --preset invite", help=INIT_HELP)(init)
app.command(epilog="Example: muster check run.toml")(check)
app.command(epilog="Example: muster runs")(runs)
app.add_typer(sample.app)
app.add_typer(inviting.app)
app.add_typer(join.app)
app.add_typer(home.app)
app.add_typer(cli_credit.app)

Setting = Annotated[
    list[str] | None, typer.Option("--set", help="TABLE.KEY=VALUE of the run file, as in model.layers=2 (repeatable).")
]
Continued = Annotated[
    Path | None, typer.Option("--continue", help="Go on from this export instead: a new run with its weights.")
]
ExportEvery = Annotated[int | None, typer.Option(min=1, help="Export also after each so many certified versions.")]
Versions = Annotated[int | None, typer.Option(min=1, max=VERSIONS_MAX, help="End after this many certified versions.")]
OF_ONE_RUN = ("config", "continued", "announce", "export", "invite", "page")  # options of `muster host`


@app.callback(invoke_without_command=True)
def _help(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        version()
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: muster swarm --peers 4 --versions 400 --report report.json")
def swarm(
    file: RunFile = None,
    peers: Annotated[int, typer.Option(help="How many peers to start.")] = 4,
    versions: Versions = None,
    setting: Setting = None,
    minutes: Annotated[float | None, typer.Option(help="End so long after the first peer is up instead.")] = None,
    config: RunFileOption = None,
    report: Annotated[Path | None, typer.Option(help="Write the report to this file (JSON).")] = None,
    no_ui: Annotated[bool, typer.Option("--no-ui", help="Print plain lines instead of a live view.")] = False,
    step_seconds: StepSeconds = 0.0,
    data: Annotated[Path | None, typer.Option(help="Keep what the peers hold in this folder, for next time.")] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME:COUNT: so many of the peers attack; names: `muster lab --list`, or MODULE.CLASS. "
            "They see nobody's work but their own, so alie, ipm, mimic, min_max and min_sum are tame here."
        ),
    ] = None,
    base: Base = "",
    tape: Annotated[
        Path | None, typer.Option(help="Write the event tape to this file (JSON lines), for `muster lab --replay`.")
    ] = None,
    slow: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    fault: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    compiled: Compiled = None,
    track: Track = None,
    verbose: Verbose = False,
) -> None:
    """Start real peers on this machine, train, and report."""
    from peer.swarm.report import check_writable
    from peer.swarm.run import SwarmOptions

    if versions is not None and minutes is not None:
        raise UsageError("a swarm ends after --versions or after --minutes; give one of the two")
    if minutes is not None and not minutes > 0:
        raise UsageError("--minutes must be more than 0")
    for written in (report, tape):
        if written is not None:
            check_writable(written)
    path = arguments.run_file(file, config)
    options = SwarmOptions(
        config=arguments.run_config(path, versions, setting),
        config_path=path,
        settings=tuple(setting or ()),
        peers=peers,
        minutes=minutes,
        step_seconds=step_seconds,
        data_directory=paths.swarm_directory(data),
        slow={number: arguments.slowness(text) for number, text in arguments.by_peer("--slow", slow or [])},
        faults=dict(arguments.by_peer("--fault", fault or [])),
        attacks=arguments.attacks(attack or (), peers),
        base=base,
        tape=tape,
        compiled=compiled,
        tracking=tracking(track, Path()),
        verbose=verbose,
    )
    _run_swarm(options, report, no_ui or not sys.stdout.isatty())


@app.command(epilog="Example: muster host examples/tiny.toml --port 7400")
def host(
    context: typer.Context,
    file: RunFiles = None,
    config: RunFileOption = None,
    continued: Continued = None,
    data: Data = None,
    port: Port = None,
    listen: Listen = "127.0.0.1",
    announce: Announce = None,
    founder: Annotated[
        list[str] | None, typer.Option(help="Peer id of a founder (repeatable); default: this host.")
    ] = None,
    versions: Versions = None,
    setting: Setting = None,
    limit: Limit = None,
    share_limits: ShareLimits = None,
    name: Name = "",
    export: Annotated[Path | None, typer.Option(help="Export the model into this folder at the end.")] = None,
    export_every: ExportEvery = None,
    push: cli_export.Push = None,
    licence: cli_export.Licence = "",
    invite: Annotated[str | None, typer.Option(help="Fresh invite of this run, to come back after long.")] = None,
    base: Base = "",
    device: Annotated[str, typer.Option(help="Evaluate on `cpu`, `cuda:1`, or with `auto` on what is best.")] = "cpu",
    stay: Stay = False,
    metrics_port: Metrics = None,
    metrics_listen: MetricsListen = "127.0.0.1",
    dashboard_port: Dashboard = None,
    dashboard_listen: DashboardListen = "127.0.0.1",
    page: Page = None,
    page_port: PagePort = None,
    page_listen: PageListen = "127.0.0.1",
    track: Track = None,
    verbose: Verbose = False,
    die_with_parent: DieWithParent = None,
    chain_kept: ChainKept = None,
) -> None:
    """Begin a run, keep it reachable, evaluate and export it.

    Several run files start several runs, one process each, which share limits.
    """
    if file is not None and len(file) > 1:
        return _host_several(context, file)
    path = arguments.run_file(next(iter(file or ()), None), config)
    described = arguments.hosted_run(path, continued, versions, setting)
    if export is None and (export_every is not None or push is not None or licence):
        raise UsageError("--export-every, --push and --licence say how to export; say where to with --export")
    fresh = None if invite is None else Invite.parse(invite)
    pages, public = pages_at(dashboard_port, dashboard_listen), PublicPage(page, pages_at(page_port, page_listen))
    given_ports(context, 1)
    options = NodeOptions(
        data_directory=paths.data_directory(data),
        port=port,
        listen_host=listen,
        announce=tuple(announce or ()),
        name=name,
        device=arguments.one_device(device),
        founders=arguments.peer_ids(founder or ()),
        files=LocalFiles(cache=str(paths.token_cache()), base=base),
        tell=(progress := ProgressBar()),
        stage=progress.begin,
        export=None if export is None else ExportOptions(export.absolute(), export_every, push, licence),
        trial=TrialOptions(chain_kept=chain_kept),
    ).within_limits(limit or (), share_limits)
    drawn = tracking(track, options.data_directory)
    served = ServiceOptions(options.data_directory, stay, True, parent=die_with_parent, pages=pages, page=public)
    served = replace(served, metrics_port=metrics_port, metrics_listen=metrics_listen, tracking=drawn)
    served = replace(served, listens_at=listen, doing=lambda: progress.stage)
    with options.sharers or nullcontext():
        serve(lambda: _prepared(described, options, fresh), served, verbose)


def _host_several(context: typer.Context, files: Sequence[Path]) -> None:
    """Start one host per run file, named after the file."""
    given = context.params
    for option in context.command.params:
        if option.name in OF_ONE_RUN and given[option.name]:
            raise UsageError(f"{option.opts[0]} is for one run; start the host of that run by itself")
    runs = {}
    for path in files:
        arguments.run_config(path, given["versions"], given["setting"])
        if path.stem in runs:
            raise UsageError(f"two of these run files are called {path.stem}; the name is that of the run's folder")
        runs[path.stem] = ((str(path.absolute()),), "")
    serve_several(context, runs, paths.data_directory(given["data"]), given["share_limits"])


def _prepared(described: RunConfig, options: NodeOptions, fresh: Invite | None) -> Start:
    """Import everything heavy, and return the function that starts a host."""
    from peer.export.regular import check
    from peer.node.node import Node

    if options.export is not None:
        check(options.export)
    return lambda: Node.host(described, options, fresh)


@app.command(epilog="Example: muster status --json")
def status(
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Say how the peer running here is doing."""
    from peer.service.status_text import status_page

    now = snapshot(paths.data_directory(data))
    tell(status_page(now), now, as_json)


@app.command(epilog="Example: muster pause")
def pause(data: Data = None) -> None:
    """Make no steps until `muster resume`; stay in the network."""
    _tell(data, "pause", "paused; go on with: muster resume")


@app.command(epilog="Example: muster resume")
def resume(data: Data = None) -> None:
    """Go on after `muster pause`."""
    _tell(data, "resume", "going on")


@app.command(epilog="Example: muster drain")
def drain(data: Data = None) -> None:
    """The same as `muster stop`, by its older name."""
    stop(data)


@app.command(epilog="Example: muster stop")
def stop(data: Data = None) -> None:
    """Finish the rounds under way, save, and leave."""
    _tell(data, "drain", "finishing the rounds under way; the peer then saves and ends")


@app.command("version", epilog="Example: muster version")
def version(as_json: AsJson = False) -> None:
    """Print the version of Muster and of its protocol."""
    from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR
    from peer.machine.version import release

    software, protocol = release(), f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
    words = f"muster {software or '(a checkout that is not installed)'}, protocol {protocol}"
    tell(words, {"muster": software or None, "protocol": protocol}, as_json)


def _tell(data: Path | None, command: Command, done: str) -> None:
    ask(paths.data_directory(data), command)
    typer.echo(done)


def _run_swarm(options: SwarmOptions, report_path: Path | None, plain: bool) -> None:
    """Run the swarm and print the summary; raises LocalError if it did not end well."""
    from contextlib import nullcontext

    from rich.console import Console

    from peer.observer.terminal import LiveView
    from peer.swarm.report import disagreement, write_report
    from peer.swarm.run import Swarm
    from peer.swarm.view import LiveSwarm, PlainLines, summary

    console = Console(highlight=False, soft_wrap=plain)
    live = LiveView(console)
    with nullcontext() if plain else live:
        run = Swarm(options, PlainLines(typer.echo) if plain else LiveSwarm(live))
        report = asyncio.run(run.run())
    if report_path is not None:
        write_report(report, report_path)
    reason = disagreement(run.watch)
    sample = run.watch.host_snapshot.sample if run.watch.host_snapshot else ""
    console.print(summary(report, sample, reason, options.bytewise))
    if reason is not None:
        raise LocalError(f"the swarm did not end well: {reason}; `muster swarm --data DIR` keeps the logs")
    if not report.versions_certified:
        raise LocalError("the swarm certified no version; give it more time, or more versions than it had before")
