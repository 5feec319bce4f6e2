"""Keeps data that only downloading peers still need: on disk instead of in memory, deleted with the process."""

from __future__ import annotations

import math
import mmap
import shutil
import tempfile
import threading
from pathlib import Path

import structlog

from peer.numerics.codec import Buffer

RESERVE_BYTES = 1 << 30  # of the disk, left free for saves

log = structlog.get_logger(__name__)


class SpillFiles:
    """Memory-mapped files without a name in this folder; the kernel caches as much of them as it has room for.

    They wear out a disk like other writes, so `allow` limits how much may be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left_bytes = math.inf  # negative after needed data exceeded the limit
        self._counting = threading.Lock()  # the worker thread spills, the event loop allows

    def allow(self, size_bytes: float) -> None:
        """Allow this many bytes until the next call, which replaces the rest of the allowance."""
        with self._counting:
            self._left_bytes = size_bytes

    @property
    def overdrawn_bytes(self) -> float:
        """Bytes written beyond the allowance."""
        return max(0.0, -self._left_bytes)

    def spill(self, data: Buffer, needed: bool = False) -> memoryview | None:
        """Return the same bytes, mapped from disk; None if they are empty, or the disk is full or refuses.

        Also returns None if they exceed the allowance, unless they are `needed`.
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
