"""`muster verify` of evidence: with the file and the run's manifest, anybody reaches the same verdict as the peers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.trust.bans import Ban
from coordinator.trust.evidence import Guilt, contradiction
from dht.addresses import PeerAddress
from dht.invite import Invite
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import Wire
from peer.cli import main
from peer.storage.evidence_files import EvidenceFiles
from peer.storage.run_directory import MANIFEST_FILE
from tests.peer.exporting import KEYS, CertifiedRun

PYTHON = (3, 11)
RUN = CertifiedRun()


class Word(Wire):
    """A statement's body, whose content does not matter to a contradiction."""

    word: str


def vote(word: str, run_id: bytes = RUN.manifest.run_id) -> Statement:
    context = Context(run_id=run_id, kind="vote", fragment=0, version=3, group=digest_of(b"group"))
    return make_statement(KEYS[1], context, Word(word=word))


def kept(folder: Path, one: Statement, other: Statement) -> Path:
    """Write a peer's folder with the run and the evidence of these two statements; return the evidence file."""
    run = folder / f"run-{RUN.manifest.run_id.hex()[:16]}"
    run.mkdir()
    (run / MANIFEST_FILE).write_bytes(RUN.manifest.to_wire())
    guilt = Guilt(KEYS[1].peer_id, "not what is shown: it is judged anew")
    EvidenceFiles(run / "evidence").keep(Ban(guilt, contradiction(one, other), 1.0))
    (path,) = (run / "evidence").iterdir()
    return path


def test_evidence_names_the_guilty_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path, vote("yes"), vote("no"))
    assert main.run(["verify", str(path), "--data", str(tmp_path)], PYTHON) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{KEYS[1].peer_id} is guilty: signed two different statements «vote» in one place" in shown
    assert main.run(["verify", str(path), "--data", str(tmp_path), "--json"], PYTHON) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["guilty"] == KEYS[1].peer_id
    assert set(told) == {"guilty", "reason", "run_id"}


def test_evidence_of_another_run_than_an_invites_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(kept(tmp_path, vote("yes"), vote("no"))), "--data", str(tmp_path), "--invite"]
    peer, run_id = KEYS[0].peer_id, RUN.manifest.run_id
    there = (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{peer}"),)
    assert main.run([*command, str(Invite(run_id, peer, there))], PYTHON) == 0
    assert main.run([*command, str(Invite(bytes(32), peer, there))], PYTHON) == 1
    assert f"is of another run than that of the invite: {run_id.hex()}" in capsys.readouterr().err
    assert main.run([*command, "hello"], PYTHON) == 2


def test_evidence_has_no_certificates_to_be_strict_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path, vote("yes"), vote("no"))
    assert main.run(["verify", str(path), "--data", str(tmp_path), "--strict"], PYTHON) == 2
    assert "is evidence; leave it out" in capsys.readouterr().err


def test_evidence_that_proves_nothing_convicts_no_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged = vote("no").model_copy(update={"signature": vote("yes").signature})
    path = kept(tmp_path, vote("yes"), forged)
    assert main.run(["verify", str(path), "--data", str(tmp_path)], PYTHON) == 1
    assert "this proves nothing: evidence with a statement that its sender did not sign" in capsys.readouterr().err


def test_evidence_of_a_run_that_is_not_known_asks_for_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = digest_of(b"another run")
    path = kept(tmp_path, vote("yes", other), vote("no", other))
    assert main.run(["verify", str(path), "--data", str(tmp_path)], PYTHON) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_damaged_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path, vote("yes"), vote("no"))
    path.write_bytes(path.read_bytes()[:-5])
    assert main.run(["verify", str(path), "--data", str(tmp_path)], PYTHON) == 2
    assert "is neither the folder of an export nor a file of evidence" in capsys.readouterr().err
