"""`muster top`: a run in the terminal, as an observer sees it. Names that strangers chose are shown as plain text."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.views import quantity
from coordinator.views.network_view import BanView, NetworkView, PeerView
from dht.errors import NetworkError, UsageError
from peer.cli.common import print_json
from peer.machine import paths
from peer.machine.text import printable
from peer.observer.access import ObserverAccess

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from peer.observer.terminal import Picture

ONCE_SECONDS_MAX = 60.0
NAME_CHARACTERS = 24
ID_CHARACTERS = 8
BANS_SHOWN = 3

Run = Annotated[str | None, typer.Argument(help="Invite of the run to look at; default: the run of the peer here.")]


def top(
    invite: Run = None,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print it for scripts.")] = False,
) -> None:
    """Show a living network in the terminal.

    It shows the run, its peers and its rounds.
    """
    from rich.console import Console

    from peer.machine import log
    from peer.net.first_call import first_call

    if as_json and not once:
        raise UsageError("--json prints one view: give --once too")
    directory, console = paths.data_directory(data), Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="muster-top-") as folder:
        if invite is None:
            access = ObserverAccess.at_own_run(directory, Path(folder))
        else:
            access = ObserverAccess.by_invite(invite, directory, Path(folder))
            first_call(access.invite, directory / paths.IDENTITY_NAME)
        log.configure(Path(folder))
        log.silence_libraries()
        if once or not console.is_terminal:
            view = asyncio.run(first_view(access))
            if as_json:
                print_json(view)
            else:
                console.print(picture(view).draw(len(view.peers)))
        else:
            asyncio.run(_watch(access, console))


async def first_view(access: ObserverAccess) -> NetworkView:
    """Return the first view that is up to date; raises NetworkError if no peer of the run is seen in time.

    If none is up to date within ONCE_SECONDS_MAX, it is the newest.
    """
    from peer.observer.process import observe

    newest = NetworkView()
    ready = asyncio.Event()

    async def show(view: NetworkView) -> None:
        nonlocal newest
        newest = view
        if up_to_date(view):
            ready.set()

    observing, waiting = (
        asyncio.create_task(observe(access.invite, access.key, show, patient=False)),
        asyncio.create_task(ready.wait()),
    )
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
    """Whether we hold the certificates of all versions that most live peers claim, or all but the newest."""
    live = [peer.versions for peer in view.peers if peer.live and peer.versions]
    said = [[one[at] for one in live if at < len(one)] for at in range(len(view.fragments))]
    lacking = any(
        versions and median_high(versions) > fragment.version + 1
        for versions, fragment in zip(said, view.fragments, strict=True)
    )
    return any(peer.live for peer in view.peers) and not lacking


async def _watch(access: ObserverAccess, console: Console) -> None:
    from peer.observer.process import observe
    from peer.observer.terminal import LiveView

    with LiveView(console, screen=True) as live:

        async def show(view: NetworkView) -> None:
            live.show(picture(view))

        await observe(access.invite, access.key, show, patient=False)


def picture(view: NetworkView) -> Picture:
    """Return the picture of a run and its peers, with live peers first."""
    from peer.observer.terminal import Column, Picture, Row

    words, numbers = ("peer", "state"), ("step", "loss", "steps/s", "behind", "credit", "sent")
    columns = [*map(Column, words), *(Column(one, is_number=True) for one in numbers), Column("device")]
    peers = sorted(view.peers, key=lambda peer: (not peer.live, peer.name, peer.peer_id))
    rows = [Row(_cells(peer), None if peer.live else "dim") for peer in peers]
    return Picture(_run_lines(view), columns, rows)


def _run_lines(view: NetworkView) -> Sequence[Text]:
    from rich.text import Text

    from peer.observer.terminal import labelled, loss_line

    heard, point = view.network_seen_unix_seconds, view.history[-1] if view.history else None
    silent_seconds = view.taken_unix_seconds - heard if heard is not None else None
    lines = [Text(f"run {view.name} {view.run_id[:12]}", style="bold")]
    lines += [labelled(printable(label), printable(text)) for label, text in view.run.about]
    if view.finished:
        lines.append(labelled("state", "finished, with all its versions", "green"))
    elif silent_seconds is None or silent_seconds > view.run.presence_lifetime_seconds:
        ago = "not heard of yet" if silent_seconds is None else f"last heard of {quantity.duration(silent_seconds)} ago"
        lines.append(labelled("network", f"{ago}. {printable(view.note)}", "yellow"))
    if point is None:
        return lines
    losses = loss_line([one.loss for one in view.evaluations])
    new = sum(peer.live and peer.trust == "probation" for peer in view.peers)
    void = sum(one.outcome == "void" for one in view.rounds)
    return [
        *lines,
        labelled(
            "versions", f"{point.versions} of {view.run.versions_target} certified; {_versions(view)} by fragment"
        ),
        losses + " nats per token, as the host says",
        labelled(
            "tokens",
            f"{quantity.count(point.tokens_certified)} certified, "
            f"{quantity.count(point.tokens_per_second)}/s certified, "
            f"{quantity.count(point.trained_tokens_per_second)}/s trained",
        ),
        labelled(
            "peers", f"{point.peers_live} live of {point.peers_known} known" + (f", {new} on probation" if new else "")
        ),
        labelled("rounds", f"{len(view.rounds)} remembered, {void} void"),
        *(labelled("banned", _ban(one), "red") for one in view.bans[-BANS_SHOWN:]),
    ]


def _ban(ban: BanView) -> str:
    proof = "evidence verified here" if ban.verified else "not verified"
    return f"…{ban.peer_id[-ID_CHARACTERS:]}: {printable(ban.reason)} ({proof})"


def _versions(view: NetworkView) -> str:
    return quantity.versions(fragment.version for fragment in view.fragments)


def _cells(peer: PeerView) -> list[str]:
    name = printable(peer.name)[:NAME_CHARACTERS]
    is_there = peer.live or peer.state == "finished"
    state = printable(peer.state) if is_there else f"gone {quantity.duration(peer.last_seen_seconds)} ago"
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
