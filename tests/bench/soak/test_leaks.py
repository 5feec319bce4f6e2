"""Leftovers are found: processes, shared memory, files and descriptors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from tests.bench.soak.leaks import Holdings, descriptors, growth, holdings, marked, shared_memory
from tests.bench.soak.restarts import GROWTH_MAX, KEPT, leaks, plan_of, restart
from tests.real.conftest import RUN

CLEAN: dict[str, Any] = {
    "processes_left": [],
    "shared_memory_left": [],
    "files_left": [],
    "orphans": 0,
    "processes": [10, 10],
    "descriptors": {"host p2pd": {"socket": [9, 9 + GROWTH_MAX]}},
}


def test_a_process_with_the_mark_is_found_also_without_its_parent(tmp_path: Path) -> None:
    mark = f"MUSTER_TEST={tmp_path}"
    # its stdout is /dev/null, because nothing reads it
    orphan = "import subprocess, sys; p = subprocess.Popen(['sleep', '30'], stdout=-3); print(p.pid)"
    environment = {**os.environ, "MUSTER_TEST": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", orphan], env=environment, stdout=subprocess.PIPE, check=True)
    pid = int(said.stdout)
    try:
        assert marked(mark) == {pid}
        found = holdings({"peer-1": os.getpid()}, mark)
        assert found.in_no_family == {pid}
        assert found.processes == 1
        assert found.descriptors["peer-1 main"]["file"] > 0
    finally:
        os.kill(pid, 9)


def test_descriptors_are_told_apart_by_kind() -> None:
    before = descriptors(os.getpid())
    reading, writing = os.pipe()
    with socket.socket(), open(os.devnull):
        more = descriptors(os.getpid()) - before
    os.close(reading)
    os.close(writing)
    assert more == Counter(socket=1, file=1, pipe=2)


def test_shared_memory_that_somebody_left_is_seen() -> None:
    before = shared_memory()
    piece = SharedMemory(create=True, size=16)
    try:
        assert shared_memory() - before == {piece.name.lstrip("/")}
    finally:
        piece.close()
        piece.unlink()


def test_only_processes_that_lived_all_the_time_are_compared() -> None:
    before = Holdings({"host main": Counter(socket=3), "peer-2 main": Counter(socket=3)}, 2, frozenset(), frozenset())
    after = Holdings({"host main": Counter(socket=5), "peer-2 main": Counter(socket=9)}, 2, frozenset(), frozenset())
    assert growth(before, after, KEPT) == {"host main": {"socket": [3, 5]}}


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({}, ""),
        ({"processes_left": [17]}, "17"),
        ({"shared_memory_left": ["torch_1"]}, "torch_1"),
        ({"files_left": ["muster-0/x/p2pd.sock"]}, "p2pd.sock"),
        ({"orphans": 1}, "1 orphans"),
        ({"processes": [10, 11]}, "[10, 11]"),
        ({"descriptors": {"host p2pd": {"socket": [9, 10 + GROWTH_MAX]}}}, "host p2pd: socket"),
    ],
)
def test_every_leak_is_named(wrong: dict[str, Any], word: str) -> None:
    found = leaks({**CLEAN, **wrong})
    assert [word in line for line in found] == ([True] if wrong else [])


def test_all_but_the_first_peer_are_killed_in_turn_one_after_the_other() -> None:
    plan = plan_of(5, 3)
    assert [event.peer for event in plan.events] == [2, 3, 2, 3, 2]
    ends = [(event.at_seconds or 0) + (event.for_seconds or 0) for event in plan.events]
    assert all(end < (later.at_seconds or 0) for end, later in zip(ends, plan.events[1:], strict=False))


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.hours
@pytest.mark.timeout(900)
def test_nothing_stays_behind_of_peers_that_were_killed_and_started_again(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN.format(versions=4000, optimizer="adamw"))
    found = restart(8, 3, 0.2, config)
    assert leaks(found) == []
    assert found["restarts"] == 8
    assert found["agreement"]
    assert set(found["descriptors"]) == {f"{name} {role}" for name in KEPT for role in ("main", "p2pd")} | {
        "peer-1 learner"
    }
