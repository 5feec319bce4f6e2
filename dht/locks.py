"""Resources that one process holds on this machine while it lives: its key and a private folder for its sockets."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from dht.errors import LocalError, UsageError

SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path without its closing zero
SOCKET_NAME_BYTES_MAX = 26  # hivemind's `p2pclient-` with eleven random letters and `.sock`
_LOCK_NAME = "lock"


class FileLock:
    """An exclusive lock on a file or folder. The kernel drops it when this process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, wait: bool = False) -> bool:
        """Take the lock; without `wait`, False if someone else (also in this process) has it."""
        use = os.O_RDONLY if self._path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(self._path, use | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; the file stays, because removing it would let two holders in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class IdentityLock:
    """A lock that lets one process of this machine use a key file at a time (design §5)."""

    def __init__(self, identity_path: Path) -> None:
        self._identity_path = identity_path
        self._lock = FileLock(identity_path.with_name(identity_path.name + ".lock"))

    def acquire(self) -> None:
        """Take the key; raises UsageError if another process has it, LocalError if no lock file can be made."""
        try:
            taken = self._lock.acquire()
        except OSError as error:
            raise LocalError(f"cannot lock the key {self._identity_path}: {error.strerror}") from None
        if not taken:
            raise UsageError(
                f"another muster process here already uses the key {self._identity_path}; "
                "stop that one or start this one with another --data directory"
            )

    def release(self) -> None:
        """Let another process use the key."""
        self._lock.release()


class RuntimeDirectory:
    """A private directory with a short path for the sockets of one peer.

    It lies in `<parent>/muster-<user id>/`. A live owner holds locks on it and on a file inside, so the next process
    can recognise and remove the directory of a killed one. Programs that clean up temporary files may remove that file,
    but leave a directory that is locked. If `parent` is gone, as a user's runtime directory after a logout, it lies
    among other temporary files. Raises UsageError if the path is too long, LocalError if the disk refuses.
    """

    def __init__(self, parent: Path) -> None:
        name = f"muster-{os.getuid()}"
        longest = len(os.fsencode(parent / name)) + 9 + 1 + 8 + 1 + SOCKET_NAME_BYTES_MAX
        if longest > SOCKET_PATH_BYTES_MAX:
            raise UsageError(f"the path {parent} is too long for sockets; choose a shorter temporary directory")
        parent = parent if parent.is_dir() else Path(tempfile.gettempdir())
        root = parent / name
        self._root: Path | None = None  # set if it is only for this process
        if _is_of_another(root):  # any user can create it in a world-writable folder
            root = self._root = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=parent))
        _make_private(root)
        try:
            self._take(root)
        except FileNotFoundError:
            raise  # another process removes it at the same time
        except OSError as error:
            raise LocalError(f"cannot make a folder in {root} for the sockets of this peer: {error.strerror}") from None

    def _take(self, root: Path) -> None:
        gate = FileLock(root / _LOCK_NAME)
        gate.acquire(wait=True)  # held for milliseconds: no process may sweep between making a directory and locking it
        try:
            _sweep(root)
            self.path = Path(tempfile.mkdtemp(prefix="", dir=root))
            self._locks = _locks_of(self.path)
            self._locks[0].acquire()
            with suppress(OSError):  # some network disks lock no folders; then nobody sweeps here
                self._locks[1].acquire()
        finally:
            gate.release()

    def close(self) -> None:
        """Remove the directory and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        for lock in self._locks:
            lock.release()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)


def _is_of_another(root: Path) -> bool:
    """Whether another user owns this folder, or it is a symbolic link."""
    try:
        status = root.lstat()
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid()


def _make_private(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise LocalError(f"cannot make {root} for the sockets of this peer: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LocalError(f"{root} is not a private directory of this user; remove it")


def _locks_of(directory: Path) -> tuple[FileLock, FileLock]:
    return FileLock(directory / _LOCK_NAME), FileLock(directory)


def _sweep(root: Path) -> None:
    """Remove the directories whose owners are gone."""
    for directory in root.iterdir():
        if not directory.is_dir():
            continue
        inside, whole = _locks_of(directory)
        with suppress(OSError):  # its owner is just removing it, or the disk locks no folders
            if whole.acquire() and inside.acquire():
                shutil.rmtree(directory, ignore_errors=True)
        inside.release()
        whole.release()
