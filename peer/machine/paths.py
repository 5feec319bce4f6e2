"""Where things lie on this machine, and what keeps them from being written there."""

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
    """The folder named by `--data`, or the one that this user's desktop standard says; raises UsageError."""
    if given is not None:
        with holding_data(given):
            if given.exists() and not given.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return given.absolute()
    base = os.environ.get("XDG_DATA_HOME", "")
    # the standard has relative paths ignored
    return (Path(base) if base.startswith("/") else Path.home() / ".local/share") / "muster"


def run_path(data_directory: Path, run_id: bytes) -> Path:
    """Where a peer with this data directory keeps a run."""
    return data_directory / f"run-{run_id.hex()[:12]}"


def token_cache() -> Path:
    """Where this user's peers keep tokens of text from one start to the next."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "muster" / "tokens"


def swarm_directory(given: Path | None, new: bool = False) -> Path | None:
    """The folder named by `--data`, made now, for the data of all peers of a swarm; None: a temporary one.

    Raises UsageError if nothing can be written there, or if it is to be `new` and holds anything.
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
    """From now on nobody but this user may read what this process, and those that it starts, write anywhere."""
    os.umask(0o077)


def runtime_directory() -> Path:
    """Where sockets lie: this user's own place if the system has made one, else where temporary files do."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        with suppress(OSError):
            status = os.stat(given)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return Path(given)
    return Path(tempfile.gettempdir())


@contextmanager
def holding_data(directory: Path) -> Iterator[None]:
    """Raise UsageError where this folder does not take what is written there."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{directory} cannot hold data: {reason}; choose another --data directory") from None


def unit_directory() -> Path:
    """Where this user's systemd units lie."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user"
