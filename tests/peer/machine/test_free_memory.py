"""Free memory is the least that any control group above us leaves, with the pages of files counted as free."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.machine.free_memory import free_memory_bytes
from peer.machine.sensors import Places

MIB = 1 << 20


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Make a fake /proc and /sys of a machine with 1000 MiB available."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048000 kB\nMemAvailable: 1024000 kB\n")
    return Places(sys=tmp_path / "sys", proc=tmp_path / "proc")


def group(places: Places, path: str, v1: bool = False, **files: int | str) -> None:
    folder = places.sys / "fs/cgroup" / ("memory" if v1 else "") / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(f"{value}\n")


def member(places: Places, text: str) -> None:
    (places.proc / "self/cgroup").write_text(text)


def test_without_control_groups_it_is_the_machines(places: Places):
    assert free_memory_bytes(places) == 1000 * MIB


def test_the_tightest_level_counts(places: Places):
    """As under `systemd-run --scope -p MemoryMax=`: the scope may have no limit and the slice above it one."""
    member(places, "0::/user.slice/app.slice/one.scope\n")
    group(places, "user.slice", memory_max=700 * MIB, memory_current=100 * MIB, memory_stat="anon 1")
    group(places, "user.slice/app.slice", memory_max=300 * MIB, memory_current=100 * MIB, memory_stat="anon 1")
    group(places, "user.slice/app.slice/one.scope", memory_max="max", memory_current=50 * MIB, memory_stat="anon 1")
    assert free_memory_bytes(places) == 200 * MIB
    group(places, "user.slice/app.slice/one.scope", memory_high=60 * MIB)
    assert free_memory_bytes(places) == 10 * MIB


def test_pages_of_files_count_as_free(places: Places):
    member(places, "0::/\n")
    stat = f"anon {100 * MIB}\nfile {190 * MIB}\ninactive_file {150 * MIB}\nactive_file {40 * MIB}\nshmem {5 * MIB}"
    group(places, "", memory_max=400 * MIB, memory_current=300 * MIB, memory_stat=stat)
    assert free_memory_bytes(places) == 290 * MIB


def test_groups_of_a_container_that_sees_its_own_as_the_root(places: Places):
    member(places, "0::/docker/0123\n")
    group(places, "", memory_max=400 * MIB, memory_current=300 * MIB, memory_stat="inactive_file 0")
    assert free_memory_bytes(places) == 100 * MIB


def test_the_first_version_of_control_groups(places: Places):
    member(places, "3:cpu,cpuacct:/elsewhere\n2:memory:/docker/0123\n")
    stat = f"inactive_file 1\ntotal_inactive_file {30 * MIB}\ntotal_active_file {20 * MIB}"
    files: dict[str, int | str] = {"memory_limit_in_bytes": 400 * MIB, "memory_usage_in_bytes": 300 * MIB}
    group(places, "docker/0123", v1=True, memory_stat=stat, **files)
    assert free_memory_bytes(places) == 150 * MIB
