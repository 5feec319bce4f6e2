"""The dashboard beside a host: runs `muster dashboard` in its own process, restarts it, and ends it with the host."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dht.addresses import tcp_endpoint
from dht.daemon import tether
from dht.daemon.ports import check_ports_free
from dht.errors import LocalError, UsageError

REST_SECONDS = 10.0  # before a restart; doubles each time
REST_SECONDS_MAX = 600.0
END_SECONDS_MAX = 15.0  # the dashboard has two child processes to end

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PagesAt:
    """The address of the pages. They show controls to this machine only (`dashboard.serve`)."""

    port: int
    listen: str = "127.0.0.1"

    def check(self) -> None:
        """Raise UsageError if the address is no IP address, or its port cannot be listened on."""
        try:
            ipaddress.ip_address(self.listen)
        except ValueError:
            raise UsageError(f"pages are served at an IP address such as 127.0.0.1, not at {self.listen!r}") from None
        check_ports_free((tcp_endpoint(self.listen, self.port),))

    def arguments(self) -> list[str]:
        """Return the arguments for `muster dashboard`."""
        return ["--port", str(self.port), "--listen", self.listen]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the pages."""
        return ipaddress.ip_address(self.listen).is_loopback

    @property
    def url(self) -> str:
        """The URL of the pages."""
        return f"http://[{self.listen}]:{self.port}" if ":" in self.listen else f"http://{self.listen}:{self.port}"


def pages_at(port: int | None, listen: str) -> PagesAt | None:
    """Return the address of the pages, None without a port; raises UsageError if they cannot be served there."""
    if port is None:
        return None
    pages = PagesAt(port, listen)
    pages.check()
    return pages


@dataclass(frozen=True, slots=True)
class PublicPage:
    """The destination of the public page: a folder, a port, or both."""

    folder: Path | None = None
    at: PagesAt | None = None

    def arguments(self) -> list[str]:
        """Return the arguments for `muster dashboard`; none if there is no page."""
        words = [] if self.folder is None else ["--page", str(self.folder)]
        return words if self.at is None else [*words, "--page-port", str(self.at.port), "--page-listen", self.at.listen]


def packages_folder() -> Path:
    """Return the folder that holds Muster's packages; raises LocalError if the dashboard is not among them."""
    found = importlib.util.find_spec("dashboard")
    if found is None or not found.submodule_search_locations:
        raise LocalError("the dashboard is not installed; set Muster up again with: make install")
    return Path(found.submodule_search_locations[0]).parent


def tethered(module: Sequence[str]) -> list[str]:
    """Return a command line that runs a module with its arguments until it ends or this process does.

    Run it in `packages_folder`, where `-m` looks first: a module of this name in the user's folder is not taken.
    """
    return [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), sys.executable, "-m", *module]


@asynccontextmanager
async def dashboard_beside(data_directory: Path, arguments: Sequence[str], say: Say) -> AsyncIterator[None]:
    """Run `muster dashboard` with these arguments for the peer in this folder, as long as the block runs.

    Its output goes to `say`. Raises LocalError if the dashboard is not installed.
    """
    command = tethered(["peer.cli", "dashboard", "--headless", "--data", str(data_directory), *arguments])
    keeping = asyncio.create_task(keep_running(command, packages_folder(), say))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def keep_running(command: Sequence[str], folder: Path, say: Say, rest_seconds: float = REST_SECONDS) -> None:
    """Run the command and restart it whenever it ends, until cancelled; ends it then."""
    while True:
        await _run(command, folder, say)
        say(f"the dashboard has ended; it starts again in {rest_seconds:g} seconds")
        await asyncio.sleep(rest_seconds)
        rest_seconds = min(2 * rest_seconds, REST_SECONDS_MAX)


async def _run(command: Sequence[str], folder: Path, say: Say) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends it
        )
    except OSError as error:
        return say(f"the dashboard cannot be started: {error.strerror}")
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            say(line.decode(errors="replace").rstrip())
        await process.wait()
    except ValueError:
        say("the dashboard says more than it should")
    finally:
        if process.returncode is None:
            process.terminate()
            await _wait_or_kill(process)


async def _wait_or_kill(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(END_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
