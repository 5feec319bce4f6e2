"""Runs one peer as a process: starts it, serves its control socket, and ends it on request or by a signal.

Ctrl-C or SIGTERM once drains and then stops, twice stops now (design §8, Leave). A peer that must not outlive its
parent gets SIGTERM from the kernel when that dies, and stops now, without saving.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from dht.invite_reach import limits_of
from dht.locks import RuntimeDirectory
from peer.machine.heap import give_back_large_pieces
from peer.machine.signals import ENDING, on_signals
from peer.machine.timed_wait import wait_for
from peer.service.control_server import ControlServer
from peer.service.dashboard import PagesAt, PublicPage, dashboard_beside
from peer.service.descriptors import allow_more_descriptors
from peer.service.owner_commands import OwnerCommands
from peer.service.served import ServedNode, Start
from peer.service.shutdown import ALARM_SECONDS, ShutdownRequests
from peer.service.status_text import left_line, status_line
from peer.service.trackers import Tracking
from peer.service.tracking import tracked

STOP_SECONDS_MAX = 20.0
SAVE_SECONDS_QUIET = 5.0  # after so long the user is told what takes the time
LEAVING_SECONDS = 3.0  # between two lines about what a leaving peer waits for
SWEEPS_MAX = 20
PARENT_SECONDS_MAX = 2.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGNALS = (*ENDING, signal.SIGHUP)  # SIGHUP: the terminal has gone

Say = Callable[[str], None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How to serve a peer. `parent` is the id of a process that the peer must not outlive."""

    data_directory: Path
    stay: bool = False  # go on after the run is over, until told to stop
    show_invite: bool = False
    listens_at: str = ""
    status_seconds: float = 15.0
    parent: int | None = None
    metrics_port: int | None = None
    metrics_listen: str = "127.0.0.1"
    pages: PagesAt | None = None  # address of the dashboard
    page: PublicPage = field(default_factory=PublicPage)
    tracking: Tracking | None = None
    doing: Callable[[], str] = str  # the current stage of a start, in words; empty if unknown


def run(prepare: Callable[[], Start], options: ServiceOptions, say: Say) -> None:
    """Serve one peer until it ends; `prepare` does the heavy imports, `say` shows a line to the user.

    Raises what starting or running the node raises.
    """
    requests = ShutdownRequests(tethered=options.parent is not None)
    log.info("peer_begins", process=os.getpid())
    allow_more_descriptors()
    give_back_large_pieces()

    def try_to_say(line: str) -> None:
        with suppress(OSError):  # a full disk or a closed output is no reason to end
            say(line)

    try:
        with _interruptible(options.parent):
            start = prepare()
    except KeyboardInterrupt:
        requests.abandoned = requests.tethered
    else:
        asyncio.run(_serve(start, options, requests, try_to_say))
    finally:
        if options.parent is not None and requests.abandoned:
            _ignore_signals()
            _wait_for_end(options.parent)
            remove_abandoned(Path(tempfile.gettempdir()))


def remove_abandoned(parent: Path) -> None:
    """Remove the files that killed processes of this user left in `parent`: making a runtime directory does so."""
    for _ in range(SWEEPS_MAX):
        with suppress(FileNotFoundError):  # another process has removed them at the same time
            RuntimeDirectory(parent).close()
            return


def _wait_for_end(process: int) -> None:
    """Wait until this process has ended and released its locks; the wait is bounded, in case it is not dying."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        wait_for(descriptor, PARENT_SECONDS_MAX)
        os.close(descriptor)


@contextmanager
def _interruptible(parent: int | None) -> Iterator[None]:
    """Turn every signal, and the parent's death, into a KeyboardInterrupt while there is nothing to save."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise KeyboardInterrupt
    yield


