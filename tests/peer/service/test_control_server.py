"""The control socket: who can open it, what it answers, and that no request harms the peer."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.views.control import SOCKET_NAME, Command, PeerNotRunningError, Request, ask
from dht.errors import LocalError, UsageError
from peer.service.control_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Answer, ControlServer


async def echo(request: Request) -> Answer:
    if request.command == "pause":
        raise LocalError("the learner does not answer")
    if request.command == "resume":
        raise ZeroDivisionError
    if request.command == "save":
        raise UsageError("there is no such folder")
    return {"asked": request.command} | ({"changes": list(request.changes)} if request.changes else {})


def serving(directory: Path, client: Callable[[], Awaitable[Any]]) -> Any:
    """Return the client's result, obtained while a server runs in `directory`."""

    async def scenario() -> Any:
        server = await ControlServer.start(directory, echo)
        try:
            return await client()
        finally:
            await server.close()

    return asyncio.run(scenario())


async def exchange(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(request)
    if writer.can_write_eof():
        writer.write_eof()
    reply = await reader.read()
    writer.close()
    return reply


def test_commands_are_answered_and_the_socket_goes_with_the_server(tmp_path: Path) -> None:
    reply = serving(tmp_path, lambda: asyncio.to_thread(ask, tmp_path, "invite"))
    assert reply == {"asked": "invite"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PeerNotRunningError, match="no peer is running"):
        ask(tmp_path, "status")


def test_changes_go_with_the_command(tmp_path: Path) -> None:
    reply = serving(tmp_path, lambda: asyncio.to_thread(ask, tmp_path, "limits", 5.0, ["upload_mbit=2", "hours="]))
    assert reply == {"asked": "limits", "changes": ["upload_mbit=2", "hours="]}


def test_whose_fault_it_is_comes_back(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        serving(tmp_path, lambda: asyncio.to_thread(ask, tmp_path, "save"))


def test_only_the_owner_may_open_the_socket(tmp_path: Path) -> None:
    async def mode() -> int:
        return stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode)

    assert serving(tmp_path, mode) == 0o600


@pytest.mark.parametrize(
    ("command", "sentence"),
    [("pause", "the learner does not answer"), ("resume", "the command resume failed in the peer; its log says why")],
)
def test_a_failed_command_is_told_and_does_not_end_the_server(tmp_path: Path, command: Command, sentence: str) -> None:
    async def client() -> None:
        with pytest.raises(LocalError) as caught:
            await asyncio.to_thread(ask, tmp_path, command)
        assert str(caught.value) == sentence
        assert await asyncio.to_thread(ask, tmp_path, "invite")

    serving(tmp_path, client)


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / SOCKET_NAME))
    assert serving(tmp_path, lambda: asyncio.to_thread(ask, tmp_path, "stop")) == {"asked": "stop"}


def test_a_socket_that_answers_is_left_alone(tmp_path: Path) -> None:
    async def client() -> None:
        with pytest.raises(UsageError, match="already runs"):
            await ControlServer.start(tmp_path, echo)
        assert await asyncio.to_thread(ask, tmp_path, "invite")

    serving(tmp_path, client)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no control socket can be made"):
        serving(tmp_path / "missing", lambda: asyncio.sleep(0))


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    directory = os.open(deep, os.O_PATH | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        reply = serving(deep, lambda: exchange(short, b'{"command": "invite"}\n'))
    finally:
        os.close(directory)
    assert json.loads(reply) == {"asked": "invite"}


@settings(max_examples=60)
@given(
    requests=st.lists(
        st.binary(max_size=200)
        | st.sampled_from([b'{"command": 7}\n', b'{"command": "reboot"}\n', b"[]\n", b"[" * 2000, b"x" * 9000, b""])
        | st.builds(lambda value: json.dumps({"command": value}).encode() + b"\n", st.text() | st.lists(st.none()))
        | st.builds(
            lambda value: json.dumps({"command": "limits", "changes": value}).encode() + b"\n",
            st.integers() | st.text() | st.lists(st.integers() | st.none(), min_size=1) | st.just(["x"] * 65),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_sent_gets_an_error_and_the_next_one_an_answer(
    tmp_path_factory: pytest.TempPathFactory, requests: list[bytes]
) -> None:
    directory = tmp_path_factory.mktemp("fuzz")

    async def client() -> None:
        path = directory / SOCKET_NAME
        replies = await asyncio.gather(*(exchange(path, request) for request in requests))
        assert all(list(json.loads(reply)) == ["error"] for reply in replies)
        assert json.loads(await exchange(path, b'{"command": "drain"}\n')) == {"asked": "drain"}

    serving(directory, client)


def test_a_peer_that_hangs_or_dies_within_its_answer_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()

        def die_after(answer: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(REQUEST_BYTES_MAX)
                connection.sendall(answer)

        with pytest.raises(LocalError, match=f"the peer with data directory {tmp_path} does not answer"):
            ask(tmp_path, "status", timeout_seconds=0.1)  # nobody accepts, but the kernel takes the request
        listener.accept()[0].close()
        for answer in (b"", b'{"asked": "sta'):
            dying = threading.Thread(target=die_after, args=(answer,))
            dying.start()
            with pytest.raises(LocalError, match="does not answer"):
                ask(tmp_path, "status")
            dying.join()


def test_an_answer_that_only_trickles_in_is_not_waited_for(tmp_path: Path) -> None:
    """Otherwise one byte within each wait would hold up whoever asks for as long as bytes arrive."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()
        left = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, suppress(BrokenPipeError):
                connection.recv(REQUEST_BYTES_MAX)
                for _ in range(200):
                    if not left.wait(0.01):
                        connection.sendall(b" ")
                connection.sendall(b'{"asked": "status"}\n')

        server = threading.Thread(target=trickle)
        server.start()
        with pytest.raises(LocalError, match="does not answer"):
            ask(tmp_path, "status", timeout_seconds=0.5)
        left.set()
        server.join()


def test_a_connection_that_asks_for_nothing_makes_room_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.service.control_server.REQUEST_SECONDS_MAX", 0.1)

    async def client() -> bytes:
        path = tmp_path / SOCKET_NAME
        mute = [await asyncio.open_unix_connection(str(path)) for _ in range(CONNECTIONS_MAX)]
        async with asyncio.timeout(20):
            for reader, writer in mute:
                assert await reader.read() == b"", "it is left"
                writer.close()
        return await exchange(path, b'{"command": "drain"}\n')

    assert json.loads(serving(tmp_path, client)) == {"asked": "drain"}


def test_a_long_request_is_not_read_to_its_end(tmp_path: Path) -> None:
    reply = serving(tmp_path, lambda: exchange(tmp_path / SOCKET_NAME, b"x" * (REQUEST_BYTES_MAX + 1)))
    assert str(REQUEST_BYTES_MAX) in json.loads(reply)["error"]


def test_no_more_than_so_many_may_wait_at_once(tmp_path: Path) -> None:
    async def client() -> tuple[bytes, bytes]:
        path = tmp_path / SOCKET_NAME
        idle = [await asyncio.open_unix_connection(str(path)) for _ in range(CONNECTIONS_MAX)]
        refused = await exchange(path, b"")
        idle[0][1].write(b'{"command": "drain"}\n')
        answered = await idle[0][0].read()
        for _, writer in idle:
            writer.close()
        return refused, answered

    refused, answered = serving(tmp_path, client)
    assert refused == b""
    assert json.loads(answered) == {"asked": "drain"}
