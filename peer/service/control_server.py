"""The server of the peer's control socket. Only its owner can open it, and requests are bounded in size and time.

The client is `coordinator.views.control`. There is one JSON line each way: `{"command": …}`, then an object with the
answer or an `error`. An error has `usage` if the client is to blame, `starting` or `ending` if the peer is not ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import structlog

from coordinator.views.control import SOCKET_NAME, Command, Request, UnreadyError
from dht.errors import LocalError, MusterError, UsageError

Answer = dict[str, Any]
Handler = Callable[[Request], Awaitable[Answer]]

REQUEST_BYTES_MAX = 4096
REQUEST_SECONDS_MAX = 5.0
CHANGES_MAX = 64
CONNECTIONS_MAX = 16
CLOSE_SECONDS_MAX = 5.0
_COMMANDS: dict[str, Command] = {name: name for name in get_args(Command)}

log = structlog.get_logger()


class ControlServer:
    """A server that answers commands until it is closed."""

    def __init__(self, data_directory: Path, handler: Handler) -> None:
        self._path = data_directory / SOCKET_NAME
        self._handler = handler
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._directory = -1  # open as long as the server, whose address leads through it

    @classmethod
    async def start(cls, data_directory: Path, handler: Handler) -> ControlServer:
        """Listen in this directory and replace a stale socket there.

        Raises UsageError if another process answers there, LocalError if no socket can be made.
        """
        server = cls(data_directory, handler)
        try:
            server._directory = os.open(data_directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            listener = _listen(server._path, f"/proc/self/fd/{server._directory}/{SOCKET_NAME}")
        except OSError as error:
            raise LocalError(f"no control socket can be made in {data_directory}: {error.strerror}") from None
        server._server = await asyncio.start_unix_server(server._accept, sock=listener, limit=REQUEST_BYTES_MAX)
        return server

    async def close(self) -> None:
        """Wait for the conversations under way, within a bound, and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        with suppress(OSError):  # the disk may refuse; the next server here removes the socket
            self._path.unlink(missing_ok=True)
        await self.settle()
        self._server = None
        os.close(self._directory)

    async def settle(self) -> None:
        """Wait for the conversations under way, within a bound."""
        if self._conversations:
            _, late = await asyncio.wait(self._conversations, timeout=CLOSE_SECONDS_MAX)
            for conversation in late:
                conversation.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= CONNECTIONS_MAX:
            writer.close()
            return
        conversation = asyncio.create_task(self._converse(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader)
            writer.write(json.dumps(answer).encode() + b"\n")
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = _parse(await reader.readline())
        except ValueError:  # also a line over the limit
            return {"error": f"a request is one line of JSON of at most {REQUEST_BYTES_MAX} bytes"}
        if request is None:
            return {"error": f"there is no such command; known are {', '.join(sorted(_COMMANDS))}"}
        try:
            return await self._handler(request)
        except UnreadyError as error:
            return {"error": str(error), error.reply_key: error.doing}
        except UsageError as error:
            return {"error": str(error), "usage": True}
        except MusterError as error:
            return {"error": str(error)}
        except Exception:
            log.exception("control command failed", command=request.command)
            return {"error": f"the command {request.command} failed in the peer; its log says why"}


def _parse(line: bytes) -> Request | None:
    """Parse a request; None if its command is not known. Raises ValueError if the line is not a request."""
    try:
        request = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(request, dict) or not isinstance(request.get("command"), str):
        raise ValueError("not an object with a command")
    changes = request.get("changes", [])
    if not isinstance(changes, list) or len(changes) > CHANGES_MAX or not all(isinstance(one, str) for one in changes):
        raise ValueError("changes are a short list of texts")
    command = _COMMANDS.get(request["command"])
    return None if command is None else Request(command, tuple(changes))


def _listen(path: Path, short: str) -> socket.socket:
    """Make a listening socket for its owner only; raises OSError.

    Before it listens nobody can connect, so the mode that `bind` gives it does no harm. `short` is another name of
    `path`: a socket's address has room for only 107 bytes.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path, short)
        listener.bind(short)
        path.chmod(0o600)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path, short: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(REQUEST_SECONDS_MAX)
        try:
            probe.connect(short)
        except FileNotFoundError:
            return
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UsageError(f"another muster process already runs with data directory {path.parent}; stop it first")
