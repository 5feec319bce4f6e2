"""Paths on this machine, and errors when they cannot be written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dht.errors import UsageError

IDENTITY_NAME = "identity.key"  # in the data folder
OBSERVER_KEY_NAME = "observer.key"  # in an observer's folder


def data_directory(given: Path | None) -> Path:
    """Return the folder named by `--data`, or the default of the user's desktop standard; raises UsageError."""
    if given is not None:
        with holding_data(given):
            if given.exists() and not given.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return given.absolute()
    base = os.environ.get("XDG_DATA_HOME", "")
    # the standard says to ignore relative paths
    return (Path(base) if base.startswith("/") else Path.home() / ".local/share") / "muster"


def run_path(data_directory: Path, run_id: bytes) -> Path:
    """Return the folder where a peer with this data directory keeps a run."""
    return data_directory / f"run-{run_id.hex()[:12]}"


def token_cache() -> Path:
    """Return the folder where this user's peers keep tokens of text between starts."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "muster" / "tokens"


def swarm_directory(given: Path | None, new: bool = False) -> Path | None:
    """Create and return the folder named by `--data` for all peers of a swarm; None: a temporary one.

    Raises UsageError if it cannot be written, or if it is to be `new` and is not empty.
    """
    if given is None:
        return None
    directory = data_directory(given)
    with holding_data(given):
        if new and directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{given} holds something already; name a new folder with --data")
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    return directory


def keep_private() -> None:
    """Make files that this process and its children write readable by this user only, from now on."""
    os.umask(0o077)


def runtime_directory() -> Path:
    """Return the folder for sockets: this user's runtime directory if there is one, else that for temporary files."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        with suppress(OSError):
            status = os.stat(given)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return Path(given)
    return Path(tempfile.gettempdir())


@contextmanager
def holding_data(directory: Path) -> Iterator[None]:
    """Raise UsageError if this folder cannot be written within the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{directory} cannot hold data: {reason}; choose another --data directory") from None


def unit_directory() -> Path:
    """Return the folder of this user's systemd units."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user"
