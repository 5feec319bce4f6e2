"""One peer as a process: started, served on its control socket, and ended on request or by a signal (design §8, Leave).

Ctrl-C or SIGTERM once drains and then stops, twice stops now. A peer that must not outlive its parent gets SIGTERM from
the kernel when that dies, and stops now, without saving.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views.control import Request
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError
from dht.identity import PeerId
from dht.invite import Invite
from dht.invite_reach import limits_of
from dht.locks import RuntimeDirectory
from peer.machine.heap import give_back_large_pieces
from peer.machine.signals import ENDING, on_signals
from peer.machine.timed_wait import wait_for
from peer.service.control_server import Answer, ControlServer
from peer.service.dashboard import PagesAt, PublicPage, dashboard_beside
from peer.service.descriptors import allow_more_descriptors
from peer.service.status_text import left_line, status_line
from peer.service.trackers import Tracking
from peer.service.tracking import tracked

if TYPE_CHECKING:
    from peer.node.checkpointer import Checkpointer
    from peer.node.live_limits import LiveLimits
    from peer.node.membership import Membership
    from peer.node.organiser_rights import OrganiserRights

STOP_SECONDS_MAX = 20.0
SAVE_SECONDS_QUIET = 5.0  # then the user is told what takes so long
SWEEPS_MAX = 20
PARENT_SECONDS_MAX = 2.0
ALARM_SECONDS = 30  # past every other bound: then the kernel ends this process
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGNALS = (*ENDING, signal.SIGHUP)  # also that the terminal has gone

log = structlog.get_logger(__name__)


class Served(Protocol):
    """What a service needs of a node; `peer.node.node.Node` has it."""

    @property
    def manifest(self) -> Manifest: ...
    def invite(self, words: Sequence[str] = ()) -> str: ...
    def invite_to_look(self, key: PeerId) -> str: ...
    def snapshot(self) -> PeerSnapshot: ...
    async def final_snapshot(self) -> PeerSnapshot: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    def drain(self) -> None: ...
    @property
    def checkpointer(self) -> Checkpointer: ...
    @property
    def limits(self) -> LiveLimits: ...
    @property
    def membership(self) -> Membership: ...
    @property
    def organiser_rights(self) -> OrganiserRights: ...
    async def wait(self) -> None: ...
    async def save_last(self) -> None: ...
    async def stop(self) -> None: ...


Start = Callable[[], Awaitable[Served]]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a peer is served. `parent` is the process without which it must not go on."""

    data_directory: Path
    stay: bool = False  # also after the run is over, until told to stop
    show_invite: bool = False
    listens_at: str = ""
    status_seconds: float = 15.0
    parent: int | None = None
    metrics_port: int | None = None
    metrics_listen: str = "127.0.0.1"
    pages: PagesAt | None = None  # of the dashboard
    page: PublicPage = field(default_factory=PublicPage)
    tracking: Tracking | None = None


@dataclass(slots=True)
class ShutdownRequests:
    """What signals and commands have asked for so far."""

    tethered: bool = False  # to a parent, whose death is a SIGTERM
    abandoned: bool = False
    drained: bool = False  # by a command, which leaves a peer that stays in place
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)  # set by every signal but the first
    hurried: bool = False  # by a second signal, or a parent's death

    def on_signal(self, number: signal.Signals) -> None:
        """One more signal: first leave, then stop, and do without what is still being saved."""
        # getppid says nothing yet: a dying parent's other threads adopt us one after the other, each with a signal
        self.abandoned |= self.tethered and number is signal.SIGTERM
        if self.leave.is_set() or self.abandoned:
            signal.alarm(ALARM_SECONDS)
            self.hurried = True
            self.stop.set()
            self.again.set()
        self.leave.set()


