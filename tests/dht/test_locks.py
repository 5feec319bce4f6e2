from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import LocalError, UsageError
from dht.locks import IdentityLock, RuntimeDirectory

HOLD = """
import sys
from pathlib import Path
from dht.locks import IdentityLock, RuntimeDirectory
IdentityLock(Path(sys.argv[1]) / "identity").acquire()
directory = RuntimeDirectory(Path(sys.argv[1]))
(directory.path / "p2pd.sock").touch()
print(directory.path, flush=True)
sys.stdin.read()
"""


def test_a_key_is_used_once_at_a_time(tmp_path: Path) -> None:
    first, second = IdentityLock(tmp_path / "identity"), IdentityLock(tmp_path / "identity")
    first.acquire()
    with pytest.raises(UsageError, match="already uses the key"):
        second.acquire()
    IdentityLock(tmp_path / "other").acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_a_lock_that_cannot_be_made_is_our_fault(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot lock the key"):
        IdentityLock(tmp_path / "missing" / "identity").acquire()


def test_a_runtime_directory_is_private_and_leaves_nothing(short_folder: Path) -> None:
    directory = RuntimeDirectory(short_folder)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.path.parent.stat().st_mode) == 0o700
    (directory.path / "p2pd.sock").touch()
    directory.close()
    assert not directory.path.exists()


def test_locks_of_a_killed_process_are_freed_and_its_folder_is_swept(short_folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(short_folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        left = Path(holder.stdout.readline().strip())
        with pytest.raises(UsageError, match="already uses the key"):
            IdentityLock(short_folder / "identity").acquire()
        while_alive = RuntimeDirectory(short_folder)
        assert (left / "p2pd.sock").exists()
        os.kill(holder.pid, signal.SIGKILL)
    assert (left / "p2pd.sock").exists()
    after = RuntimeDirectory(short_folder)
    assert not left.exists()
    assert while_alive.path.exists()
    lock = IdentityLock(short_folder / "identity")
    lock.acquire()
    lock.release()
    while_alive.close()
    after.close()


def test_a_folder_in_use_stays_when_its_lock_file_is_cleaned_up(short_folder: Path) -> None:
    """As by systemd-tmpfiles, which removes files in /tmp that are ten days old, but no socket in use."""
    used = RuntimeDirectory(short_folder)
    (used.path / "p2pd.sock").touch()
    (used.path / "lock").unlink()
    another = RuntimeDirectory(short_folder)
    assert (used.path / "p2pd.sock").exists()
    used.close()
    assert not used.path.exists()
    another.close()


def test_a_path_too_long_for_sockets_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long for sockets"):
        RuntimeDirectory(tmp_path / ("x" * 80))


def test_a_directory_that_others_can_read_is_not_trusted(short_folder: Path) -> None:
    root = short_folder / "shared" / f"muster-{os.getuid()}"
    root.mkdir(parents=True)
    root.chmod(0o777)
    with pytest.raises(LocalError, match="not a private directory"):
        RuntimeDirectory(short_folder / "shared")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("squat", ["folder", "link"])
def test_another_user_cannot_keep_us_out_by_our_name(short_folder: Path, squat: str) -> None:
    parent = short_folder / f"squatted-{squat}"
    parent.mkdir()
    root = parent / f"muster-{os.getuid()}"
    if squat == "folder":
        root.mkdir(mode=0o777)
        os.chown(root, 12345, 12345)
    else:
        root.symlink_to(short_folder)
    directory = RuntimeDirectory(parent)
    own = directory.path.parent
    assert own != root
    assert (own.stat().st_uid, own.stat().st_mode & 0o077) == (os.getuid(), 0)
    directory.close()
    assert list(parent.iterdir()) == [root]


def test_a_full_disk_is_an_error_of_ours(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon that is replaced meanwhile would end its peer, which tries again after what is ours."""

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dht.locks.tempfile.mkdtemp", full)
    with pytest.raises(LocalError, match="No space left on device"):
        RuntimeDirectory(short_folder)
