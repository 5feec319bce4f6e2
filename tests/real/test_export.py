"""A real run whose host exports: the export loads, writes text and verifies; credit is the same for all peers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.views.control import PeerNotRunningError, ask, snapshot
from coordinator.views.credit import CreditReport
from dht.errors import LocalError
from dht.identity import KeyVerifier
from peer.cli import main
from peer.cli.credit import newest_report
from peer.data.windows import evaluation_windows, load_tokens
from peer.export.listing import CARD, LATEST
from peer.export.regular import exports, number
from peer.export.verifier import verify_export
from peer.learner.evaluation import heldout_loss
from peer.swarm.processes import PeerProcess, end_all, kill_all
from tests.real.conftest import RUN

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(300)]

PYTHON = (3, 11)
VERSIONS = 24
EVERY = 8
WAIT_SECONDS = 150.0


@pytest.fixture
def processes() -> Iterator[list[PeerProcess]]:
    started: list[PeerProcess] = []
    yield started
    kill_all(started)


def wait_until(process: PeerProcess, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with suppress(PeerNotRunningError, LocalError):  # not yet
            if true():
                return
        with suppress(subprocess.TimeoutExpired):
            process.process.wait(0.2)
            raise AssertionError(f"{process.name} ended: {process.last_output()}")
    raise AssertionError("not in time")


def finished(process: PeerProcess) -> bool:
    return snapshot(process.data_directory).state == "finished"


def last_loss(export: Path) -> float:
    """Return an export's loss, evaluated as the host evaluates anchors, but on the model that `transformers` loads."""
    from transformers import AutoModelForCausalLM

    config = verify_export(export, KeyVerifier()).manifest.config
    windows = evaluation_windows(load_tokens(config.data).heldout, config.data, config.seed)
    return heldout_loss(AutoModelForCausalLM.from_pretrained(export), windows)


def without_claims(report: CreditReport) -> CreditReport:
    bare = tuple(one.model_copy(update={"name": "", "team": ""}) for one in report.contributors)
    return report.model_copy(update={"contributors": bare})


def test_a_host_exports_what_its_volunteers_certify(
    tmp_path: Path, processes: list[PeerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    config, exported = tmp_path / "run.toml", tmp_path / "exports"
    config.write_text(RUN.format(versions=VERSIONS, optimizer="adamw"))
    arguments = ["host", str(config), "--export", str(exported), "--export-every", str(EVERY), "--licence", "CC0-1.0"]
    processes.append(host := PeerProcess.start("host", tmp_path / "host", arguments))
    wait_until(host, lambda: bool(ask(host.data_directory, "invite")))
    invite = str(ask(host.data_directory, "invite")["invite"])
    for name in ("ann", "bob", "eve"):
        team = "green" if name != "eve" else ""
        joined = ["join", invite, "--yes", "--step-seconds", "0.05", "--name", name, "--team", team]
        processes.append(PeerProcess.start(name, tmp_path / name, joined))
    wait_until(host, lambda: bool(exports(exported)))
    ann = processes[1]
    assert main.run(["export", str(tmp_path / "from-ann"), "--data", str(ann.data_directory)], PYTHON) == 0
    assert main.run(["verify", str(tmp_path / "from-ann"), "--strict", "--invite", invite], PYTHON) == 0
    assert snapshot(ann.data_directory).peer_id in capsys.readouterr().out
    for process in processes:
        wait_until(process, lambda process=process: finished(process))

    # the export of the end
    last = verify_export(exported / LATEST, KeyVerifier())
    assert last.from_founders
    assert [one.version for one in last.fragments] == [one.version for one in snapshot(host.data_directory).fragments]
    assert number((exported / LATEST).resolve()) == sum(one.version for one in last.fragments) >= VERSIONS
    assert last.exporter == snapshot(host.data_directory).peer_id
    assert 2 <= len(exports(exported)) <= 3
    card = (exported / LATEST / CARD).read_text()
    told = float(card.split("This model: ")[1].split()[0])
    assert told == pytest.approx(last_loss(exported / LATEST), abs=1e-3)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(exported / LATEST)
    tokenizer = AutoTokenizer.from_pretrained(exported / LATEST)
    written = model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=24, do_sample=False)
    assert len(tokenizer.decode(written[0])) >= len("def ")

    # credit
    reports = [newest_report(process.data_directory, "") for process in processes]
    assert all(report.complete for report in reports)
    assert {without_claims(report) for report in reports} == {without_claims(reports[0])}
    assert {one.name: one.team for one in reports[0].contributors} == {"ann": "green", "bob": "green", "eve": ""}
    assert reports[0].tokens == sum(one.tokens for one in reports[0].contributors) > 0
    for process in processes:
        ask(process.data_directory, "stop")
    assert end_all(processes, 30.0) == []
    for process in processes:
        assert without_claims(newest_report(process.data_directory, "")) == without_claims(reports[0])
