"""How a peer is put together before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.run.manifest import PaceSpec, RunConfig, TrustSpec
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from dht.statement import digest_of
from peer.model.description import OWN_DATA, Description
from peer.node import build
from peer.node.build import check_founders, make_manifest
from peer.node.options import NodeOptions
from peer.numerics.golden import GOLDEN, self_check
from peer.storage.run_directory import MANIFEST_FILE, RunDirectory

HOST = Identity(digest_of(b"host"))


def test_a_machine_that_computes_other_bytes_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(GOLDEN))
    monkeypatch.setattr(build, "self_check", lambda: self_check({**GOLDEN, name: "0" * 64}))
    with pytest.raises(LocalError, match=f"other bytes than the run expects in: {name}; it cannot take part"):
        build.prepare(NodeOptions(tmp_path / "data"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert build.prepare(NodeOptions(tmp_path / "data")).peer_id


def test_a_run_that_bounds_newcomers_names_who_trains_first() -> None:
    bounded = RunConfig(pace=PaceSpec(min_group=3), trust=TrustSpec(newcomers_share=0.25))
    check_founders(bounded, {"one", "two", "three"})
    with pytest.raises(UsageError, match=r"2 of at least 3 .* --founder"):
        check_founders(bounded, {"one", "two"})
    check_founders(RunConfig(), set())


def test_a_host_begins_anew_where_its_manifest_is_damaged(tmp_path: Path) -> None:
    config = RunConfig(model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16))
    described, options = Description(config), NodeOptions(tmp_path)
    first = make_manifest(described, OWN_DATA, options, HOST.peer_id)
    directory = RunDirectory(tmp_path, first.run_id)
    directory.keep_manifest(first)
    assert make_manifest(described, OWN_DATA, options, HOST.peer_id) == first
    (directory.path / MANIFEST_FILE).write_bytes(b"")
    assert make_manifest(described, OWN_DATA, options, HOST.peer_id).config == config
