"""The peer behind a session: `python -m peer.session.process SOCKET MEMORY PARENT` (docs/reference/session.md).

It runs protocol, network and checkpoints, so that the loop of the parent process never waits for them. Its first
message names the run; from then on it is an ordinary peer whose learner is that loop.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import structlog

from dht.errors import LocalError, MusterError, UsageError
from peer.learner.attached import AttachedSession
from peer.learner.channel import Channel, PeerGoneError
from peer.learner.imports import refuse_kernels
from peer.learner.messages import TEXT_MAX, Failed, Message, SessionStart
from peer.machine import log as cli_log
from peer.machine.limits import PeerSettings
from peer.machine.paths import keep_private
from peer.node.options import NodeOptions
from peer.service import process
from peer.service.served import Start
from peer.service.trackers import tracking

log = structlog.get_logger(__name__)


def main(arguments: list[str]) -> int:
    """Entry point; returns 0 once the run is over or the session has left, else 1 after telling the session why."""
    refuse_kernels()
    connection, memory, parent = (int(argument) for argument in arguments)
    ours = socket.socket(fileno=connection)
    channel = Channel(ours.dup())
    try:
        start = _first_message(channel)
        folder = Path(start.data_directory)
        keep_private()
        cli_log.configure(folder)
        options = NodeOptions(
            data_directory=folder,
            port=start.port,
            listen_host=start.listen_host,
            announce=start.announce,
            name=start.name,
            limits=PeerSettings.load(folder).limits,
            session=AttachedSession(ours, memory, start.frozen),
        )
        served = process.ServiceOptions(folder, parent=parent, tracking=tracking(start.track or None, folder))
        process.run(lambda: _start(start, options), served, _log_line)
    except PeerGoneError:
        pass
    except Exception as error:
        reason = str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
        log.error("session_failed", exc_info=error)
        sys.stderr.write(f"{reason}\n")
        with contextlib.suppress(MusterError, OSError):
            channel.send(Failed(reason=reason[:TEXT_MAX], usage=isinstance(error, UsageError)))
        return 1
    return 0


def _first_message(channel: Channel) -> SessionStart:
    messages: list[Message] = []
    while not messages:
        messages = channel.receive(None)
    if len(messages) != 1 or not isinstance(messages[0], SessionStart):
        raise LocalError("a session says first what it takes part in")
    return messages[0]


def _start(start: SessionStart, options: NodeOptions) -> Start:
    from peer.node.node import Node

    cli_log.silence_libraries()
    config = start.config
    return lambda: Node.join(start.invite, options) if config is None else Node.host(config, options)


def _log_line(line: str) -> None:
    log.info("service", line=line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
