"""The credit that a peer keeps across restarts, and what `muster credit` prints of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.chain.chain import Chain
from coordinator.chain.packed_history import PackedHistory
from coordinator.views import credit
from coordinator.views.credit import CreditReport
from coordinator.wire.presence import Presence
from dht.errors import LocalError
from dht.identity import PeerId
from peer.cli import main
from peer.cli.credit import newest_report, page
from peer.storage.credit_book import CREDIT_FILE, CreditBook, saved_report
from peer.storage.run_directory import RunDirectory
from tests.coordinator.builders import presence
from tests.peer.exporting import KEYS, CertifiedRun

PYTHON = (3, 11)


def said(run: CertifiedRun, **changes: str) -> list[tuple[PeerId, Presence]]:
    return [(KEYS[0].peer_id, presence(name="Ann", team="the\x1b[2J garden")), (PeerId("stranger"), presence(name="x"))]


def forgetful(chains: list[Chain]) -> list[Chain]:
    """Return the chains with only their newest four certificates."""
    return [Chain(one.rules, one.fragment, one.genesis, PackedHistory(one.certificates[-4:])) for one in chains]


def test_credit_outlives_certificates_and_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "UNSETTLED_VERSIONS", 2)
    run = CertifiedRun()
    for _ in range(5):
        book = CreditBook(tmp_path, run.manifest.run_id, 2)  # as after a restart each time
        run.advance(2)
        book.hear(said(run))
        book.save(forgetful(run.chains))
    report = CreditBook(tmp_path, run.manifest.run_id, 2).report(forgetful(run.chains))
    assert report.complete
    assert report.model_copy(update={"contributors": ()}) == run.credit().model_copy(update={"contributors": ()})
    tokens = {one.peer_id: one.tokens for one in report.contributors}
    assert tokens == {KEYS[0].peer_id: 1000, KEYS[1].peer_id: 2000}
    assert saved_report(tmp_path) == report
    named = {one.peer_id: (one.name, one.team) for one in report.contributors}
    assert named == {KEYS[0].peer_id: ("Ann", "the [2J garden"), KEYS[1].peer_id: ("", "")}
    assert "stranger" not in (tmp_path / CREDIT_FILE).read_text()
    book.hear([])
    after = {one.peer_id: one.name for one in book.report(forgetful(run.chains)).contributors}
    assert after[KEYS[0].peer_id] == "Ann"


@pytest.mark.parametrize("content", ["", "{}", '{"record": "00", "claims": {}}'])
def test_a_damaged_book_begins_anew_and_says_so(tmp_path: Path, content: str) -> None:
    run = CertifiedRun().advance(8)
    (tmp_path / CREDIT_FILE).write_text(content)
    report = CreditBook(tmp_path, run.manifest.run_id, 2).report(forgetful(run.chains))
    assert report.from_versions == (5, 5)
    with pytest.raises(LocalError, match="damaged"):
        saved_report(tmp_path)


def test_the_book_of_another_run_is_not_used(tmp_path: Path) -> None:
    run = CertifiedRun().advance(8)
    CreditBook(tmp_path, bytes(32), 2).save(run.chains)
    assert not CreditBook(tmp_path, run.manifest.run_id, 2).report(forgetful(run.chains)).complete


def test_a_disk_that_refuses_leaves_the_book_as_it_was(tmp_path: Path) -> None:
    run = CertifiedRun().advance(1)
    book = CreditBook(tmp_path, run.manifest.run_id, 2)
    book.save(run.chains)
    before = saved_report(tmp_path)
    (tmp_path / f"{CREDIT_FILE}.new").mkdir()
    with pytest.raises(LocalError, match="cannot be written"):
        book.save(run.advance().chains)
    assert saved_report(tmp_path) == before


def test_the_page_says_what_is_counted_and_what_is_claimed(tmp_path: Path) -> None:
    run = CertifiedRun().advance(16)
    book = CreditBook(tmp_path, run.manifest.run_id, 2)
    book.hear(said(run))
    lines = page(book.report(run.chains)).splitlines()
    assert "every certificate since the run began is counted" in lines
    assert any("Ann (the [2J garden)" in line and "33.3 %" in line for line in lines)
    assert any(line.split() == ["3,200", "(no", "team)"] for line in lines)
    assert run.credit().compared_digest in lines[-2]
    assert lines[-1].startswith("Compare this digest with another peer's to check that both counts agree.")
    shorter = page(book.report(forgetful(run.chains)))
    assert "counted from version 13 of each fragment on; ask a peer that was there before" in shorter


def test_the_command_reads_what_was_saved_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["credit", "--data", str(tmp_path), "--json"]
    assert main.run(command, PYTHON) == 1
    assert "holds no run" in capsys.readouterr().err
    run = CertifiedRun().advance(2)
    directory = RunDirectory(tmp_path, run.manifest.run_id)
    directory.keep_manifest(run.manifest)
    assert main.run(command, PYTHON) == 1
    assert "holds no credit yet" in capsys.readouterr().err
    CreditBook(directory.path, run.manifest.run_id, 2).save(run.chains)
    assert main.run(command, PYTHON) == 0
    assert CreditReport.model_validate(json.loads(capsys.readouterr().out)) == run.credit()
    other = run.credit().model_copy(update={"run_id": "ff" * 32})
    monkeypatch.setattr("peer.cli.credit.ask", lambda *_: {"credit": other.model_dump()})
    assert newest_report(tmp_path, "") == newest_report(tmp_path, "FF") == other
    assert newest_report(tmp_path, run.manifest.run_id.hex()[:8]) == run.credit(), "not that of the peer that runs here"
    with pytest.raises(LocalError):
        saved_report(tmp_path)
