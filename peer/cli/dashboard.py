"""`muster dashboard`: pages in a browser about a run, or about a simulated one.

Three processes take part. An observer (or the demo) writes its view of the run to a file, and Streamlit shows the
file. This command starts and ends both; it imports neither, and only looks the dashboard up.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from coordinator.views.control import PeerNotRunningError, StartingError, UnreadyError, snapshot
from dht.errors import LocalError, MusterError, UsageError
from dht.files import write_whole
from dht.invite import Invite
from peer.cli.common import Page, PageListen, PagePort
from peer.machine import paths
from peer.machine.timed_wait import end_within
from peer.observer.access import ObserverAccess
from peer.service.dashboard import PagesAt, PublicPage, packages_folder, pages_at, tethered

READY_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
END_SECONDS_MAX = 10.0
START_SECONDS_MAX = 600.0  # of the peer here
LOOK_SECONDS = 0.5
TOKEN_BYTES = 24

app = typer.Typer()

Run = Annotated[str | None, typer.Argument(help="Invite of the run to look at; default: the run of the peer here.")]
DemoPeers = Annotated[int, typer.Option(min=4, max=2000, help="How many peers the demo has.")]
DemoSeed = Annotated[int, typer.Option(min=0, max=2**32, help="The same seed tells the same story.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="TCP port of the pages.")]
Listen = Annotated[str, typer.Option(help="IP address to listen on; beyond this machine nobody gets any controls.")]


@app.command(epilog="Example: muster dashboard --demo")
def dashboard(
    invite: Run = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a simulated network instead.")] = False,
    demo_peers: DemoPeers = 12,
    demo_seed: DemoSeed = 1,
    port: Port = 8501,
    listen: Listen = "127.0.0.1",
    headless: Annotated[bool, typer.Option("--headless", help="Open no browser.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")] = None,
    page: Page = None,
    page_port: PagePort = None,
    page_listen: PageListen = "127.0.0.1",
) -> None:
    """Show a living network in the browser.

    Its pages show the run, peers, rounds, trust and credit. With --page or --page-port it makes only the public page.
    """
    if demo and invite is not None:
        raise UsageError("a demo needs no invite; give one of the two")
    at = PagesAt(port, listen)
    public = PublicPage(page, pages_at(page_port, page_listen))
    if not public.arguments():
        at.check()
    directory = paths.data_directory(data)
    if invite is not None and not public.arguments():
        _check_invite(invite, directory)
    with tempfile.TemporaryDirectory(prefix="muster-dashboard-") as name, ExitStack() as ending:
        folder = Path(name)
        view = folder / "view.json"
        if demo:
            source = ["dashboard.demo", "--peers", str(demo_peers), "--seed", str(demo_seed)]
        else:
            source = ["peer.observer.process", *observer_arguments(invite, directory, folder / "observer")]
        source += ["--out", str(view)]
        if public.arguments():
            _publish(source, view, public, folder)
            return
        pages = ["dashboard.serve", "--view", str(view), "--listen", listen, "--port", str(port)]
        token = "" if demo or not at.is_local else secrets.token_urlsafe(TOKEN_BYTES)
        if token:
            write_whole(folder / "token", token.encode(), 0o600)  # an argument could be read by anybody here
            pages += ["--data", str(directory), "--token-file", str(folder / "token")]
        with _interruptible():
            children = [ending.enter_context(Child(one, folder)) for one in (source, pages)]
            _wait_until_served(children, (listen, port), view)
            address = f"{at.url}/{_first_page(directory)}?token={token}" if token else at.url
            typer.echo(f"dashboard: {address}" + ("   (Ctrl-C ends it)" if sys.stdout.isatty() else ""))
            if not headless:
                typer.launch(address)
            _wait(children)


def _check_invite(text: str, directory: Path) -> None:
    """Raise NetworkError or UsageError if no peer answers or lets us in: else the pages would wait for ever."""
    from peer.net.first_call import first_call

    first_call(Invite.parse(text), directory / paths.IDENTITY_NAME)


def _publish(source: Sequence[str], view: Path, public: PublicPage, folder: Path) -> None:
    """Keep the public page up to date until interrupted; raises the error of a child that ends."""
    publisher = ["dashboard.publish", "--view", str(view), *public.arguments()]
    with ExitStack() as ending, _interruptible():
        children = [ending.enter_context(Child(one, folder)) for one in (source, publisher)]
        if public.folder is not None:
            typer.echo(f"page: {public.folder / 'index.html'}, written every minute")
        if public.at is not None:
            typer.echo(f"page: {public.at.url}")
        _wait(children)


def observer_arguments(invite: str | None, directory: Path, folder: Path) -> list[str]:
    """Return an observer's arguments, for the run of the invite or of the peer here; it keeps its data in `folder`."""
    access, text = observer_access(invite, directory, folder), folder / "invite"
    folder.mkdir(exist_ok=True)
    write_whole(text, str(access.invite).encode(), 0o600)  # any user here can read arguments, and could join with it
    return ["--invite-file", str(text), "--key", str(access.key), "--data", str(folder)]


