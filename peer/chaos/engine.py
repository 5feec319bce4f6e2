"""The part of the container engine's API that chaos needs: HTTP over its socket, so that no client is needed."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dht.errors import LocalError

SOCKET = Path("/var/run/docker.sock")
TIMEOUT_SECONDS = 60.0
REPLY_BYTES_MAX = 16 << 20


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class ContainerEngine:
    """A client of the engine; methods raise LocalError if the engine refuses, or if there is none."""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path

    def get(self, place: str, **query: Any) -> Any:
        """Return the answer to a GET request; query values other than text are sent as JSON."""
        return json.loads(self._ask("GET", place, query=query))

    def post(self, place: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Return the answer to a POST request; None if it is empty."""
        reply = self._ask("POST", place, body, query)
        return json.loads(reply) if reply else None

    def delete(self, place: str) -> None:
        self._ask("DELETE", place)

    def run(self, container: str, *words: str) -> str:
        """Run a command inside a running container; returns its output."""
        made = self.post(f"/containers/{container}/exec", {"Cmd": words, "AttachStdout": True, "Tty": True})
        printed = self._ask("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": True}).decode().strip()
        code = self.get(f"/exec/{made['Id']}/json")["ExitCode"]
        if code != 0:
            raise LocalError(f"{' '.join(words)} in the container {container[:12]}: {printed or code}")
        return printed

    def _ask(
        self, method: str, place: str, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None
    ) -> bytes:
        words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (query or {}).items()}
        connection = _Connection(self._path)
        try:
            connection.request(
                method,
                f"{place}?{urlencode(words)}" if words else place,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            reply = answer.read(REPLY_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise LocalError(f"no container engine answers at {self._path}: {error}") from None
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise LocalError(f"the container engine refuses {method} {place}: {_reason(reply)}")
        return reply


def _reason(reply: bytes) -> str:
    try:
        return str(json.loads(reply)["message"])
    except (ValueError, KeyError, TypeError):
        return reply.decode(errors="replace").strip()
