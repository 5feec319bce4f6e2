"""`muster join`: ask the owner of this machine, then run a peer until the run is over or it is told to leave."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dht.errors import UsageError
from dht.invite import INVITE_BYTES_MAX, Invite
from dht.refusal import ADVICE, Refusal
from peer.cli import arguments
from peer.cli.common import (
    Announce,
    Base,
    BasePrecision,
    ChainKept,
    Compiled,
    Corpus,
    Data,
    Device,
    DieWithParent,
    Limit,
    Listen,
    Metrics,
    MetricsListen,
    Name,
    Port,
    ShareLimits,
    Stay,
    StepSeconds,
    Team,
    Tokenizer,
    Track,
    Verbose,
    given_options,
    given_ports,
    serve,
    serve_several,
)
from peer.cli.progress import ProgressBar
from peer.learner.spawn import AUTO, learner_ahead
from peer.machine import paths
from peer.machine.fault_points import Fault
from peer.machine.local_files import LocalFiles
from peer.node.options import NodeOptions, TrialOptions
from peer.service.process import ServiceOptions
from peer.service.served import Start
from peer.service.trackers import tracking

INVITE_CHARACTERS_MAX = 2 * INVITE_BYTES_MAX  # base32 makes 8 letters of 5 bytes

Invites = Annotated[
    list[str],
    typer.Argument(help="The line that begins with muster1, or several; `-` reads one from standard input."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads of the learner; default: the machine's cores.")
]
Nice = Annotated[
    int,
    typer.Option("--nice", "--niceness", min=0, max=19, help="Niceness of the learner: 19 gives way to all else."),
]

app = typer.Typer()


@app.command(epilog="Example: muster join muster1abc…")
def join(
    context: typer.Context,
    invite: Invites,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to the terms without being asked, for scripts.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background once it has begun.")] = False,
    data: Data = None,
    port: Port = None,
    listen: Listen = "127.0.0.1",
    announce: Announce = None,
    device: Device = AUTO,
    compiled: Compiled = None,
    threads: Threads = None,
    nice: Nice = 5,
    step_seconds: StepSeconds = 0.0,
    limit: Limit = None,
    share_limits: ShareLimits = None,
    name: Name = "",
    team: Team = "",
    corpus: Corpus = "",
    tokenizer: Tokenizer = "",
    base: Base = "",
    base_precision: BasePrecision = "",
    stay: Stay = False,
    metrics_port: Metrics = None,
    metrics_listen: MetricsListen = "127.0.0.1",
    track: Track = None,
    verbose: Verbose = False,
    fault: Annotated[str | None, typer.Option(hidden=True)] = None,
    attack: Annotated[str | None, typer.Option(hidden=True)] = None,
    trial_network: Annotated[str, typer.Option(hidden=True)] = "",
    tape: Annotated[bool, typer.Option("--tape", hidden=True)] = False,
    skew_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    die_with_parent: DieWithParent = None,
    chain_kept: ChainKept = None,
) -> None:
    """Take part in the run of an invite.

    It first says what that takes from this machine, and asks. Several invites start several peers, which share limits.
    """
    _check_given(context, invite)
    folder = paths.data_directory(data)
    drawn = tracking(track, folder)
    options = NodeOptions(
        data_directory=folder,
        port=port,
        listen_host=listen,
        device=arguments.device(device),
        compiled=compiled,
        threads=threads or 0,
        niceness=nice,
        step_seconds=step_seconds,
        announce=tuple(announce or ()),
        name=name,
        team=team,
        files=LocalFiles(corpus, tokenizer, str(paths.token_cache()), base, base_precision),
        tell=(progress := ProgressBar()),
        stage=progress.begin,
        trial=TrialOptions(fault and str(Fault.parse(fault)), chain_kept, attack, trial_network, tape, skew_file),
    ).within_limits(limit or (), share_limits)
    if len(invite) > 1:
        return _join_several(context, invite, options)
    if detach:
        return _detach(context, _agreed(invite[0], options) if yes else _asked(invite[0], options), folder)
    agreed = invite[0] if yes else _asked(invite[0], options)
    served = ServiceOptions(folder, stay, False, metrics_port=metrics_port, metrics_listen=metrics_listen)
    served = replace(served, parent=die_with_parent, tracking=drawn, doing=lambda: progress.stage)
    with options.sharers or nullcontext(), learner_ahead(options.learner_program) as spawned:  # it imports longest
        if yes:
            _agreed(agreed, options)  # called now, while the learner imports, it costs no extra time
        serve(lambda: _prepare(agreed, replace(options, spawned=spawned)), served, verbose)


def _check_given(context: typer.Context, invites: Sequence[str]) -> None:
    """Raise UsageError for an invite that cannot be read, and for two services on one port."""
    given_ports(context, 1)
    for text in invites:
        if text != "-":
            Invite.parse(text)


def _join_several(context: typer.Context, invites: Sequence[str], options: NodeOptions) -> None:
    """Start one peer per invite, named after its run, once the owner has agreed to all."""
    given = context.params
    if given["detach"] or given["announce"] or "-" in invites:
        raise UsageError("--detach, --announce and `-` are for one invite; start the peer of that run by itself")
    agree, runs = _agreed if given["yes"] else _ask_owner, {}
    for invite in invites:
        run = Invite.parse(invite).run_id.hex()[:12]
        if run in runs:
            raise UsageError(f"two of these invites are for the run {run}; leave one out")
        agree(invite, replace(options, data_directory=options.data_directory / run))
        runs[run] = (("-", "--yes"), invite)
    serve_several(context, runs, options.data_directory, given["share_limits"])


def _prepare(invite: str, options: NodeOptions) -> Start:
    """Import everything heavy, and return the function that starts this peer.

    It retries if the peer was in the run before.
    """
    from peer.node.node import Node
    from peer.service.retry import retry_join
    from peer.storage.run_directory import known_manifest

    text = _given(invite)  # read late: the process that starts us may not have it yet
    join_run = partial(Node.join, text, options)
    returns = known_manifest(options.data_directory, Invite.parse(text).run_id) is not None
    return partial(retry_join, join_run, typer.echo) if returns else join_run


def _detach(context: typer.Context, invite: str, data_directory: Path) -> None:
    """Start the same command in the background, with --yes."""
    from peer.machine.detach import start_detached

    words = ["join", "-", "--yes", *given_options(context, without=("yes", "detach"))]
    peer = start_detached(words, _given(invite).strip(), data_directory)
    unready = f" ({peer.unready})" if peer.unready else ""
    typer.echo(
        f"it runs as process {peer.pid}{unready}; look at it with `muster status` and `muster logs`, "
        "end it with `muster stop`"
    )


def _given(invite: str) -> str:
    return invite if invite != "-" else sys.stdin.readline(INVITE_CHARACTERS_MAX)


def _agreed(invite: str, options: NodeOptions) -> str:
    """Return the invite, which the owner agreed to beforehand, once a peer of its run lets us in."""
    if invite != "-":
        _ask_the_door(Invite.parse(invite), options)
    return invite


def _asked(invite: str, options: NodeOptions) -> str:
    """Ask the owner, and say that the peer starts now: for a while it shows nothing."""
    text = _ask_owner(invite, options)
    typer.echo("Starting; the first step comes in about a minute, later with a large model.")
    return text


def _ask_owner(invite: str, options: NodeOptions) -> str:
    """Return the invite if the owner agrees to the terms; raises UsageError if there is no terminal to ask at."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked whether this machine may take part; agree beforehand with --yes")
    text = _given(invite)
    parsed = Invite.parse(text)
    _ask_the_door(parsed, options)
    typer.echo("Asking for the description of the run…")
    from peer.cli.consent import consents
    from peer.machine import log

    with tempfile.TemporaryDirectory(prefix="muster-join-") as folder:
        log.configure(Path(folder))
        log.silence_libraries()
        agreed = consents(parsed, options, _confirm)
    if not agreed:
        typer.echo("nothing but this description was fetched, and nothing was kept")
        raise typer.Exit(1)
    return text


def _ask_the_door(invite: Invite, options: NodeOptions) -> None:
    """Raise NetworkError if no peer can be called, UsageError if none lets us in.

    A peer that was in the run before is not checked: it may know other peers than the invite names.
    """
    from peer.net.first_call import first_call

    if invite.ticket is not None and invite.ticket.grant.role == "observer":
        raise UsageError(ADVICE[Refusal.ONLY_OBSERVES])
    if not paths.run_path(options.data_directory, invite.run_id).exists():
        first_call(invite, options.identity_path, looks=False)


def _confirm(terms: str) -> bool:
    typer.echo(f"This machine is asked to take part in a run:\n{terms}")
    try:
        return typer.confirm("Take part?", default=False)
    except typer.Abort:
        typer.echo()
        return False
