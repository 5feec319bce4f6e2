"""A file that is written anew holds the old content or the new one, whatever happens on the way."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dht.daemon.ports import keep_ports
from dht.files import write_whole
from tests.disk import CrashError, failure_at, file_size_limit

OLD = b"what was there"
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.binary(max_size=200), st.integers(0, 200))
@SAME_FOLDER
def test_a_disk_that_takes_some_of_it_keeps_the_old_content(tmp_path: Path, new: bytes, room_bytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    if room_bytes < len(new):
        with file_size_limit(room_bytes), pytest.raises(OSError, match="File too large"):
            write_whole(path, new)
    else:
        with file_size_limit(room_bytes):
            write_whole(path, new)
    assert path.read_bytes() == (OLD if room_bytes < len(new) else new)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, OLD])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), CrashError()])
def test_whatever_step_is_the_last_the_file_is_whole(tmp_path: Path, old: bytes | None, error: BaseException) -> None:
    path, new = tmp_path / "file", b"x" * 5000
    for step in range(100):
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        try:
            with failure_at(step, error) as reached:
                write_whole(path, new)
        except type(error):
            assert (path.read_bytes() if path.exists() else None) in (old, new)
        else:
            break
    assert reached.count("fsync") == 2  # of the content before it has its name, of the name after that
    assert path.read_bytes() == new  # what the crashes have left is not in the way


def test_only_the_owner_reads_what_is_meant_for_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.with_name("file.new").touch(mode=0o644)
    write_whole(path, b"secret", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_does_not_cost_a_daemon_its_ports(tmp_path: Path) -> None:
    file = tmp_path / "ports"
    keep_ports(("/ip4/0.0.0.0/tcp/4001",), file)
    with file_size_limit(0):
        keep_ports(("/ip4/0.0.0.0/tcp/4002",), file)
    assert file.read_text() == "4001\n"
