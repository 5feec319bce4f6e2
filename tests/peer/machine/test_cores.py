from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.machine.cores import usable_cores
from peer.machine.limits import Limits

ALLOWED = len(os.sched_getaffinity(0))
QUOTAS = {"max 100000": ALLOWED, "50000 100000": 1, "100000 100000": 1, f"{ALLOWED}50000 100000": ALLOWED, "?": ALLOWED}


@pytest.mark.parametrize(("quota", "cores"), QUOTAS.items())
def test_cores_are_those_that_we_may_run_on_and_have_time_for(quota: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert usable_cores(tmp_path) == cores
    assert usable_cores(tmp_path / "elsewhere") == ALLOWED


def test_a_learner_takes_what_there_is_unless_told_otherwise() -> None:
    assert Limits().threads(0) == usable_cores()
    assert Limits().threads(3) == 3
    assert Limits(cpu_cores=1).threads(0) == Limits(cpu_cores=1).threads(5) == 1
