"""Folders that we own, and disk errors in words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dht.errors import LocalError


def clear_folder(path: Path) -> None:
    """Create a folder, or empty it of the remains of a crash; raises OSError."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """Provide an empty folder for the duration of the block, removing the remains of a crash."""
    clear_folder(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn errors of the disk into a LocalError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LocalError(f"{what}: {reason}") from None
