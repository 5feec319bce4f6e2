"""`muster top`: a run in the terminal, as an observer sees it. What strangers call themselves is plain text here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.views import quantity
from coordinator.views.control import ask
from coordinator.views.network_view import BanView, NetworkView, PeerView
from dht.errors import NetworkError
from dht.invite import Invite
from peer.machine import paths
from peer.machine.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

ONCE_SECONDS_MAX = 60.0
HEAD_LINES = 12  # around the rows of the table
SPARKLINE_CHARACTERS = 32
NAME_CHARACTERS = 24
ID_CHARACTERS = 8
BANS_SHOWN = 3

Run = Annotated[str | None, typer.Argument(help="Invite of the run to look at; default: the run of the peer here.")]


def top(
    invite: Run = None,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")] = None,
) -> None:
    """Show a living network in the terminal.

    The run, its peers and its rounds.
    """
    from rich.console import Console

    from peer.machine import log

    text = invite if invite is not None else str(ask(paths.data_directory(data), "invite")["invite"])
    run, console = Invite.parse(text), Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="muster-top-") as folder:
        log.configure(Path(folder))
        log.silence_libraries()
        if once or not console.is_terminal:
            view = asyncio.run(first_view(run, Path(folder)))
            console.print(picture(view, len(view.peers)))
        else:
            asyncio.run(_watch(run, Path(folder), console))


async def first_view(run: Invite, directory: Path) -> NetworkView:
    """The first view that is up to date, as far as peers say; raises NetworkError if nobody is heard of in time."""
    from peer.observer.process import observe

    newest = NetworkView()
    ready = asyncio.Event()

    async def show(view: NetworkView) -> None:
        nonlocal newest
        newest = view
        if up_to_date(view):
            ready.set()

    observing, waiting = asyncio.create_task(observe(run, directory, show)), asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({observing, waiting}, timeout=ONCE_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        observing.cancel()
        await observing
    if newest.network_seen_unix_seconds is None:
        raise NetworkError(f"nobody of this run was heard of: {newest.note or 'it is silent'}")
    return newest


def up_to_date(view: NetworkView) -> bool:
    """Whether we hold the certificates of all versions that most live peers say to hold, or all but the newest."""
    live = [peer.versions for peer in view.peers if peer.live and peer.versions]
    said = [[one[at] for one in live if at < len(one)] for at in range(len(view.fragments))]
    lacking = any(
        versions and median_high(versions) > fragment.version + 1
        for versions, fragment in zip(said, view.fragments, strict=True)
    )
    return any(peer.live for peer in view.peers) and not lacking


async def _watch(run: Invite, directory: Path, console: Console) -> None:
    from rich.live import Live

    from peer.observer.process import observe

    with Live(console=console, auto_refresh=False, screen=True) as live:

        async def show(view: NetworkView) -> None:
            live.update(picture(view, max(1, console.height - HEAD_LINES)), refresh=True)

        await observe(run, directory, show)


def picture(view: NetworkView, rows_max: int) -> RenderableType:
    """The run, and at most `rows_max` peers: those that are there first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
    for heading in ("peer", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("step", "loss", "steps/s", "behind", "credit", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("device", no_wrap=True)
    peers = sorted(view.peers, key=lambda peer: (not peer.live, peer.name, peer.peer_id))
    shown = peers if len(peers) <= rows_max else peers[: max(0, rows_max - 1)]
    for peer in shown:
        table.add_row(*map(Text, _cells(peer)), style=None if peer.live else "dim")
    if len(shown) < len(peers):
        table.add_row("…", f"{len(peers) - len(shown)} more")
    return Group(*_run_lines(view), Text(), table)


def _run_lines(view: NetworkView) -> Sequence[Text]:
    from rich.text import Text

    from peer.machine.sparkline import sparkline

    heard, point = view.network_seen_unix_seconds, view.history[-1] if view.history else None
    silent_seconds = view.taken_unix_seconds - heard if heard is not None else None
    lines = [Text(f"run {view.name} {view.run_id[:12]}", style="bold")]
    lines += [Text(printable(f"{label:<9} {text}")) for label, text in view.run.about]
    if view.finished:
        lines.append(Text("state     finished, with all its versions", style="green"))
    elif silent_seconds is None or silent_seconds > view.run.presence_lifetime_seconds:
        ago = "not heard of yet" if silent_seconds is None else f"last heard of {quantity.duration(silent_seconds)} ago"
        lines.append(Text(f"network   {ago}. {printable(view.note)}", style="yellow"))
    if point is None:
        return lines
    losses = [one.loss for one in view.evaluations]
    newest = quantity.loss(losses[-1] if losses else None)
    new = sum(peer.live and peer.trust == "probation" for peer in view.peers)
    void = sum(one.outcome == "void" for one in view.rounds)
    return [
        *lines,
        Text(f"versions  {point.versions} of {view.run.versions_target} certified; {_versions(view)} by fragment"),
        Text(f"held out  {sparkline(losses, SPARKLINE_CHARACTERS)} {newest} nats per token, as the host says"),
        Text(
            f"tokens    {quantity.count(point.tokens_certified)} certified, "
            f"{quantity.count(point.tokens_per_second)}/s certified, "
            f"{quantity.count(point.trained_tokens_per_second)}/s trained"
        ),
        Text(
            f"peers     {point.peers_live} live of {point.peers_known} known" + (f", {new} on probation" if new else "")
        ),
        Text(f"rounds    {len(view.rounds)} remembered, {void} void"),
        *(Text(f"banned    {_ban(one)}", style="red") for one in view.bans[-BANS_SHOWN:]),
    ]


def _ban(ban: BanView) -> str:
    proof = "evidence verified here" if ban.verified else "not verified"
    return f"…{ban.peer_id[-ID_CHARACTERS:]}: {printable(ban.reason)} ({proof})"


def _versions(view: NetworkView) -> str:
    return quantity.versions(fragment.version for fragment in view.fragments)


def _cells(peer: PeerView) -> list[str]:
    name = printable(peer.name)[:NAME_CHARACTERS]
    state = printable(peer.state) if peer.live else f"gone {quantity.duration(peer.last_seen_seconds)} ago"
    learner = peer.role == "learner"
    return [
        f"{name} …{peer.peer_id[-ID_CHARACTERS:]}".strip(),
        state,
        str(peer.steps) if learner else "",
        quantity.loss(peer.loss) if learner else "",
        f"{peer.steps_per_second:.2f}" if learner and peer.live else "",
        str(peer.versions_behind),
        quantity.count(peer.credited_tokens),
        "" if peer.bytes_sent is None else quantity.size(peer.bytes_sent),
        printable(peer.device),
    ]
