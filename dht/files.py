"""Files that neither a crash nor a full disk takes away: new content is written beside the old and then renamed.

Opening a file to write it anew empties it before the first byte is written, and on a full disk that is all
that happens.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Have a file hold this: whatever happens, it holds all of it or what it held before. Raises OSError.

    `mode` is as for `open`: the umask is taken off it. One process at a time writes a file.
    """
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # of a crash: it may have another mode
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
        publish(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def publish(temporary: Path, final: Path) -> None:
    """Give a finished file its name so that, whatever happens, either it is there whole or it is not there."""
    sync(temporary)
    temporary.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Have what was written to this file, or the names in this folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
