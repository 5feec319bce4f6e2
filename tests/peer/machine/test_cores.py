from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.machine.cores import usable_cores
from peer.machine.limits import Limits

ALLOWED = len(os.sched_getaffinity(0))
QUOTAS = {"max 100000": ALLOWED, "50000 100000": 1, "100000 100000": 1, f"{ALLOWED}50000 100000": ALLOWED, "?": ALLOWED}


def group(root: Path, member: str, folder: str, **files: str) -> int:
    """Put us into a control group of a fake machine with these files in a folder; return the usable cores."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(member + "\n")
    (root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / folder / name.replace("cpu_", "cpu.", 1)).write_text(text + "\n")
    return usable_cores(root / "sys", root / "proc")


@pytest.mark.parametrize(("quota", "cores"), QUOTAS.items())
def test_cores_are_those_that_we_may_run_on_and_have_time_for(quota: str, cores: int, tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "sys", tmp_path / "proc") == ALLOWED
    assert group(tmp_path, "0::/", "", cpu_max=quota) == cores


def test_a_service_or_a_slice_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with systemd's CPUQuota: the root of the tree has no limit."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    service = "user.slice/app.slice/muster.service"
    assert group(tmp_path, f"0::/{service}", service, cpu_max="max 100000") == 16
    assert group(tmp_path, f"0::/{service}", "user.slice", cpu_max="800000 100000") == 8
    assert group(tmp_path, f"0::/{service}", service, cpu_max="250000 100000") == 2


def test_the_first_version_of_control_groups_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    files = {"cpu_cfs_quota_us": "-1", "cpu_cfs_period_us": "100000"}
    assert group(tmp_path, "4:cpu,cpuacct:/docker/0123\n2:memory:/", "cpu", **files) == 16
    assert group(tmp_path, "4:cpu,cpuacct:/docker/0123\n2:memory:/", "cpu", cpu_cfs_quota_us="350000") == 3


def test_a_learner_takes_what_there_is_unless_told_otherwise() -> None:
    assert Limits().threads(0) == usable_cores()
    assert Limits().threads(3) == 3
    assert Limits(cpu_cores=1).threads(0) == Limits(cpu_cores=1).threads(5) == 1
