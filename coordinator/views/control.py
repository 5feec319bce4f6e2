"""The control client of a peer on this machine: one JSON line each way over a Unix socket only its owner can open.

The client lives here so that the dashboard can use it; the server is in `peer.service.control_server`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from coordinator.views.members import MemberList
from coordinator.views.owner_limits import OwnerLimits
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError

SOCKET_NAME = "control.sock"
REPLY_BYTES_MAX = 8 << 20
TIMEOUT_SECONDS = 10.0
FINAL_SECONDS_MAX = 180.0  # a host evaluates once more, for at most half of this time
SAVE_SECONDS_MAX = 600.0  # of a large model, on a slow disk

Model = TypeVar("Model", bound=BaseModel)
Command = Literal[
    "status",
    "invite",
    "look",
    "pause",
    "resume",
    "drain",
    "final",
    "stop",
    "save",
    "credit",
    "limits",
    "members",
    "revoke",
    "readmit",
    "deputise",
    "accept",
]

OF_ORGANISERS: frozenset[Command] = frozenset({"invite", "revoke", "readmit", "deputise", "accept"})


@dataclass(frozen=True, slots=True)
class Request:
    """A command for a peer, with its arguments in `changes`.

    `limits` takes changes as `KEY=VALUE`, like `--limit`; `revoke` and `readmit` take a peer and a reason; `look` takes
    the key of the owner's observer.
    """

    command: Command
    changes: tuple[str, ...] = ()


class PeerNotRunningError(LocalError):
    """No peer is running with this data directory."""


class UnreadyError(PeerNotRunningError):
    """A peer is there, but can only say what it is doing; a reply has that under `reply_key`."""

    reply_key: ClassVar[str]

    def __init__(self, doing: str, sentence: str) -> None:
        super().__init__(sentence)
        self.doing = doing


class StartingError(UnreadyError):
    """The peer is still starting; `doing` is empty if it is not known."""

    reply_key = "starting"

    def __init__(self, doing: str) -> None:
        super().__init__(doing, "the peer here is still starting" + (f": it {doing}" if doing else "; ask again soon"))


class EndingError(UnreadyError):
    """The peer is ending."""

    reply_key = "ending"

    def __init__(self, doing: str) -> None:
        super().__init__(doing, f"the peer here is ending: it {doing}")


def ask(
    data_directory: Path, command: Command, timeout_seconds: float = TIMEOUT_SECONDS, changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Send a command to the peer with this data directory and return its reply.

    Raises PeerNotRunningError if no peer runs there, or it is starting or ending; UsageError if the command makes no
    sense; LocalError if the peer does not answer or reports a failure.
    """
    path = data_directory / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        try:
            _connect(connection, path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            start = "muster host RUN_FILE" if command in OF_ORGANISERS else "muster join INVITE"
            told = f"no peer is running with data directory {data_directory}; start one with: {start}"
            raise PeerNotRunningError(told) from None
        except OSError as error:
            raise LocalError(f"the control socket {path} cannot be opened: {error}") from None
        try:
            connection.sendall(_line(command, changes))
            reply = _read_line(connection, timeout_seconds)
        except OSError:
            raise LocalError(f"the peer with data directory {data_directory} does not answer") from None
    if not isinstance(reply, dict):
        raise LocalError("the peer gave an answer that is not an object")
    for unready in (StartingError, EndingError):
        if unready.reply_key in reply:
            raise unready(str(reply[unready.reply_key]))
    if "error" in reply:
        raise (UsageError if reply.get("usage") is True else LocalError)(str(reply["error"]))
    return reply


def snapshot(data_directory: Path, command: Literal["status", "final"] = "status") -> PeerSnapshot:
    """Return the peer's snapshot of itself; with `final`, its digests are hashed from the tensors."""
    seconds = TIMEOUT_SECONDS if command == "status" else FINAL_SECONDS_MAX
    return _told(PeerSnapshot, "snapshot", ask(data_directory, command, seconds))


def limits(data_directory: Path, changes: Sequence[str] = (), timeout_seconds: float = TIMEOUT_SECONDS) -> OwnerLimits:
    """Make these changes to the owner's limits and return them all; raises UsageError if a change is refused."""
    return _told(OwnerLimits, "limits", ask(data_directory, "limits", timeout_seconds, changes))


def members_of(data_directory: Path) -> MemberList:
    """Return the members of the run that the peer with this folder knows; raises what `ask` raises."""
    return _told(MemberList, "members", ask(data_directory, "members"))


def _told(model: type[Model], name: str, reply: dict[str, Any]) -> Model:
    """Return the model that a reply holds under this name; raises LocalError if it does not."""
    try:
        return model.model_validate(reply[name])
    except (KeyError, ValidationError):
        raise LocalError("the peer speaks another version of the control protocol; restart it") from None


def _line(command: Command, changes: Sequence[str]) -> bytes:
    return json.dumps({"command": command} | ({"changes": list(changes)} if changes else {})).encode() + b"\n"


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect through the folder's descriptor: a socket address may be 107 bytes long, a path much longer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _read_line(connection: socket.socket, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> Any:
    """Read one line of JSON; raises TimeoutError if it is late, LocalError if it is too long or no JSON."""
    ends, buffer = clock() + timeout_seconds, bytearray()
    while not buffer.endswith(b"\n"):
        remaining_seconds = ends - clock()
        if remaining_seconds <= 0:
            raise TimeoutError("its answer only trickles in")
        connection.settimeout(remaining_seconds)
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError("it ended, or has too many others to answer")
        buffer += chunk
        if len(buffer) > REPLY_BYTES_MAX:
            raise LocalError("the peer's answer is too long")
    try:
        return json.loads(buffer)
    except ValueError:
        raise LocalError("the peer's answer is not JSON") from None
