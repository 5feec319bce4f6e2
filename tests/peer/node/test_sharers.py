"""Limits that several peers of one machine share: what each sees of the others, whatever happens to them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import UsageError
from peer.machine.limits import SETTINGS_NAME, SPLIT, Limits
from peer.node.options import NodeOptions
from peer.node.sharers import FOLDER_NAME, OtherSharers, Sharers, Used
from tests.checkout import ROOT

TODAY, TOMORROW = "2026-01-01", "2026-01-02"
LIVES = """
import sys
from pathlib import Path
from peer.node.sharers import Sharers, Used
one = Sharers(Path(sys.argv[1]), Path(sys.argv[2])).__enter__()
one.exchange(Used(day=sys.argv[3], sent_bytes=70, disk_bytes=9))
print("entered", flush=True)
sys.stdin.read()
"""


@contextmanager
def sharing(folder: Path, *names: str) -> Iterator[list[Sharers]]:
    """Yield one begun `Sharers` per name in this process, each with a data folder of that name."""
    with ExitStack() as stack:
        found = [stack.enter_context(Sharers(folder, folder / name)) for name in names]
        for one in found:
            one.begin()
        yield found


def test_each_sees_what_the_others_use(tmp_path: Path) -> None:
    with sharing(tmp_path, "a", "b") as (first, second):
        first.exchange(Used(day=TODAY, sent_bytes=10, received_bytes=3, disk_bytes=5))
        second.exchange(Used(day=TODAY, sent_bytes=7))
        assert second.others == OtherSharers(living=1, sent_bytes=10, received_bytes=3, disk_bytes=5)
        first.exchange(Used(day=TODAY, sent_bytes=9))
        assert first.others == OtherSharers(living=1, sent_bytes=7)
        assert first.part(Limits(upload_mbit=8)) == Limits(upload_mbit=8).part(2)


def test_a_late_sharer_sees_the_others_before_it_says_anything(tmp_path: Path) -> None:
    with sharing(tmp_path, "a"), sharing(tmp_path, "b") as (late,):
        assert late.others.living == 1


def test_one_that_is_killed_no_longer_takes_a_part_and_its_day_still_counts(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LIVES, str(tmp_path), str(tmp_path / "a"), TODAY]
    pipe = subprocess.PIPE
    with sharing(tmp_path, "b") as (other,), subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"entered\n"
        other.exchange(Used(day=TODAY))
        assert other.others == OtherSharers(living=1, sent_bytes=70, disk_bytes=9)
        process.kill()
        process.wait()
        other.exchange(Used(day=TODAY))
        assert other.others == OtherSharers(sent_bytes=70)


def test_one_that_comes_back_counts_once(tmp_path: Path) -> None:
    with sharing(tmp_path, "a") as (one,):
        one.exchange(Used(day=TODAY, sent_bytes=10))
    with sharing(tmp_path, "a", "b") as (again, other):
        again.exchange(Used(day=TODAY, sent_bytes=12))
        other.exchange(Used(day=TODAY))
        assert other.others == OtherSharers(living=1, sent_bytes=12)


def test_a_day_ends_for_all_at_midnight(tmp_path: Path) -> None:
    with sharing(tmp_path, "a", "b") as (first, second):
        first.exchange(Used(day=TODAY, sent_bytes=10, disk_bytes=5))
        second.exchange(Used(day=TOMORROW))
        assert second.others == OtherSharers(living=1, disk_bytes=5)
        first.exchange(Used(day=TOMORROW, sent_bytes=1, disk_bytes=5))
        second.exchange(Used(day=TOMORROW))
        assert second.others == OtherSharers(living=1, sent_bytes=1, disk_bytes=5)


@pytest.mark.parametrize("content", [b"", b'{"day":"2026-01-01","sent_by', b"\xff\x00", b'{"sent_bytes":-1}', b"[]"])
def test_a_file_that_cannot_be_read_says_what_it_said_before(tmp_path: Path, content: bytes) -> None:
    with sharing(tmp_path, "a") as (first,):
        first.exchange(Used(day=TODAY, sent_bytes=10))
        (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
        with sharing(tmp_path, "b") as (second,):
            path.write_bytes(content)
            second.exchange(Used(day=TODAY))
            assert second.others == OtherSharers(living=1, sent_bytes=10)
        with sharing(tmp_path, "c") as (third,):
            third.exchange(Used(day=TODAY))
            assert third.others == OtherSharers(living=1)
        first.exchange(Used(day=TODAY, sent_bytes=11))
        with sharing(tmp_path, "d") as (fourth,):
            fourth.exchange(Used(day=TODAY))
            assert fourth.others == OtherSharers(living=1, sent_bytes=11)


def test_a_folder_that_takes_nothing_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file cannot hold what is shared: Not a directory; choose another folder"):
        Sharers(tmp_path / "file", tmp_path / "a").__enter__()


def test_a_second_process_with_one_data_folder_is_refused(tmp_path: Path) -> None:
    with (
        sharing(tmp_path, "a"),
        pytest.raises(UsageError, match=r"another muster process here already uses .*/a; stop"),
    ):
        Sharers(tmp_path, tmp_path / "a").__enter__()


def test_somebody_who_only_looks_is_waited_for_and_leaves_no_second_file(tmp_path: Path) -> None:
    with sharing(tmp_path, "a"):
        pass
    (path,) = (tmp_path / FOLDER_NAME).iterdir()
    looked, waits = fcntl.flock, Event()

    def flock(descriptor: int, how: int) -> None:
        waits.set()
        looked(descriptor, how)

    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        looked(file, fcntl.LOCK_SH)
        patch.setattr(fcntl, "flock", flock)
        thread = Thread(target=Sharers(tmp_path, tmp_path / "a").__enter__)
        thread.start()
        assert waits.wait(10.0)
        assert thread.is_alive()
        looked(file, fcntl.LOCK_UN)
        thread.join()
        with pytest.raises(BlockingIOError):
            looked(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_limits_are_those_of_the_moment_at_which_it_begins(tmp_path: Path) -> None:
    with Sharers(tmp_path, tmp_path / "a", ["cpu_cores=4"]) as one:
        (tmp_path / SETTINGS_NAME).write_text("[limits]\nupload_mbit = 2\ncpu_cores = 3")  # during torch's import
        assert one.begin() == Limits(upload_mbit=2, cpu_cores=4)
        assert one.exchange(Used(day=TODAY)) == {}


def test_changed_settings_are_told_once_and_half_a_file_is_no_change(tmp_path: Path) -> None:
    settings = tmp_path / SETTINGS_NAME
    settings.write_text("[limits]\nupload_mbit = 2\n")
    with sharing(tmp_path, "a") as (one,):
        assert one.exchange(Used(day=TODAY)) == {}
        settings.write_text('[limits]\nupload_mbit = 3\nhours = "22:00-')
        assert one.exchange(Used(day=TODAY)) == {}
        settings.write_text('[limits]\nupload_mbit = 3\nhours = "22:00-07:00"')
        assert one.exchange(Used(day=TODAY)) == {"upload_mbit": 3.0, "hours": "22:00-07:00"}
        assert one.exchange(Used(day=TODAY)) == {}
        settings.unlink()
        assert one.exchange(Used(day=TODAY)) == {"upload_mbit": 0.0, "hours": ""}


def test_limits_of_its_own_are_not_silently_given_up(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder, mbit in ((own, 2), (shared, 3)):
        folder.mkdir()
        (folder / SETTINGS_NAME).write_text(f"[limits]\nupload_mbit = {mbit}\n")
    alone = NodeOptions(own)
    with pytest.raises(UsageError, match=r"own/settings.toml has limits of its own \(upload_mbit\); move them"):
        alone.within_limits((), shared)
    assert alone.within_limits((), None).limits.upload_mbit == 2
    assert alone.within_limits((), own).limits.upload_mbit == 2
    other = NodeOptions(tmp_path / "other").within_limits(["cpu_cores=4"], shared)
    assert other.limits == Limits(upload_mbit=3, cpu_cores=4)


@given(st.just(0.0) | st.floats(1e-3, 1e9), st.integers(0, 1024), st.integers(1, 100))
def test_parts_are_never_more_than_the_whole(amount: float, cores: int, sharers: int) -> None:
    whole = Limits().model_copy(update=dict.fromkeys(SPLIT, amount) | {"cpu_cores": cores})
    part = whole.part(sharers)
    for key in SPLIT:
        each, limit = getattr(part, key), getattr(whole, key)
        assert (each == 0) == (limit == 0)  # zero means no limit
        assert each * sharers <= limit * (1 + 1e-9) or (key, each) == ("cpu_cores", 1)
    assert part.model_copy(update={key: getattr(whole, key) for key in SPLIT}) == whole


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([TODAY, TOMORROW]), st.integers(0, 9)), max_size=20))
def test_a_day_is_what_all_said_last(course: list[tuple[int, str, int]]) -> None:
    said: dict[int, tuple[str, int]] = {}
    with tempfile.TemporaryDirectory() as name, sharing(Path(name), "a", "b", "c") as sharers:
        for index, day, sent_bytes in course:
            said[index] = (day, sent_bytes)
            sharers[index].exchange(Used(day=day, sent_bytes=sent_bytes))
            others = [sent for one, (when, sent) in said.items() if one != index and when == day]
            assert sharers[index].others == OtherSharers(living=2, sent_bytes=sum(others))
