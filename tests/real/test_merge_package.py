"""A run whose merge rule comes with a package, among real processes: with it they agree, without it no peer gets in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.views.control import ask
from peer.cli import main
from tests.peer.installing import install
from tests.real.conftest import ROOT

if TYPE_CHECKING:
    from tests.real.conftest import Swarm

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(180)]
PATIENCE_SECONDS = 90.0
OUTER = '[outer]\nmerge = "mean_near_median"\nmerge_package = "near-median==0.1.0"\n'
MISSING = "this run needs the package near-median, which is not installed; see what it is before you trust it, then:"


def test_a_swarm_with_a_package_agrees_refuses_who_has_it_not_and_drains_at_ctrl_c(
    swarm: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("merge", tmp_path, monkeypatch)
    swarm.more = OUTER
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
        swarm.start(2, 4000, "--data", str(swarm.data), eight_bit=True)
    swarm.read_until_certified()
    home = swarm.folder / "home"
    words = ["join", ask(swarm.data / "host", "invite")["invite"], "--yes", "--data", str(home)]
    command = [sys.executable, "-m", "peer.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(MISSING)
    assert not any(path.name in ("manifest.bin", "votes", "genesis.safetensors") for path in home.rglob("*"))
    data = ["--data", str(swarm.data / "peer-1")]
    assert [main.run([command, *data], (3, 11)) for command in ("pause", "resume", "status", "invite")] == [0] * 4
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("training  step") for line in shown)
    assert shown[-1].startswith("muster1")
    swarm.process.send_signal(signal.SIGINT)
    report = swarm.finish()
    assert report["agreement"]
    assert 0 < report["versions_certified"] < 4000
    assert report["peers"] == 2
    assert not report["events"].get("result_refuted")
    assert not report["events"].get("merge_failed")
