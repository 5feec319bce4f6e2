"""The first call by an invite: it tells quickly, before any heavy import, whether a peer answers and admits us."""

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
from peer.machine.paths import IDENTITY_NAME
from peer.net.first_call import any_endpoint_answers, first_call
from peer.observer.access import ObserverAccess
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
    """Act as a host that takes every packet and answers none."""
    await asyncio.Event().wait()


def test_silence_everywhere_is_told_within_the_time_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "open_connection", silent)

    async def course() -> float:
        assert not await any_endpoint_answers(EIGHT, meeting.answers)
        return asyncio.get_running_loop().time()

    assert run_virtual(course()) == meeting.CALL_SECONDS_MAX < PEOPLE_WAIT_SECONDS / 2


def test_one_place_that_answers_is_enough() -> None:
    async def call(host: str, port: int) -> bool:
        await asyncio.sleep(60.0 if port == 1 else 2.0)
        return host == "8.8.8.3"

    async def course() -> float:
        assert await any_endpoint_answers(EIGHT, call)
        return asyncio.get_running_loop().time()

    assert run_virtual(course()) < PEOPLE_WAIT_SECONDS / 2


@pytest.mark.parametrize("place", ["/dns4/a.example/tcp/1", "/ip4/8.8.8.8/udp/1"])
def test_an_address_that_only_the_daemon_can_call_is_left_to_it(place: str) -> None:
    async def call(host: str, port: int) -> bool:
        raise AssertionError

    assert run_virtual(any_endpoint_answers([*EIGHT, *at(place)], call))


class Keeper:
    """A doorkeeper that lets in nobody, or everybody."""

    opens = False

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        return None if self.opens else Refusal.NO_PASS

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        return self.opens

    def knows(self, peer: PeerId) -> bool:
        return self.opens


@pytest.fixture
def kept() -> Iterator[tuple[PeerAddress, Keeper]]:
    """Yield the address of a host with a doorkeeper, and the doorkeeper."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        Identity(bytes(32)).save(Path(folder) / "host")
        config, keeper = DaemonConfig(Path(folder) / "host", runtime_parent=Path(folder)), Keeper()
        config.door.policy = keeper
        daemon = runner.run(Daemon.start(config))
        (address,) = runner.run(daemon.visible_addresses())
        over = asyncio.Event()
        thread = Thread(target=runner.run, args=[over.wait()])
        thread.start()
        yield address, keeper
        runner.get_loop().call_soon_threadsafe(over.set)
        thread.join()
        runner.run(daemon.close())


def test_a_closed_port_is_told_and_an_open_one_is_asked(
    kept: tuple[PeerAddress, Keeper], free_port: int, tmp_path: Path
) -> None:
    address, keeper = kept
    key = tmp_path / "none"
    with pytest.raises(NetworkError, match=f"nobody answers at 127.0.0.1:{free_port}"):
        first_call(Invite(bytes(32), PEER, at(f"/ip4/127.0.0.1/tcp/{free_port}")), key)
    with pytest.raises(UsageError, match="the line holds no invitation"):
        first_call(Invite(bytes(32), PEER, (address,)), key)
    keeper.opens = True
    first_call(Invite(bytes(32), PEER, (address,)), key)


def test_where_a_key_may_be_known_by_name_the_door_is_asked_under_that_key_later(
    kept: tuple[PeerAddress, Keeper], tmp_path: Path
) -> None:
    address, _ = kept
    Identity(bytes([1]) * 32).save(tmp_path / "key")
    first_call(Invite(bytes(32), PEER, (address,)), tmp_path / "key", looks=False)
    with pytest.raises(UsageError, match="the line holds no invitation"):
        first_call(Invite(bytes(32), PEER, (address,)), tmp_path / "key")
    first_call(named_invite(address), tmp_path / "key")


def named_invite(address: PeerAddress) -> Invite:
    """Return an invite for one peer alone."""
    grant = Grant(key=Identity(bytes([1]) * 32).peer_id)
    return Invite(bytes(32), PEER, (address,), ticket=Ticket(word=sign_grant(Identity(bytes(32)), bytes(32), grant)))


@pytest.mark.parametrize("other", [False, True])
def test_an_invite_for_another_peer_is_named_before_anybody_is_called(tmp_path: Path, other: bool) -> None:
    if other:
        Identity(bytes([2]) * 32).save(tmp_path / "key")
    with pytest.raises(UsageError, match=r"for the peer 12D3.* alone, whose key is not in the folder here"):
        first_call(named_invite(EIGHT[0]), tmp_path / "key")


def test_an_invite_for_one_peer_is_looked_at_with_its_key(tmp_path: Path) -> None:
    for_anybody, (named, anybody) = str(Invite(bytes(32), PEER, EIGHT)), (tmp_path / name for name in ("peer", "new"))
    assert ObserverAccess.by_invite(str(named_invite(EIGHT[0])), named, anybody).key == named / IDENTITY_NAME
    assert ObserverAccess.by_invite(for_anybody, named, anybody).key.parent == anybody


def test_an_invite_for_looking_is_not_joined_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = Identity(bytes([3]) * 32)
    word = sign_grant(Identity(bytes(32)), bytes(32), Grant(key=key.peer_id, role="observer"))
    line = str(Invite(bytes(32), PEER, EIGHT, ticket=Ticket(word=word, seed=bytes([3]) * 32)))
    assert main.run(["join", "--yes", "--data", str(tmp_path), line], PYTHON) == 2
    assert "lets its holder look and not take part" in capsys.readouterr().err


@pytest.fixture
def nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every import of heavy modules fail."""
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
    assert network["advice"].startswith("check that the host is running")
    assert "; this invite works on the host's own machine only" in network["advice"]


def test_the_door_is_asked_without_what_a_peer_loads_to_run() -> None:
    heavy = "{'hivemind', 'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    assert (
        subprocess.check_output([sys.executable, "-c", f"import peer.net.first_call, sys; print({heavy})"])
        == b"set()\n"
    )
