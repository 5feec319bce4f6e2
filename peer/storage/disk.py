"""Folders of our own, and what the disk says in words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dht.errors import LocalError


def clear_folder(path: Path) -> None:
    """Have a folder without what an earlier crash left in it; raises OSError."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder of our own for as long as the block runs, without what an earlier crash left in it."""
    clear_folder(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn what the disk says into a LocalError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LocalError(f"{what}: {reason}") from None
