"""Whether an invite leads to anybody and lets anybody in: told in the time of one call, before anything is loaded."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from dht import meeting
from dht.addresses import PeerAddress
from dht.admission import Grant, Ticket, sign_grant
from dht.daemon.process import Daemon, DaemonConfig
from dht.errors import NetworkError, UsageError
from dht.identity import Identity, PeerId
from dht.invite import Invite
from dht.refusal import Refusal
from peer.cli import doctor, main
from peer.cli.diagnosis import DiagnosisLine
from peer.net.first_call import first_call, somebody_listens
from peer.service.dashboard import PagesAt
from tests.peer.virtual_loop import run_virtual

PEER = Identity(bytes(32)).peer_id
PYTHON = (3, 11)
PEOPLE_WAIT_SECONDS = 15.0
HEAVY = ("peer.observer.process", "peer.node.node", "peer.cli.consent", "peer.attacks.protocol")
COMMANDS = [["top"], ["top", "--once"], ["join", "--yes"], ["dashboard", "--headless"]]


def at(*places: str) -> tuple[PeerAddress, ...]:
    return tuple(PeerAddress.parse(f"{place}/p2p/{PEER}") for place in places)


EIGHT = at(*(f"/ip4/8.8.8.{number}/tcp/7400" for number in range(7)), "/ip6/2600::7/tcp/1")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def silent(host: str, port: int) -> None:
    """A place that takes every packet and answers none."""
    await asyncio.Event().wait()


def test_silence_everywhere_is_told_within_the_time_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "open_connection", silent)

    async def course() -> float:
        assert not await somebody_listens(EIGHT, meeting.answers)
        return asyncio.get_running_loop().time()

    assert run_virtual(course()) == meeting.CALL_SECONDS_MAX < PEOPLE_WAIT_SECONDS / 2


def test_one_place_that_answers_is_enough() -> None:
    async def call(host: str, port: int) -> bool:
        await asyncio.sleep(60.0 if port == 1 else 2.0)
        return host == "8.8.8.3"

    async def course() -> float:
        assert await somebody_listens(EIGHT, call)
        return asyncio.get_running_loop().time()

    assert run_virtual(course()) < PEOPLE_WAIT_SECONDS / 2


@pytest.mark.parametrize("place", ["/dns4/a.example/tcp/1", "/ip4/8.8.8.8/udp/1"])
def test_what_only_the_daemon_can_call_is_left_to_it(place: str) -> None:
    async def call(host: str, port: int) -> bool:
        raise AssertionError

    assert run_virtual(somebody_listens([*EIGHT, *at(place)], call))


class Keeper:
    """Lets in nobody, or everybody."""

    opens = False

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        return None if self.opens else Refusal.NO_PASS

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        return self.opens

    def knows(self, peer: PeerId) -> bool:
        return self.opens


@pytest.fixture
def kept() -> Iterator[tuple[PeerAddress, Keeper]]:
    """The address of a host whose door is kept, and who keeps it."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        Identity(bytes(32)).save(Path(folder) / "host")
        config, keeper = DaemonConfig(Path(folder) / "host", runtime_parent=Path(folder)), Keeper()
        config.door.keeper = keeper
        daemon = runner.run(Daemon.start(config))
        (address,) = runner.run(daemon.visible_addresses())
        over = asyncio.Event()
        thread = Thread(target=runner.run, args=[over.wait()])
        thread.start()
        yield address, keeper
        runner.get_loop().call_soon_threadsafe(over.set)
        thread.join()
        runner.run(daemon.close())


def test_a_closed_port_is_told_and_an_open_one_is_asked(kept: tuple[PeerAddress, Keeper], free_port: int) -> None:
    address, keeper = kept
    with pytest.raises(NetworkError, match=f"nobody answers at 127.0.0.1:{free_port}"):
        first_call(Invite(bytes(32), PEER, at(f"/ip4/127.0.0.1/tcp/{free_port}")))
    with pytest.raises(UsageError, match="the line holds no invitation"):
        first_call(Invite(bytes(32), PEER, (address,)))
    keeper.opens = True
    first_call(Invite(bytes(32), PEER, (address,)))


def test_where_a_key_may_be_known_by_name_the_door_is_asked_under_that_key_later(
    kept: tuple[PeerAddress, Keeper], tmp_path: Path
) -> None:
    address, _ = kept
    Identity(bytes([1]) * 32).save(tmp_path / "key")
    first_call(Invite(bytes(32), PEER, (address,)), tmp_path / "key")
    named = Grant(key=Identity(bytes([1]) * 32).peer_id, role="trainer")
    ticket = Ticket(word=sign_grant(Identity(bytes(32)), bytes(32), named))
    first_call(Invite(bytes(32), PEER, (address,), ticket=ticket))


@pytest.fixture
def nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports these fails."""
    for module in HEAVY:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(PagesAt, "check", lambda _: None)  # another dashboard may be served here


@pytest.mark.usefixtures("nothing_heavy")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_for_a_dead_invite_ends_before_it_begins(
    words: list[str], free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    invite = str(Invite(bytes(32), PEER, at(f"/ip4/127.0.0.1/tcp/{free_port}")))
    assert main.run([*words, invite], PYTHON) == 1
    assert f"nobody answers at 127.0.0.1:{free_port}" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_heavy")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_no_door_lets_in_ends_before_it_begins(
    words: list[str], kept: tuple[PeerAddress, Keeper], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invite = str(Invite(bytes(32), PEER, kept[:1]))
    assert main.run([*words, "--data", str(tmp_path), invite], PYTHON) == 2
    assert "the line holds no invitation" in capsys.readouterr().err


def test_the_doctor_says_what_was_tried_and_goes_on(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "Probe", None)
    monkeypatch.setattr(doctor, "check_machine", lambda *_: [DiagnosisLine("ok", "disk", "large")])
    invite = str(Invite(bytes(32), PEER, at(f"/ip4/127.0.0.1/tcp/{free_port}")))
    assert main.run(["doctor", "--json", "--data", str(tmp_path), invite], PYTHON) == 1
    network, disk = json.loads(capsys.readouterr().out)["findings"]
    assert (network["grade"], network["subject"], disk["grade"]) == ("bad", "network", "ok")
    assert network["text"] == f"nobody answers at 127.0.0.1:{free_port}"
    assert network["advice"].startswith("this invite works on the host's own machine only")


def test_the_door_is_asked_without_what_a_peer_loads_to_run() -> None:
    heavy = "{'hivemind', 'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    assert (
        subprocess.check_output([sys.executable, "-c", f"import peer.net.first_call, sys; print({heavy})"])
        == b"set()\n"
    )
