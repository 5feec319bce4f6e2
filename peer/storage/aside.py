"""What only those who fetch it still need: on disk instead of in memory, and gone with the process."""

from __future__ import annotations

import math
import mmap
import shutil
import tempfile
import threading
from pathlib import Path

import structlog

from peer.numerics.codec import Buffer

RESERVE_BYTES = 1 << 30  # of the disk, which is left to what has to be saved

log = structlog.get_logger(__name__)


class Aside:
    """Files without a name in this folder. The kernel keeps of them in memory what it has room for.

    They wear a disk as all else does, so it is told how much it may write (`allow`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left_bytes = math.inf  # below zero after what was needed all the same
        self._counting = threading.Lock()  # the worker lays, the event loop allows

    def allow(self, size_bytes: float) -> None:
        """Write so much until the next call, which takes the place of what is left."""
        with self._counting:
            self._left_bytes = size_bytes

    @property
    def overdrawn_bytes(self) -> float:
        """What was written beyond what was allowed."""
        return max(0.0, -self._left_bytes)

    def lay(self, data: Buffer, needed: bool = False) -> memoryview | None:
        """The same bytes, on disk; None if they are none, or the disk is full or refuses.

        None also if they are more than may be written, unless somebody has `needed` them.
        """
        size_bytes = memoryview(data).nbytes
        try:
            if not size_bytes or not (needed or size_bytes <= self._left_bytes):
                return None
            if shutil.disk_usage(self._folder).free < RESERVE_BYTES + size_bytes:
                return None
            with self._counting:
                self._left_bytes -= size_bytes
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(data)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY))
        except OSError as error:
            log.warning("not_laid_aside", reason=str(error))
            return None
