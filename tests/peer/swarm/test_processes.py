"""Peers as child processes: how their exits are reported, and that none is left over."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from peer.machine.log import LOG_NAME
from peer.swarm.processes import CONSOLE_NAME, PeerProcess, end_all, kill_all, make_identity
from peer.swarm.run import SwarmOptions

ENDING_SECONDS = 30.0


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[PeerProcess]:
    """Yield a peer that waits for an invite on its standard input."""
    peer = PeerProcess.start("peer-1", tmp_path / "peer-1", ["join", "-", "--yes"])
    yield peer
    kill_all([peer])


def test_a_peer_that_gets_no_invite_says_so(waiting: PeerProcess) -> None:
    waiting.tell("muster1cut")
    assert waiting.has_ended(ENDING_SECONDS)
    assert waiting.exit_code == 2
    failure = waiting.failure()
    assert isinstance(failure, UsageError)
    assert "invite" in str(failure)
    assert end_all([waiting], ENDING_SECONDS) == []


def test_a_peer_that_does_not_end_is_asked_by_signal(waiting: PeerProcess) -> None:
    assert end_all([waiting], 0.0) in ([], ["peer-1"])
    assert waiting.exit_code is not None


def test_a_killed_peer_is_told_from_one_that_failed(waiting: PeerProcess) -> None:
    waiting.process.kill()
    assert waiting.has_ended(ENDING_SECONDS)
    assert waiting.exit_code == -signal.SIGKILL
    assert waiting.last_output() == "ended by signal 9"
    assert isinstance(waiting.failure(), LocalError)
    waiting.tell("nobody listens")


@pytest.mark.parametrize("temporary", [True, False])
def test_a_log_that_is_named_outlives_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    peer = PeerProcess.start("peer-1", tmp_path / "peer-1", ["version"], temporary)
    assert peer.has_ended(ENDING_SECONDS)
    log = tmp_path / "peer-1" / LOG_NAME
    log.write_text("Traceback")
    (tmp_path / "peer-1" / CONSOLE_NAME).write_text(f"0:15 training\nthis is a bug in Muster; see {log}\n")
    kept = Path(peer.last_output().removeprefix("this is a bug in Muster; see "))
    assert kept.read_text() == "Traceback"
    assert (kept == log) != temporary
    assert peer.last_output().endswith(str(kept))
    kill_all([peer])


def test_a_peer_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="peer-1 cannot be started"):
        PeerProcess.start("peer-1", tmp_path, ["join", "x" * (1 << 20)])


def test_the_key_is_the_one_that_the_peer_will_find(tmp_path: Path) -> None:
    peer_id = make_identity(tmp_path / "peer-1")
    assert Identity.load(tmp_path / "peer-1/identity.key").peer_id == peer_id == make_identity(tmp_path / "peer-1")


def test_numbers_of_peers_are_checked() -> None:
    config = RunConfig()
    assert SwarmOptions(config, peers=2, faults={2: "kill:vote"}).peers == 2
    with pytest.raises(UsageError, match="there is no peer 3"):
        SwarmOptions(config, peers=2, faults={3: "kill:vote"})
