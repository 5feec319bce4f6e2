"""`muster dashboard`: one sentence for every mistake, and nothing left when it ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from coordinator.views.control import StartingError
from dashboard.serve import OwnPeer, streamlit_arguments
from dht.addresses import PeerAddress
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import dashboard as cli_dashboard
from peer.cli import main
from tests.dashboard.serving import END_SECONDS_MAX, dashboard
from tests.extra import extra

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id
INVITE = str(Invite(bytes(32), PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))


def sentence(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main.run(["dashboard", "--headless", *arguments], PYTHON) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in sentence(["--demo", "--port", str(port)], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--demo", INVITE], "a demo needs no invite"),
        (["muster1nonsense"], "invite"),
        (["--demo", "--listen", "everywhere"], "IP address"),
        (["--demo", "--demo-peers", "3"], "demo-peers"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in sentence(arguments, capsys)


def test_without_a_peer_an_invite_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give the invite of a run" in sentence(["--data", "/nowhere"], capsys, code=1)


def test_it_waits_for_a_peer_that_still_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    looks: list[int] = []

    def ask(directory: Path, command: str, changes: tuple[str, ...]) -> dict[str, str]:
        looks.append(1)
        if len(looks) < 3:
            raise StartingError("enters the network")
        return {"invite": INVITE}

    monkeypatch.setattr("peer.observer.access.ask", ask)
    monkeypatch.setattr(cli_dashboard, "LOOK_SECONDS", 0.01)
    assert str(cli_dashboard.observer_access(None, tmp_path, tmp_path).invite) == INVITE
    assert capsys.readouterr().err == "the peer here is still starting; the dashboard waits for it\n"
    looks.clear()
    monkeypatch.setattr(cli_dashboard, "START_SECONDS_MAX", 0.01)
    with pytest.raises(LocalError, match="still starting: it enters the network"):
        cli_dashboard.observer_access(None, tmp_path, tmp_path)


def test_the_invite_given_is_the_one_looked_at(tmp_path: Path) -> None:
    access = cli_dashboard.observer_access(INVITE, tmp_path / "peer", tmp_path)
    assert str(access.invite) == INVITE
    assert access.key.parent == tmp_path


def test_no_invite_is_in_an_argument_that_others_here_can_read(tmp_path: Path) -> None:
    words = cli_dashboard.observer_arguments(INVITE, tmp_path / "peer", tmp_path / "observer")
    assert not any(INVITE in word for word in words)
    text = Path(words[words.index("--invite-file") + 1])
    assert text.read_text() == INVITE
    assert text.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("code", "kind"), [(2, UsageError), (1, LocalError)])
def test_the_cause_of_death_of_a_part_is_told(code: int, kind: type[Exception], tmp_path: Path) -> None:
    with cli_dashboard.Child(["this_is_no_module"], tmp_path) as child:
        child.process.wait(END_SECONDS_MAX)
        child.process.returncode = code
        with pytest.raises(kind, match="No module named this_is_no_module"):
            child.check()


def test_controls_are_only_for_this_machine(tmp_path: Path) -> None:
    own = OwnPeer(tmp_path, tmp_path / "token")
    here = streamlit_arguments("127.0.0.1", 1, tmp_path, own)
    everywhere = streamlit_arguments("0.0.0.0", 1, tmp_path, own)
    assert here.count("--data") == here.count("--token-file") == 1
    assert here.count("--server.allowedHosts") == 3
    assert everywhere.count("--data") == everywhere.count("--server.allowedHosts") == 0
    assert here[here.index("--browser.gatherUsageStats") + 1] == "false"


@pytest.mark.parametrize("number", [signal.SIGINT, *extra([signal.SIGTERM])])
def test_it_serves_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with dashboard("--demo", "--demo-peers", "4", temporary=tmp_path) as served:
        with urllib.request.urlopen(f"{served.url}/_stcore/health") as answer:
            assert answer.read() == b"ok"
        assert len(served.children()) == 2
        children = [os.pidfd_open(child) for child in served.children()]
        served.process.send_signal(number)
        assert served.process.wait(END_SECONDS_MAX) == 0
    for child in children:
        assert select.select([child], [], [], END_SECONDS_MAX)[0]
        os.close(child)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("muster-dashboard-")] == []


def test_nothing_outlives_it_when_it_is_killed(tmp_path: Path) -> None:
    with dashboard("--demo", "--demo-peers", "4", temporary=tmp_path) as served:
        children = [os.pidfd_open(child) for child in served.children()]
        served.process.kill()
        for child in children:
            assert select.select([child], [], [], END_SECONDS_MAX)[0]
            os.close(child)
