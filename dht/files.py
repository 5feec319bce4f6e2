"""Safe file writes: new content is written beside the old file and then renamed, so a crash or full disk loses nothing.

Opening a file for writing empties it before the first byte is written, and on a full disk nothing more happens.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file's content; whatever happens, the file holds all of it or its old content. Raises OSError.

    `mode` is as for `open`, so the umask applies. Only one process may write a file at a time.
    """
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # left by a crash, perhaps with another mode
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
        publish(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def publish(temporary: Path, final: Path) -> None:
    """Rename a finished file to its final name; whatever happens, it is there whole or not at all."""
    sync(temporary)
    temporary.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Flush this file's content, or this folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