def run(prepare: Callable[[], Start], options: ServiceOptions, say: Callable[[str], None]) -> None:
    """Serve one peer until it is over; `prepare` imports what is heavy, `say` shows a line to the user.

    Raises whatever starting or running the node raises.
    """
    requests = ShutdownRequests(tethered=options.parent is not None)
    log.info("peer_begins", process=os.getpid())
    allow_more_descriptors()
    give_back_large_pieces()

    def try_to_say(line: str) -> None:
        with suppress(OSError):  # a full disk behind our output, or nobody left to read it, is no reason to end
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
    """Remove what killed processes of this user left in `parent`: making a runtime directory does so."""
    for _ in range(SWEEPS_MAX):
        with suppress(FileNotFoundError):  # somebody else has removed at the same time
            RuntimeDirectory(parent).close()
            return


def _wait_for_end(process: int) -> None:
    """Wait until this process has let go of its locks; not for long, if it only looked as if it were dying."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        wait_for(descriptor, PARENT_SECONDS_MAX)
        os.close(descriptor)


@contextmanager
def _interruptible(parent: int | None) -> Iterator[None]:
    """While there is nothing to save, every signal is a KeyboardInterrupt, and so is the parent's death."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise KeyboardInterrupt
    yield


def _ignore_signals() -> None:
    """What an abandoned peer has left to do is short and bounded, and a late signal must not leave it undone."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def _serve(start: Start, options: ServiceOptions, requests: ShutdownRequests, say: Callable[[str], None]) -> None:
    try:
        with on_signals(_SIGNALS, requests.on_signal):
            node = await _start_unless_told_to_leave(start, requests)
            if node is not None:
                await _serve_started(node, options, requests, say)
    finally:
        if requests.abandoned:
            _ignore_signals()


async def _serve_started(
    node: Served, options: ServiceOptions, requests: ShutdownRequests, say: Callable[[str], None]
) -> None:
    try:
        control = await ControlServer.start(options.data_directory, lambda request: _obey(node, requests, request))
        try:
            async with _metrics(node, options):  # before an invite is shown, since its port may be taken
                await _show_and_live(node, options, requests, say)
        finally:
            await control.close()
    finally:
        try:
            if not requests.abandoned:  # its folder may be gone already
                await _save_last(node, requests, say)
        finally:
            if requests.hurried:
                signal.alarm(ALARM_SECONDS)
            await _stop(node)


async def _show_and_live(
    node: Served, options: ServiceOptions, requests: ShutdownRequests, say: Callable[[str], None]
) -> None:
    if device := node.snapshot().device:
        say(f"The learner trains on {device}")
        say(f"Memory: {takes(node.manifest.config)}")
    if options.show_invite:
        _show_invite(node, options.listens_at, say)
    served = [] if options.pages is None else options.pages.arguments()
    public = options.page.arguments()
    drawn = tracked(options.tracking, node.manifest.config.name, node.snapshot, say)
    async with _pages(options, served, say), _pages(options, public, say), drawn:
        await _live(node, requests, options, say)


def _show_invite(node: Served, listens_at: str, say: Callable[[str], None]) -> None:
    """Show it, and in the next line why it would be of no use elsewhere, if it would not; or why there is none."""
    try:
        text = node.invite()
    except UsageError as error:
        return say(str(error))
    say(f"invite: {text}")
    if limits := limits_of(Invite.parse(text).addresses, listens_at):
        say(limits)


def takes(config: RunConfig) -> str:
    """Amounts by place."""
    from peer.learner.memory_estimate import footprint

    return footprint(config).summary()


def _metrics(node: Served, options: ServiceOptions) -> AbstractAsyncContextManager[None]:
    if options.metrics_port is None:
        return nullcontext()
    from peer.service.metrics import serve_metrics

    return serve_metrics(options.metrics_port, node.snapshot, options.metrics_listen)


def _pages(
    options: ServiceOptions, arguments: Sequence[str], say: Callable[[str], None]
) -> AbstractAsyncContextManager[None]:
    """`muster dashboard` beside the peer, with these arguments; nothing without any."""
    return dashboard_beside(options.data_directory, arguments, say) if arguments else nullcontext()


async def _start_unless_told_to_leave(start: Start, requests: ShutdownRequests) -> Served | None:
    starting, leaving = asyncio.ensure_future(start()), asyncio.create_task(requests.leave.wait())
    try:
        await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting}, timeout=STOP_SECONDS_MAX)
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            return starting.result()  # it was ready before it could be cancelled, and now has to be stopped
        return None
    finally:
        leaving.cancel()


async def _live(node: Served, requests: ShutdownRequests, options: ServiceOptions, say: Callable[[str], None]) -> None:
    """Until the run is over or somebody asks for the end; raises what made the node fail."""
    over = asyncio.create_task(node.wait())
    leaving, stopping = asyncio.create_task(requests.leave.wait()), asyncio.create_task(requests.stop.wait())
    awaited = {over, leaving, stopping}
    try:
        while True:
            done, _ = await asyncio.wait(awaited, timeout=options.status_seconds, return_when=asyncio.FIRST_COMPLETED)
            awaited -= done
            if over in done:
                over.result()
                left = requests.leave.is_set() or requests.drained
                now = node.snapshot()
                say(left_line(now) if left else f"the run is over: {status_line(now)}")
            if requests.stop.is_set() or (over.done() and (leaving.done() or not options.stay)):
                return
            if leaving in done:
                node.drain()
                say("finishing the rounds under way; press Ctrl-C again to stop at once")
            if not done:
                say(status_line(node.snapshot()))
    finally:
        for task in (over, leaving, stopping):
            task.cancel()
        await asyncio.wait((over, leaving, stopping))


async def _save_last(node: Served, requests: ShutdownRequests, say: Callable[[str], None]) -> None:
    """Not within the time of stopping: a large model on a slow disk may take longer than all else together."""
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


async def _stop(node: Served) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await node.stop()
    except TimeoutError:
        raise LocalError(f"this peer could not be stopped in order within {STOP_SECONDS_MAX:g} seconds") from None


async def _obey(node: Served, requests: ShutdownRequests, request: Request) -> Answer:
    command = request.command
    if command == "pause":
        await node.pause()
    elif command == "resume":
        await node.resume()
    elif command == "drain":
        requests.drained = True
        node.drain()
    elif command == "stop":
        requests.stop.set()
    elif command == "save":
        return {"folder": str(await node.checkpointer.save_now())}
    elif command == "limits" and request.changes:
        return {"limits": (await node.limits.change(request.changes)).model_dump(mode="json")}
    elif command == "accept":
        node.organiser_rights.accept(request.changes[0] if request.changes else "")
    elif command in ("revoke", "readmit"):
        key = node.membership.order(*_subject(request), revoked=command == "revoke")
        invite = node.membership.open_invite_of(key)
        return {"peer": key, "is_invite": node.membership.is_invite(key), "came_by": invite or ""}
    else:
        return await _told(node, request)
    return {"ok": True}


def _key(request: Request) -> PeerId:
    if len(request.changes) != 1:
        raise UsageError("name the key of the observer")
    return PeerId(request.changes[0])


def _subject(request: Request) -> tuple[str, str, bool]:
    """The peer or the invite that an order is about, why, and whether everybody goes who came by that invite."""
    if len(request.changes) not in (2, 3):
        raise UsageError("name the peer, and why")
    return request.changes[0], request.changes[1], request.changes[2:] == ("everybody",)


async def _told(node: Served, request: Request) -> Answer:
    """What somebody only wants to know."""
    command = request.command
    if command == "final":
        return {"snapshot": (await node.final_snapshot()).model_dump(mode="json")}
    if command == "deputise":
        peer, word = node.membership.deputise(request.changes[0] if request.changes else "")
        return {"peer": peer, "word": word}
    if command == "invite":
        return {"invite": node.invite(request.changes)}
    if command == "look":
        return {"invite": node.invite_to_look(_key(request))}
    if command == "credit":
        return {"credit": (await node.checkpointer.credit()).model_dump(mode="json")}
    if command == "members":
        credit = await node.checkpointer.credit()
        tokens = {one.peer_id: one.tokens for one in credit.contributors}
        return {"members": node.membership.view(tokens).model_dump(mode="json")}
    if command == "limits":
        return {"limits": node.limits.view().model_dump(mode="json")}
    return {"snapshot": node.snapshot().model_dump(mode="json")}
