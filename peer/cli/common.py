"""Shared parts of the commands: options, printing, and running one peer or several."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from typer.models import OptionInfo

from dht.errors import UsageError
from peer.cli import arguments
from peer.service.process import ServiceOptions
from peer.service.served import Start

StepSeconds = Annotated[
    float,
    typer.Option(
        min=0, max=86_400, help="Make no inner step sooner than this after the last one, to go easy on the machine."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of this peer's key, checkpoints and log; default: ~/.local/share/muster."),
]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="TCP port to listen on; default: any free one.")]
Listen = Annotated[
    str,
    typer.Option(help="IP address to listen on; 0.0.0.0 to be reached from elsewhere.", callback=arguments.listen),
]
Announce = Annotated[
    list[str] | None, typer.Option(help="Where others reach this peer, as /ip4/203.0.113.7/tcp/7401 (repeatable).")
]
BasePrecision = Annotated[
    str, typer.Option(help="Hold the base in nf4, bfloat16 or float32, where the run leaves it to you; default: nf4.")
]
Base = Annotated[str, typer.Option(help="Folder of the base model, where the run trains an adapter of one.")]
Device = Annotated[str, typer.Option(help="Train on `cpu`, `cuda:1`, `cuda:0,cuda:1`, or what is best.")]
Corpus = Annotated[str, typer.Option(help="Your text files, where the run trains on files: 'text/*.txt, more.txt'.")]
Tokenizer = Annotated[str, typer.Option(help="Your copy of the run's tokenizer.json, where the run has one.")]
Team = Annotated[str, typer.Option(help="Team that this peer's credit counts for.")]
Name = Annotated[str, typer.Option(help="Name by which others see this peer.")]
Stay = Annotated[bool, typer.Option("--stay", help="Go on serving after the run is over, until stopped.")]
Metrics = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65535, help="Serve Prometheus metrics on this port."),
]
MetricsListen = Annotated[str, typer.Option(help="IPv4 address of the metrics; anybody who reaches it can read them.")]
Dashboard = Annotated[
    int | None,
    typer.Option("--dashboard-port", min=1, max=65535, help="Serve the dashboard on this port, in its own process."),
]
DashboardListen = Annotated[
    str, typer.Option(help="IP address of the dashboard; beyond this machine nobody gets any controls.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        help="Keep a page about the run up to date in this folder, for any web server.",
        file_okay=False,
        resolve_path=True,
    ),
]
PagePort = Annotated[
    int | None, typer.Option("--page-port", min=1, max=65535, help="Serve that page, and nothing else, on this port.")
]
PageListen = Annotated[str, typer.Option(help="IP address of the page; 0.0.0.0 lets anybody read it.")]
Track = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:FOLDER]",
        help="Draw curves with tensorboard, wandb, trackio or mlflow (docs/how-to/tracking.md).",
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", help="KEY=VALUE: a limit that wins over settings.toml (repeatable; docs/how-to/limits.md)."
    ),
]
ShareLimits = Annotated[
    Path | None,
    typer.Option(help="Share the limits in this folder's settings.toml with every peer here that names it too."),
]
RunFile = Annotated[Path | None, typer.Argument(help="Run file (TOML); without one, the tiny run that ships here.")]
RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(help="Run file (TOML), or several; without one, the tiny run that ships here."),
]
RunFileOption = Annotated[Path | None, typer.Option("--config", help="The run file, by its older name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it for scripts.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log more, and to the terminal too.")]
Compiled = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Whether torch compiles learners' models; default: on a GPU."),
]
DieWithParent = Annotated[int | None, typer.Option(hidden=True)]
ChainKept = Annotated[int | None, typer.Option(min=8, hidden=True)]
PORTS = ("port", "metrics_port", "dashboard_port", "page_port")  # several runs take consecutive ones


def serve(prepare: Callable[[], Start], options: ServiceOptions, verbose: bool) -> None:
    """Run one peer, which logs to its data directory."""
    import gc

    from peer.machine import log, paths
    from peer.service import process

    if options.metrics_port is not None:
        from peer.service.metrics import check_free

        check_free(options.metrics_port, options.metrics_listen)
    paths.keep_private()
    log.configure(options.data_directory, verbose)

    def prepare_well() -> Start:
        gc.disable()  # nothing in a loading module is garbage, and looking for it takes a sixth of the time
        start = prepare()
        gc.freeze()
        gc.enable()
        log.silence_libraries()
        return start

    process.run(prepare_well, options, typer.echo)


def with_options_of(
    other: Callable[..., Any], without: Collection[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of another one too, except hidden ones and those in `without`.

    The command takes them as `**options`.
    """

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        own, others = (inspect.signature(one, eval_str=True).parameters.values() for one in (command, other))
        added = [one for one in others if one.name not in without and _is_shown_option(one)]
        taken = [one for one in own if one.kind is not one.VAR_KEYWORD] + added
        command.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in taken}
        return command

    return extended


