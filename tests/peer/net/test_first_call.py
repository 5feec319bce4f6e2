"""Whether anybody listens where an invite says: told within the time of one call, however many places it names."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from dht.addresses import PeerAddress
from dht.errors import NetworkError
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import main
from peer.net import probe
from peer.net.first_call import check_somebody_listens, somebody_listens
from tests.peer.virtual_loop import run_virtual

PEER = Identity(bytes(32)).peer_id
PYTHON = (3, 11)
PEOPLE_WAIT_SECONDS = 15.0


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
        assert not await somebody_listens(EIGHT, probe.answers)
        return asyncio.get_running_loop().time()

    assert run_virtual(course()) == probe.CALL_SECONDS_MAX < PEOPLE_WAIT_SECONDS / 2


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


def test_a_closed_port_is_told_and_an_open_one_is_not(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_somebody_listens(at(f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"))
    with pytest.raises(NetworkError, match=f"nobody answers at 127.0.0.1:{free_port}"):
        check_somebody_listens(at(f"/ip4/127.0.0.1/tcp/{free_port}"))


@pytest.mark.parametrize("words", [["top"], ["top", "--once"], ["join", "--yes"]])
def test_a_command_for_a_dead_invite_ends_before_it_begins(
    words: list[str], free_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    invite = str(Invite(bytes(32), PEER, at(f"/ip4/127.0.0.1/tcp/{free_port}")))
    for module in ("peer.observer.process", "peer.node.node", "peer.cli.consent"):
        monkeypatch.setitem(sys.modules, module, None)  # whoever imports them fails
    assert main.run([*words, invite], PYTHON) == 1
    assert f"nobody answers at 127.0.0.1:{free_port}" in capsys.readouterr().err
