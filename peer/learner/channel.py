"""The learner's end of the socket to its peer."""

from __future__ import annotations

import socket

from dht.errors import LocalError
from peer.learner.messages import LENGTH_BYTES, Message, decode_frame, encode_frame, frame_length
from peer.machine.timed_wait import wait_for

UNSENT_BYTES_MAX = 1 << 20
RECEIVE_BYTES = 1 << 16


class PeerGoneError(LocalError):
    """The peer closed its end of the socket: there is nobody to train for."""


class Channel:
    """The learner's end of the socket. No method blocks unless asked to."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._received = bytearray()
        self._unsent = bytearray()

    @property
    def is_idle(self) -> bool:
        """True if everything sent so far has left this process."""
        return not self._unsent

    def receive(self, wait_seconds: float | None) -> list[Message]:
        """Return all complete messages, after waiting up to `wait_seconds` for one; None waits without a limit.

        Raises PeerGoneError at the end of the stream.
        """
        if wait_seconds is None or wait_seconds > 0:
            wait_for(self._socket.fileno(), wait_seconds, writable=bool(self._unsent))
        self.flush()
        try:
            while data := self._socket.recv(RECEIVE_BYTES):
                self._received += data
            raise PeerGoneError("the peer is gone")
        except BlockingIOError:
            pass
        except OSError:  # the peer was killed before it read everything that we sent
            raise PeerGoneError("the peer is gone") from None
        messages = []
        while (frame := self._next_frame()) is not None:
            messages.append(decode_frame(frame))
        return messages

    def _next_frame(self) -> bytes | None:
        if len(self._received) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + frame_length(bytes(self._received[:LENGTH_BYTES]))
        if len(self._received) < end:
            return None
        frame = bytes(self._received[LENGTH_BYTES:end])
        del self._received[:end]
        return frame

    def send(self, message: Message) -> None:
        """Send, or buffer what the socket does not take now; raises LocalError if the peer reads nothing for long."""
        self._unsent += encode_frame(message)
        self.flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise LocalError("the peer does not read what its learner sends")

    def flush(self) -> None:
        """Send the buffered bytes, as far as the socket takes them."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            raise PeerGoneError("the peer is gone") from None
