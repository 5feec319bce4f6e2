"""The output of commands with `--json`: one document on standard output, always with the same keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.run.compatibility import OURS
from coordinator.views.network_view import NetworkView
from dht.addresses import PeerAddress
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import doctor, export, main, top
from peer.cli.common import print_json, tell
from peer.cli.diagnosis import DiagnosisLine
from peer.export.sampler import Sampler
from peer.machine.limits import Limits
from peer.net import first_call
from peer.storage.run_directory import RunDirectory
from tests.checkout import ROOT
from tests.peer.homely import manifest

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id
INVITE = str(Invite(bytes(32), PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command with `--json` and returns the parsed output."""

    def run(*words: str, code: int = 0) -> Any:
        assert main.run([*words, "--json"], PYTHON) == code
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return run


def test_an_id(told: Any, tmp_path: Path) -> None:
    shown = told("id", "--data", str(tmp_path))
    assert shown == {"peer_id": Identity.load(tmp_path / "identity.key").peer_id}


def test_limits(told: Any, tmp_path: Path) -> None:
    rows = told("limits", "upload_mbit=2", "--data", str(tmp_path))["limits"]
    assert [row["key"] for row in rows] == list(Limits.model_fields)
    assert [row["value"] for row in rows if row["key"] == "upload_mbit"] == [2.0]


def test_runs(told: Any, tmp_path: Path) -> None:
    assert told("runs", "--data", str(tmp_path)) == []
    directory = RunDirectory(tmp_path, manifest().run_id)
    directory.keep_manifest(manifest())
    run_id = manifest().run_id.hex()
    (row,) = told("runs", "--data", str(tmp_path))
    assert row.pop("bytes") > 0
    assert row == {"run_id": run_id, "name": manifest().config.name, "folder": str(directory.path)}
    assert told("runs", "--forget", run_id[:8], "--data", str(tmp_path)) == {"forgotten": run_id}


def test_a_check(told: Any) -> None:
    shown = told("check", str(ROOT / "examples/tiny.toml"))
    assert set(shown) == {"file", "name", "versions", "fragments", "needs", "remarks"}
    assert shown["name"] == "tiny"
    assert shown["needs"]["parameters"] == 434_816
    assert all(value > 0 for value in shown["needs"].values())


@pytest.mark.parametrize(("grade", "code"), [("note", 0), ("bad", 1)])
def test_a_diagnosis(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grade: Any, code: int) -> None:
    monkeypatch.setattr(doctor, "check_machine", lambda *_: [DiagnosisLine(grade, "disk", "small", "make room")])
    assert told("doctor", "--data", str(tmp_path), code=code) == {
        "fit": code == 0,
        "findings": [
            {
                "grade": "note",
                "subject": "run",
                "text": "no invite given: checked against the example run tiny",
                "advice": "have a run's peers check this machine for that run: muster doctor INVITE",
            },
            {"grade": grade, "subject": "disk", "text": "small", "advice": "make room"},
        ],
    }


@pytest.mark.parametrize(("more", "proven"), [((), "new"), (("--merged",), "new/adapter")])
def test_an_export(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    proven: str,
) -> None:
    monkeypatch.setattr(export, "export_here", lambda *_: 8)
    folder = str(tmp_path / "new")
    assert main.run(["export", folder, *more, "--json"], PYTHON) == 0
    captured = capsys.readouterr()
    told = {"folder": folder, "proven_by": str(tmp_path / proven), "versions": 8, "pushed_to": None}
    assert json.loads(captured.out) == told
    assert "muster verify" in captured.err


def test_a_sample(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(write=lambda prompt, *_: f"{prompt}\x1b end", answer=lambda question, *_: "42")
    monkeypatch.setattr(Sampler, "load", lambda *_: model)
    shown = told("sample", str(tmp_path), "--prompt", "The")
    assert shown == {"prompt": "The", "text": "The\x1b end", "seed": 0, "temperature": 0.8}
    assert told("sample", str(tmp_path), "--chat", "what?")["text"] == "42"


def test_a_view_of_a_run(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first_view(*_: object) -> NetworkView:
        return NetworkView(run_id="ab" * 32, name="tiny")

    monkeypatch.setattr(top, "first_view", first_view)
    monkeypatch.setattr(first_call, "first_call", lambda *_: None)
    shown = told("top", INVITE, "--once")
    assert (shown["run_id"], shown["name"]) == ("ab" * 32, "tiny")
    assert set(shown) == set(NetworkView.model_fields)


def test_a_view_that_goes_on_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["top", INVITE, "--json"], PYTHON) == 2
    assert capsys.readouterr().err == "--json prints one view: give --once too\n"


def test_a_version(told: Any) -> None:
    shown = told("version")
    assert shown["protocol"] == OURS
    assert set(shown) == {"muster", "protocol"}


@dataclass(frozen=True, slots=True)
class Row:
    """A dataclass to print."""

    loss: float


def test_words_are_for_people_and_nothing_is_printed_that_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    tell("it falls", [Row(2.5)], as_json=False)
    assert capsys.readouterr().out == "it falls\n"
    tell("it falls", [Row(2.5)], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"loss": 2.5}]
    with pytest.raises(TypeError, match="object has no form in JSON"):
        print_json({"what": object()})
