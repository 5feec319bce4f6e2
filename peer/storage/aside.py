"""What only those who fetch it still need: on disk instead of in memory, and gone with the process."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from pathlib import Path

import structlog

from peer.numerics.codec import Buffer

RESERVE_BYTES = 1 << 30  # of the disk, which is left to what has to be saved

log = structlog.get_logger(__name__)


class Aside:
    """Files without a name in this folder. The kernel keeps of them in memory what it has room for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lay(self, data: Buffer) -> memoryview | None:
        """The same bytes, on disk; None if they are none, or the disk is full or refuses."""
        size_bytes = memoryview(data).nbytes
        try:
            if not size_bytes or shutil.disk_usage(self._folder).free < RESERVE_BYTES + size_bytes:
                return None
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(data)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY))
        except OSError as error:
            log.warning("not_laid_aside", reason=str(error))
            return None
