"""Faults done to real processes that do nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dht.errors import LocalError
from peer.chaos.executor import NETWORK_KINDS, LinkFault, Loopback, family
from peer.chaos.plan import MENDING, UNDONE_BY
from peer.machine.clock import SKEW_FILE, skewed, unix_seconds
from peer.swarm.processes import PeerProcess
from tests.peer.chaos.builders import some

WAIT_SECONDS = 20.0
FAMILY = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
HARNESS = """
import sys
from peer.chaos.executor import Sleep
sleep = Sleep([int(pid) for pid in sys.argv[1:]])
print("asleep", flush=True)
sys.stdin.read()
"""


def state_of(pid: int) -> str:
    """Return a process's state as a letter of proc(5): T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_stopped(pid: int, stopped: bool) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (state_of(pid) == "T") != stopped:
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.fixture
def peer() -> Iterator[PeerProcess]:
    """Yield a process with a child, as peers have."""
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE)
    yield PeerProcess("peer-1", Path(), process)  # type: ignore[arg-type]
    with process:
        for pid in family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def child_of(peer: PeerProcess) -> int:
    assert peer.process.stdout is not None
    return int(peer.process.stdout.readline())


def test_a_peer_stands_still_with_everything_it_has_started(peer: PeerProcess) -> None:
    child = child_of(peer)
    assert family(peer.process.pid) == [peer.process.pid, child]
    place = Loopback()
    place.stop(peer)
    for pid in (peer.process.pid, child):
        wait_until_stopped(pid, True)
    place.resume(peer)
    for pid in (peer.process.pid, child):
        wait_until_stopped(pid, False)
    place.close()


def test_a_peer_is_killed_though_it_stands_still(peer: PeerProcess) -> None:
    child = child_of(peer)
    place = Loopback()
    place.stop(peer)
    wait_until_stopped(child, True)
    place.kill(peer)
    assert peer.has_ended(WAIT_SECONDS)
    wait_until_stopped(child, False)  # so that it can notice
    os.kill(child, signal.SIGKILL)


def test_a_stopped_peer_goes_on_when_the_harness_is_killed(peer: PeerProcess) -> None:
    child = child_of(peer)
    pids = [str(peer.process.pid), str(child)]
    command = [sys.executable, "-c", HARNESS, *pids]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"asleep\n"
        wait_until_stopped(child, True)
        harness.kill()
    for pid in (peer.process.pid, child):
        wait_until_stopped(pid, False)


def test_closing_wakes_everybody(peer: PeerProcess) -> None:
    child = child_of(peer)
    place = Loopback()
    place.stop(peer)
    wait_until_stopped(child, True)
    place.close()
    wait_until_stopped(child, False)


def test_a_full_disk_takes_nothing_until_it_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "for line in sys.stdin:\n"
        "    try: pathlib.Path(sys.argv[1]).write_text('x'); print('written', flush=True)\n"
        "    except OSError: print('refused', flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        peer = PeerProcess("peer-1", tmp_path, process)  # type: ignore[arg-type]
        place = Loopback()
        assert process.stdin is not None
        assert process.stdout is not None
        for full, answer in ((False, "written\n"), (True, "refused\n"), (False, "written\n")):
            place.limit_disk(peer, full)
            process.stdin.write("go\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], WAIT_SECONDS)
            assert ready
            assert process.stdout.readline() == answer
        process.stdin.close()


def test_a_clock_is_wrong_until_it_is_set_right(tmp_path: Path) -> None:
    peer = PeerProcess("peer-1", tmp_path, None)  # type: ignore[arg-type]
    clock = skewed(tmp_path / SKEW_FILE)
    place = Loopback()
    for skew_seconds in (0.0, 3600.0, -3600.0, 0.0):
        place.set_clock(peer, skew_seconds)
        assert abs(clock() - unix_seconds() - skew_seconds) < 1800.0
    assert [path.name for path in tmp_path.iterdir()] == [SKEW_FILE]
    with pytest.raises(LocalError, match="cannot be written"):
        place.set_clock(PeerProcess("peer-1", tmp_path / "none", None), 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "soon", "1e300", "nan", "inf", "9" * 99, "\x80"])
def test_a_text_that_is_no_skew_sets_none(text: str, tmp_path: Path) -> None:
    (tmp_path / SKEW_FILE).write_text(text, encoding="latin-1")
    assert abs(skewed(tmp_path / SKEW_FILE)() - unix_seconds()) < 1800.0


def test_loopback_says_what_it_cannot_do() -> None:
    place = Loopback()
    for kind in UNDONE_BY.keys() | MENDING:
        refusal = place.refusal(some(kind))
        assert (refusal is None) == (kind not in NETWORK_KINDS)
        assert kind not in NETWORK_KINDS or "--netns" in str(refusal)
    with pytest.raises(LocalError):
        place.partition([])
    with pytest.raises(LocalError):
        place.shape("peer-1", LinkFault())
