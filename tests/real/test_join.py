"""Joining a real run: the owner is asked at a terminal, and nothing happens without an answer."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.views.control import SOCKET_NAME, ask, snapshot
from dht.errors import MusterError
from peer.cli import main
from peer.swarm.processes import PeerProcess, kill_all
from tests.real.conftest import ROOT, RUN

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(180)]
PATIENCE_SECONDS = 90.0
PYTHON = (3, 11)


@pytest.fixture(scope="module")
def host() -> Iterator[PeerProcess]:
    """Yield one host for all tests; each test leaves it without a peer."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "run.toml"
        config.write_text(RUN.format(versions=4000, optimizer="adamw"))
        host = PeerProcess.start("host", Path(name) / "host", ["host", str(config)])
        try:
            yield host
        finally:
            kill_all([host])


@pytest.fixture
def invite(host: PeerProcess) -> str:
    return _until_ready(host)


def _until_ready(host: PeerProcess) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            return str(ask(host.data_directory, "invite")["invite"])
        except MusterError:
            assert not host.has_ended(0.2), host.last_output()
    raise AssertionError("the host was not ready")


def _until_training(data: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while snapshot(data).state != "training":
        assert time.monotonic() < deadline, "it never trained"
        select.select([], [], [], 0.1)


class Terminal:
    """A `muster join` at a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.side, theirs = pty.openpty()
        command = [sys.executable, "-m", "peer.cli", "join", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown:
            ready, _, _ = select.select([self.side], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.shown
            try:
                self.shown += os.read(self.side, 4096).decode()
            except OSError:  # it has closed its side
                raise AssertionError(self.shown) from None

    def type(self, text: str) -> None:
        os.write(self.side, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.side)


def test_an_owner_that_says_no_has_fetched_and_kept_nothing(tmp_path: Path, host: PeerProcess, invite: str) -> None:
    data = tmp_path / "home"
    terminal = Terminal(invite, "--data", str(data))
    try:
        terminal.read_until("Take part?")
        for fact in ("organiser", "parameters", "upload", "others see", "none comes from the network"):
            assert fact in terminal.shown
        terminal.type("n\n")
        assert terminal.process.wait(PATIENCE_SECONDS) == 1
        assert not data.exists()
        assert snapshot(host.data_directory).peers_live == 0
    finally:
        terminal.close()


def test_an_owner_that_says_yes_takes_part_in_the_background_and_the_doctor_finds_the_host(
    tmp_path: Path, invite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "home"
    assert main.run(["doctor", invite, "--data", str(tmp_path / "nobody")], PYTHON) == 0
    findings = capsys.readouterr().out
    for fact in (
        "1 peer of its invite answered",
        "other peers",
        "others get through to 127.0.0.1 port",
        "the same text",
    ):
        assert fact in findings
    terminal = Terminal(invite, "--detach", "--data", str(data), "--name", "bob", "--limit", "upload_mbit=50")
    try:
        terminal.read_until("Take part?")
        terminal.type("y\n")
        terminal.read_until("muster stop")
        assert terminal.process.wait(PATIENCE_SECONDS) == 0
    finally:
        terminal.close()
    process = os.pidfd_open(snapshot(data).pid)
    try:
        assert snapshot(data).name == "bob"
        assert data.stat().st_mode & 0o077 == 0
        assert (data / SOCKET_NAME).stat().st_mode & 0o077 == 0
        assert main.run(["logs", "--data", str(data)], PYTHON) == 0
        assert "peer begins process=" in capsys.readouterr().out
        _until_training(data)
        ask(data, "stop")
        ready, _, _ = select.select([process], [], [], PATIENCE_SECONDS)
        assert ready
    finally:
        if not select.select([process], [], [], 0)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


@pytest.mark.slow
def test_a_peer_outside_its_hours_is_there_and_rests(tmp_path: Path, invite: str) -> None:
    now = time.localtime()
    later = [f"{(now.tm_hour + hours) % 24}:00" for hours in (2, 3)]
    home, hours = tmp_path / "home", f"hours={later[0]}-{later[1]}"
    peer = PeerProcess.start("home", home, ["join", "-", "--yes", "--limit", hours])
    try:
        peer.tell(invite)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                seen = snapshot(home)
                if seen.state == "paused":
                    assert seen.note == "outside its hours"
                    assert seen.steps == 0
                    return
            except MusterError:
                assert not peer.has_ended(0.2), peer.last_output()
        raise AssertionError("it never paused")
    finally:
        kill_all([peer])
