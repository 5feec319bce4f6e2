"""Remembering where the base of a peer's run is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.run.manifest import RunConfig
from peer.storage.base_place import BASE_FOLDER, NOTE, note_base, noted_base
from tests.peer.adapting import adapter_run

RUN = adapter_run("")


def a_base(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_the_owners_own_goes_before_the_one_that_was_fetched(tmp_path: Path):
    assert noted_base(tmp_path) == ""
    fetched, own = a_base(tmp_path / BASE_FOLDER), a_base(tmp_path / "ün own")
    assert noted_base(tmp_path) == str(fetched)
    note_base(tmp_path, RUN, str(own))
    assert noted_base(tmp_path) == str(own)
    before = (tmp_path / NOTE).stat()
    note_base(tmp_path, RUN, str(own))
    assert (tmp_path / NOTE).stat() == before  # a full disk must not prevent the next start
    (own / "model.safetensors").unlink()
    assert noted_base(tmp_path) == str(fetched)


def test_a_place_that_is_told_from_here_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = a_base(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    note_base(tmp_path, RUN, "own")
    monkeypatch.chdir("/")
    assert noted_base(tmp_path) == str(own)


@pytest.mark.parametrize(("config", "base"), [(RunConfig(), "/base"), (RUN, ""), (RUN, "hub:some/model@main")])
def test_a_folder_without_a_base_is_not_noted(tmp_path: Path, config: RunConfig, base: str):
    note_base(tmp_path, config, base)
    assert not list(tmp_path.iterdir())
