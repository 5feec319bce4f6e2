"""`muster runs`: the runs that are kept here, and forgetting one."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.views import control
from coordinator.views.control import EndingError, StartingError
from dht.errors import LocalError, UsageError
from peer.cli.runs import runs
from peer.storage.run_directory import RunDirectory
from tests.coordinator.builders import Club


def test_runs_are_listed_and_one_can_be_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path)
    assert "no run is kept" in capsys.readouterr().out
    manifest = Club.of(2).manifest
    directory = RunDirectory(tmp_path, manifest.run_id)
    directory.keep_manifest(manifest)
    runs(tmp_path)
    assert manifest.run_id.hex()[:12] in capsys.readouterr().out
    with pytest.raises(UsageError, match="no run here has an id that begins with"):
        runs(tmp_path, "ffffffffffff")
    assert directory.path.exists()
    runs(tmp_path, manifest.run_id.hex()[:6])
    assert not directory.path.exists()


def test_an_empty_id_forgets_nothing(tmp_path: Path) -> None:
    manifest = Club.of(2).manifest
    RunDirectory(tmp_path, manifest.run_id).keep_manifest(manifest)
    with pytest.raises(UsageError, match="no run here"):
        runs(tmp_path, "")
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("error", [StartingError("reads what it keeps"), EndingError("writes its last checkpoint")])
def test_nothing_is_forgotten_under_a_peer_that_starts_or_ends(
    error: LocalError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: Path) -> None:
        raise error

    manifest = Club.of(2).manifest
    directory = RunDirectory(tmp_path, manifest.run_id)
    directory.keep_manifest(manifest)
    monkeypatch.setattr(control, "snapshot", answer)
    with pytest.raises(type(error), match="the peer here is "):
        runs(tmp_path, manifest.run_id.hex()[:8])
    assert directory.path.exists()
