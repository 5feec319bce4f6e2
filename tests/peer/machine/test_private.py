"""The files that other users of this machine can read, and the places of sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.machine.paths import runtime_directory

WRITE = """
import sys
from pathlib import Path
from dht.files import write_whole
from peer.machine import log, paths
paths.keep_private()
folder = Path(sys.argv[1])
log.configure(folder)
write_whole(folder / "votes", b"")
(folder / "certificates").mkdir()
(folder / "certificates" / "0").write_bytes(b"")
"""


def test_nothing_in_an_existing_data_folder_is_for_others(tmp_path: Path) -> None:
    """Before, everybody could read logs, votes and certificates if `--data` named an existing folder."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    subprocess.run([sys.executable, "-c", WRITE, str(folder)], check=True, umask=0o022)
    written = list(folder.rglob("*"))
    assert len(written) == 4
    assert [path.name for path in written if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize(("mode", "used"), [(0o700, True), (0o755, False), (None, False)])
def test_sockets_lie_in_this_users_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, used: bool
) -> None:
    own = tmp_path / "own"
    if mode is not None:
        own.mkdir()
        own.chmod(mode)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert (runtime_directory() == own) == used
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.relpath(own))
    assert runtime_directory() != own