def observer_access(invite: str | None, directory: Path, folder: Path) -> ObserverAccess:
    """Return how an observer reaches the run of this invite, or of the peer here; raises what `ask` does."""
    if invite is not None:
        return ObserverAccess.by_invite(invite, directory, folder)
    try:
        return _at_own_run(directory, folder)
    except UnreadyError:
        raise
    except PeerNotRunningError:
        sentence = "no peer is running here; give the invite of a run, or --demo, or start one with: muster join INVITE"
        raise LocalError(sentence) from None


def _at_own_run(directory: Path, folder: Path) -> ObserverAccess:
    """Return how an observer reaches the run of the peer here, once it has started; raises what `ask` does."""
    never = threading.Event()
    for looks in range(int(START_SECONDS_MAX / LOOK_SECONDS)):
        with suppress(StartingError):
            return ObserverAccess.at_own_run(directory, folder)
        if looks == 0:
            typer.echo("the peer here is still starting; the dashboard waits for it", err=True)
        never.wait(LOOK_SECONDS)
    return ObserverAccess.at_own_run(directory, folder)


def _first_page(directory: Path) -> str:
    """Return the path of the first page: the owner's machine if it trains, else the run, whose path is empty."""
    try:
        return "my-machine" if snapshot(directory).role == "learner" else ""
    except MusterError:
        return ""


class Child:
    """A module that runs in its own process and ends with this one. A context manager."""

    def __init__(self, module: Sequence[str], folder: Path) -> None:
        self._log = folder / f"{module[0]}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                tethered(module),
                cwd=packages_folder(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        end_within(self.process, END_SECONDS_MAX)

    def check(self) -> None:
        """Raise the error that the child ended with, if it has ended: UsageError or LocalError."""
        if self.process.poll() is None:
            return
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        if self.process.returncode == 2:
            raise UsageError(last)
        raise LocalError(f"a part of the dashboard has ended: {last}")


def _wait_until_served(children: Sequence[Child], address: tuple[str, int], view: Path) -> None:
    """Wait until the pages answer and have something to show; raises the error of a child that ends, or LocalError."""
    for _ in range(int(READY_SECONDS_MAX / POLL_SECONDS)):
        for child in children:
            child.check()
        with suppress(OSError), socket.create_connection(address, POLL_SECONDS):
            if view.exists():
                return
        with suppress(subprocess.TimeoutExpired):
            children[0].process.wait(POLL_SECONDS)
    raise LocalError(f"the dashboard did not start within {READY_SECONDS_MAX:.0f} s; is this machine very busy?")


def _wait(children: Sequence[Child]) -> None:
    """Wait until interrupted; raises the error of a child that ends."""
    while True:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(1.0)
            child.check()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the dashboard without a failure."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield
