"""A fake peer on this machine, which has only a control socket; its limits are real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.views.control import Request, StartingError
from coordinator.views.snapshot import FragmentStatus, PeerSnapshot
from peer.machine.limits import PeerSettings
from peer.machine.settings_file import keep_limits, shown
from peer.service.control_server import Answer, ControlServer
from tests.dashboard.views import HOSTILE

SNAPSHOT = PeerSnapshot(
    peer_id="12D3KooWMine",
    run_id="",
    name=HOSTILE[0],
    role="learner",
    state="training",
    note=HOSTILE[2],
    pid=1,
    wall_seconds=1.0,
    fragments=(FragmentStatus(version=2, held_version=1, head="", state="", phase="catching up", reason=HOSTILE[4]),),
)


@contextmanager
def running_peer(directory: Path, snapshot: PeerSnapshot = SNAPSHOT, doing: str = "") -> Iterator[list[Request]]:
    """Serve a real control socket that obeys commands; yields the list of requests, which grows.

    If it is `doing` something, it is still starting and obeys none.
    """
    asked: list[Request] = []
    state = snapshot.state
    started, loop = threading.Event(), asyncio.new_event_loop()

    async def answer(request: Request) -> Answer:
        nonlocal state
        asked.append(request)
        if doing:
            raise StartingError(doing)
        if request.command == "limits":
            limits = PeerSettings.load(directory).limits.changed(request.changes)
            if request.changes:
                keep_limits(directory, limits.named(request.changes))
            return {"limits": shown(limits).model_dump(mode="json")}
        state = {"pause": "paused", "resume": "training"}.get(request.command, state)
        return {"snapshot": snapshot.model_copy(update={"state": state}).model_dump(mode="json")}

    async def serve() -> None:
        server = await ControlServer.start(directory, answer)
        started.set()
        await ended.wait()
        await server.close()

    ended = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield asked
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
