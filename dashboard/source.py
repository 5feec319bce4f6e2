"""The source of views for pages: a file that another process writes, so that pages never wait for a network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import read_view
from dht.errors import LocalError

WAITING = NetworkView(note="waiting for the first view of the network")
AT_REST = frozenset({"draining", "hosting", "finished"})


@dataclass(frozen=True, slots=True)
class SeenView:
    """A view, and the age of the last news from the network when it was read."""

    view: NetworkView
    age_seconds: float | None  # None: nothing was ever heard

    @property
    def silent(self) -> bool:
        """Whether the network has been silent for longer than a presence record lasts."""
        return self.age_seconds is None or self.age_seconds > self.view.run.presence_lifetime_seconds

    @property
    def left(self) -> bool:
        """Whether all peers have left in order: in the last state of each it opened no more rounds."""
        return self.silent and bool(self.view.peers) and all(peer.state in AT_REST for peer in self.view.peers)


@dataclass(slots=True)
class Source:
    """Reads the view file when it has changed. Safe for many threads.

    If the file cannot be read, the last good view stays, with the reason in its note.
    """

    path: Path
    unix_seconds: Callable[[], float]
    data_directory: Path | None = None  # of the peer on this machine, if its controls may be shown
    _stamp: tuple[int, int, int] | None = None
    _view: NetworkView = WAITING
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self) -> SeenView:
        """Return the newest view that could be read."""
        with self._lock:
            self._look()
            view = self._view
        heard = view.network_seen_unix_seconds
        return SeenView(view, None if heard is None else max(0.0, self.unix_seconds() - heard))

    def _look(self) -> None:
        try:
            status = self.path.stat()
        except OSError:
            return
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._view = read_view(self.path)
        except LocalError as error:
            self._view = self._view.model_copy(update={"note": str(error)})
