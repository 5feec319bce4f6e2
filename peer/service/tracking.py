"""The numbers that `--track` shows of a peer, and the thread of its tracker, so that the peer never waits for it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from queue import SimpleQueue

import structlog

from coordinator.views.snapshot import PeerSnapshot
from peer.service.trackers import Tracking

NOTE_SECONDS = 10.0
CLOSE_SECONDS_MAX = 30.0  # for points still on their way to a server
NAME_CHARACTERS_MAX = 40

Say = Callable[[str], None]
Point = tuple[int, Mapping[str, float], str]

log = structlog.get_logger(__name__)


class TrackerThread:
    """A thread that hands points to a tracker, whose errors end the tracking but not the run."""

    def __init__(self, tracking: Tracking, name: str, say: Say) -> None:
        self._points: SimpleQueue[Point | None] = SimpleQueue()
        self._tracking, self._name, self._say = tracking, name, say
        # a daemon thread, so that a server that does not answer keeps no process alive
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._thread.start()

    def note(self, step: int, numbers: Mapping[str, float], sample: str = "") -> None:
        """Queue a point for the tracker; returns at once."""
        self._points.put((step, numbers, sample))

    def close(self) -> None:
        """Wait until all points are written, within a bound."""
        self._points.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)
        if self._thread.is_alive():
            self._say(f"{self._tracking.library} has not taken everything within {CLOSE_SECONDS_MAX:g} seconds")

    def _run(self) -> None:
        library = self._tracking.library
        try:
            tracker = self._tracking.open(self._name)
            self._say(f"{library} draws this run; to look at it: {tracker.viewer}")
            try:
                while (point := self._points.get()) is not None:
                    tracker.note(*point)
            finally:
                tracker.close()
        except Exception as error:
            log.warning("tracking_ended", exc_info=error)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._say(f"{library} draws no more of this run, which goes on: {reason}")


@asynccontextmanager
async def tracked(
    tracking: Tracking | None, run: str, look: Callable[[], PeerSnapshot], say: Say
) -> AsyncIterator[None]:
    """Track this peer of the run of this name, as long as the block runs; does nothing without a tracker."""
    if tracking is None:
        yield
        return
    thread = TrackerThread(tracking, run_name(run, look()), say)
    noting = asyncio.create_task(_note(thread, look))
    try:
        yield
    finally:
        noting.cancel()
        thread.note(*point_of(look()))
        await asyncio.to_thread(thread.close)


async def _note(thread: TrackerThread, look: Callable[[], PeerSnapshot]) -> None:
    while True:
        thread.note(*point_of(look()))
        await asyncio.sleep(NOTE_SECONDS)


def run_name(run: str, snapshot: PeerSnapshot) -> str:
    """Return one name for this peer in this run, the same after a restart.

    It is reduced to safe characters, because a stranger may have named the run.
    """
    words = (run, snapshot.name or snapshot.role, snapshot.run_id[:8] + snapshot.peer_id[-4:])
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", one)[:NAME_CHARACTERS_MAX] for one in words).strip("-")


def point_of(snapshot: PeerSnapshot) -> Point:
    """Return the point to draw for a snapshot, over the learner's steps, or over versions for a host."""
    versions = sum(fragment.version for fragment in snapshot.fragments)
    heldout = snapshot.evaluations[-1].loss if snapshot.evaluations else None
    learner = snapshot.role == "learner"
    found = {
        "loss": snapshot.loss,
        "swarm_loss": snapshot.swarm_loss,
        "held_out_loss": heldout,
        "tokens": snapshot.tokens if learner else None,
        "tokens_certified": snapshot.certified.tokens,
        "versions": versions,
        "peers": snapshot.peers_live,
        "steps_per_second": snapshot.steps_per_second if learner else None,
        "sent_bytes": snapshot.bytes_sent,
        "received_bytes": snapshot.bytes_received,
    }
    numbers = {name: float(value) for name, value in found.items() if value is not None}
    return snapshot.steps if learner else versions, numbers, snapshot.sample
