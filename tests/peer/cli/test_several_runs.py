"""Several runs by one command: the processes that it starts, and refused combinations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dht.addresses import PeerAddress
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import join, main
from peer.service import several
from peer.service.several import PeerChild

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id
INVITES = [str(Invite(bytes([seed] * 32), PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))
           for seed in (1, 2)]  # fmt: skip
RUNS = [bytes([seed] * 6).hex() for seed in (1, 2)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[PeerChild]:
    """Return the list of children that would have been started; the command's exit code is 1."""
    found: list[PeerChild] = []

    async def pretend(children: Sequence[PeerChild], say: Callable[[str], None]) -> int:
        found.extend(children)
        return 1

    monkeypatch.setattr(several, "run_several", pretend)
    monkeypatch.setattr(join, "_ask_the_door", lambda invite, data: None)
    return found


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n')
    return [str(tmp_path / "one.toml"), str(tmp_path / "two.toml")]


def test_each_run_has_a_host_with_a_folder_and_ports_of_its_own(
    tmp_path: Path, files: list[str], started: list[PeerChild]
) -> None:
    words = ["--set", "model.layers=2", "--limit", "cpu_cores=2", "--limit", "upload_mbit=8", "--stay"]
    ports = ["--port", "7400", "--metrics-port", "7500"]
    assert main.run(["host", *files, *ports, *words, "--data", str(tmp_path / "d"), "--verbose"], PYTHON) == 1
    shared = ["--verbose", "--share-limits", str(tmp_path / "d"), "--die-with-parent", str(os.getpid())]
    assert [one.name for one in started] == ["one", "two"]
    for index, (one, file) in enumerate(zip(started, files, strict=True)):
        own = [
            "--port",
            str(7400 + index),
            "--metrics-port",
            str(7500 + index),
            "--data",
            str(tmp_path / "d" / one.name),
        ]
        assert list(one.command[:4]) == [sys.executable, "-m", "peer.cli", "host"]
        assert list(one.command[4:]) == [*words, *shared, *own, file]
        assert one.told == ""


def test_each_invite_has_a_peer_and_is_not_in_its_command_line(tmp_path: Path, started: list[PeerChild]) -> None:
    words = ["--yes", "--no-compile", "--share-limits", str(tmp_path / "s")]
    assert main.run(["join", *INVITES, *words, "--data", str(tmp_path / "d")], PYTHON) == 1
    assert [(one.name, one.told) for one in started] == list(zip(RUNS, INVITES, strict=True))
    for one in started:
        own = ["--die-with-parent", str(os.getpid()), "--data", str(tmp_path / "d" / one.name), "-", "--yes"]
        assert list(one.command[3:]) == ["join", "--no-compile", "--share-limits", str(tmp_path / "s"), *own]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["host", "one.toml", "other/one.toml"],
            "two of these run files are called one; the name is that of the run's",
        ),
        (["host", "one.toml", "none.toml"], "there is no run file at none.toml"),
        (["host", "one.toml", "two.toml", "--continue", "x"], "--continue is for one run; start the host of that run"),
        (["host", "one.toml", "two.toml", "--announce", "/ip4/1.2.3.4/tcp/5"], "--announce is for one run"),
        (["host", "one.toml", "two.toml", "--port", "7400", "--page-port", "7401"], "2 runs take 2 ports in a row for"),
        (["join", INVITES[0], INVITES[0], "--yes"], f"two of these invites are for the run {RUNS[0]}; leave one out"),
        (["join", INVITES[0], "-", "--yes"], "--detach, --announce and `-` are for one invite"),
        (["join", *INVITES, "--yes", "--detach"], "--detach, --announce and `-` are for one invite"),
        (["join", INVITES[0], "hello"], "this is not an invite"),
        (["join", *INVITES], "agree beforehand with --yes"),
    ],
)
def test_impossible_options_are_told_before_anything_starts(
    tmp_path: Path,
    files: list[str],
    started: list[PeerChild],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "one.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main.run([*arguments, "--data", str(tmp_path / "d")], PYTHON) == 2
    assert problem in capsys.readouterr().err
    assert started == []