def _is_shown_option(parameter: inspect.Parameter) -> bool:
    return any(isinstance(one, OptionInfo) and not one.hidden for one in get_args(parameter.annotation))


def given_options(context: typer.Context, without: Collection[str]) -> list[str]:
    """Return the options given on this command line as words, except those in `without`."""
    words: list[str] = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.param_type_name != "option" or option.name in without or value in (None, option.default):
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            flags = {True: option.opts, False: option.secondary_opts}
            words += [flags[one][0]] if isinstance(one, bool) else [option.opts[0], str(one)]
    return words


def given_ports(context: typer.Context, runs: int) -> dict[str, int]:
    """Return the ports given on this command line, by option.

    Each is the first of as many as there are runs. Raises UsageError if any overlap.
    """
    ports = {
        option.opts[0]: context.params[option.name]
        for option in context.command.params
        if option.name in PORTS and context.params.get(option.name)
    }
    taken = [port + index for port in ports.values() for index in range(runs)]
    if len(set(taken)) == len(taken):
        return ports
    if runs == 1:
        raise UsageError(f"{', '.join(ports)} need a port each; choose another for one of them")
    raise UsageError(
        f"{runs} runs take {runs} ports in a row for each of {', '.join(ports)}, and these overlap; "
        "choose ports that are further apart"
    )


def serve_several(
    context: typer.Context, runs: Mapping[str, tuple[Sequence[str], str]], data: Path, share: Path | None
) -> None:
    """Run this command once for each run, given by name as its extra words and its line of input.

    Each run has its own folder in `data` and consecutive ports; all share limits. Raises UsageError or LocalError.
    """
    from peer.service.several import PeerChild, run_several

    ports = given_ports(context, len(runs))
    own = {*PORTS, "data", "share_limits", "die_with_parent", "yes"}
    words = [*given_options(context, own), "--share-limits", str(share or data), "--die-with-parent", str(os.getpid())]
    children = []
    for index, (name, (more, told)) in enumerate(runs.items()):
        places = [word for option, port in ports.items() for word in (option, str(port + index))]
        command = (sys.executable, "-m", "peer.cli", str(context.command.name), *words, *places)
        children.append(PeerChild(name, (*command, "--data", str(data / name), *more), told))
    raise typer.Exit(asyncio.run(run_several(children, typer.echo)))


def print_json(told: object) -> None:
    """Print one JSON document; models and dataclasses become objects with their fields."""
    typer.echo(json.dumps(told, indent=2, default=_plain))


def tell(words: str, told: object, as_json: bool) -> None:
    """Print the words for people, or `told` as JSON for scripts."""
    if as_json:
        print_json(told)
    else:
        typer.echo(words)


def _plain(one: Any) -> object:
    if isinstance(one, BaseModel):
        return json.loads(one.model_dump_json())
    if is_dataclass(one) and not isinstance(one, type):
        return asdict(one)
    raise TypeError(f"{type(one).__name__} has no form in JSON")