def _ignore_signals() -> None:
    """Ignore signals, so that a late one does not interrupt an abandoned peer's short and bounded clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def _serve(start: Start, options: ServiceOptions, requests: ShutdownRequests, say: Say) -> None:
    try:
        with on_signals(_SIGNALS, requests.on_signal):
            commands = OwnerCommands(requests, options.doing)
            control = await ControlServer.start(options.data_directory, commands.answer)
            try:
                commands.node = node = await _start_unless_told_to_leave(start, requests)
                if node is not None:
                    await _serve_started(node, commands, control, options, say)
            finally:
                await control.close()
    finally:
        if requests.abandoned:
            _ignore_signals()


async def _serve_started(
    node: ServedNode, commands: OwnerCommands, control: ControlServer, options: ServiceOptions, say: Say
) -> None:
    final_lines, requests = list[str](), commands.requests
    try:
        try:
            async with _metrics(node, options):  # before an invite is shown: the port may be taken
                final_lines = await _show_and_live(node, options, requests, say)
        finally:
            commands.ending = "writes its last checkpoint"
            await control.settle()  # so that no client waits for an answer in vain
    finally:
        try:
            if not requests.abandoned:  # its folder may be gone already
                await _save_last(node, requests, say)
        finally:
            commands.ending = "closes its connections"
            if requests.hurried:
                signal.alarm(ALARM_SECONDS)
            await _stop(node)
    for line in final_lines:  # the last lines, once nothing is left to do
        say(line)


async def _show_and_live(node: ServedNode, options: ServiceOptions, requests: ShutdownRequests, say: Say) -> list[str]:
    """Show device, invite and pages, and run until the end; returns the lines to print last."""
    if device := node.snapshot().device:
        say(f"The learner trains on {device}")
        say(f"Memory: {memory_summary(node.manifest.config)}")
    if options.show_invite:
        _show_invite(node, options.listens_at, say)
    served = [] if options.pages is None else options.pages.arguments()
    public = options.page.arguments()
    drawn = tracked(options.tracking, node.manifest.config.name, node.snapshot, say)
    async with _pages(options, served, say), _pages(options, public, say), drawn:
        return await _live(node, requests, options, say)


def _show_invite(node: ServedNode, listens_at: str, say: Say) -> None:
    """Print the invite, or why there is none; a second line says where it would not work, and why."""
    try:
        text = node.invite()
    except UsageError as error:
        return say(str(error))
    say(f"invite: {text}")
    if limits := limits_of(Invite.parse(text).addresses, listens_at):
        say(limits)


def memory_summary(config: RunConfig) -> str:
    """Return a summary of the memory that this run takes, by place."""
    from peer.learner.memory_estimate import footprint

    return footprint(config).summary()


def _metrics(node: ServedNode, options: ServiceOptions) -> AbstractAsyncContextManager[None]:
    if options.metrics_port is None:
        return nullcontext()
    from peer.service.metrics import serve_metrics

    return serve_metrics(options.metrics_port, node.snapshot, options.metrics_listen)


def _pages(options: ServiceOptions, arguments: Sequence[str], say: Say) -> AbstractAsyncContextManager[None]:
    """Run `muster dashboard` beside the peer with these arguments; nothing without any."""
    return dashboard_beside(options.data_directory, arguments, say) if arguments else nullcontext()


async def _start_unless_told_to_leave(start: Start, requests: ShutdownRequests) -> ServedNode | None:
    starting, leaving = asyncio.ensure_future(start()), asyncio.create_task(requests.leave.wait())
    try:
        await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting}, timeout=STOP_SECONDS_MAX)
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            return starting.result()  # it started before the cancellation, so it has to be stopped
        return None
    finally:
        leaving.cancel()


async def _live(node: ServedNode, requests: ShutdownRequests, options: ServiceOptions, say: Say) -> list[str]:
    """Wait until the run is over or the peer is asked to end; returns the last lines, raises the node's error."""
    over = asyncio.create_task(node.wait())
    leaving, stopping = asyncio.create_task(requests.leave.wait()), asyncio.create_task(requests.stop.wait())
    awaited, final_lines, status_seconds = {over, leaving, stopping}, list[str](), options.status_seconds
    try:
        while True:
            done, _ = await asyncio.wait(awaited, timeout=status_seconds, return_when=asyncio.FIRST_COMPLETED)
            awaited -= done
            if over in done:
                over.result()
                final_lines = _final_lines(node, requests)
            if requests.stop.is_set() or (over.done() and (leaving.done() or not options.stay)):
                return final_lines
            if over in done:  # it stays, so these lines are not the last
                for line in final_lines:
                    say(line)
                final_lines = []
            if leaving in done:
                node.drain()
                say("finishing the rounds under way; press Ctrl-C again to stop at once")
                status_seconds = min(status_seconds, LEAVING_SECONDS)
            if not done:
                say(status_line(node.snapshot()))
    finally:
        for task in (over, leaving, stopping):
            task.cancel()
        await asyncio.wait((over, leaving, stopping))


def _final_lines(node: ServedNode, requests: ShutdownRequests) -> list[str]:
    """Return the last lines: how the peer ended, and what it leaves to its owner."""
    now, left = node.snapshot(), requests.leave.is_set() or requests.drained
    return [left_line(now) if left else f"the run is over: {status_line(now)}", *node.closing_advice()]


async def _save_last(node: ServedNode, requests: ShutdownRequests, say: Say) -> None:
    """Save the last checkpoint, outside the time limit of stopping: a large model on a slow disk takes long."""
    if requests.hurried:
        signal.alarm(0)
    requests.again.clear()
    saving, again = asyncio.ensure_future(node.save_last()), asyncio.create_task(requests.again.wait())
    await asyncio.wait({saving, again}, timeout=SAVE_SECONDS_QUIET, return_when=asyncio.FIRST_COMPLETED)
    if not saving.done() and not again.done():
        presses = "again" if requests.leave.is_set() else "twice"
        say(f"still writing the last checkpoint; press Ctrl-C {presses} to leave without it")
        await asyncio.wait({saving, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if saving.done():
        saving.result()
    else:
        say("leaving without the last checkpoint; the one before is still there")


async def _stop(node: ServedNode) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await node.stop()
    except TimeoutError:
        raise LocalError(f"this peer could not be stopped in order within {STOP_SECONDS_MAX:g} seconds") from None
