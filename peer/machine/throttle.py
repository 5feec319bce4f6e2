"""Rates of bytes out and in at one peer: the owner's limits, over all other peers together.

Small messages never wait: they are counted, and bulk waits longer for them. Bulk frames go out one after the other,
because a frame that shares a narrow link with all others would miss its receiver's deadline.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from typing import Protocol

from dht.allowance import Allowance, StrangersShare

BURST_SECONDS = 0.1  # after a rest, bytes for this time at the full rate may go at once
SLICE_SECONDS = 0.05
SLICE_BYTES_MIN = 4 << 10
SLICE_BYTES_MAX = 256 << 10
STRANGERS_BYTES_PER_SECOND = float(1 << 20)  # answers to all of them; four peers that join a full swarm read as much
STRANGERS_BYTES_AT_ONCE = float(32 << 20)
SHUT_SECONDS = 5.0  # between two looks of a reader whose gate is shut


class TokenBucket(Allowance):
    """An allowance of bytes, with a slice size that keeps the rate even."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__(bytes_per_second, bytes_per_second * BURST_SECONDS)
        self.bytes_per_second = bytes_per_second

    @property
    def slice_bytes(self) -> int:
        """Maximum number of bytes to take at once."""
        return int(min(max(self.bytes_per_second * SLICE_SECONDS, SLICE_BYTES_MIN), SLICE_BYTES_MAX))


class Sender(Protocol):
    """A stream with bulk to send; `proceed` tells it that it may."""

    def proceed(self) -> None: ...


class UploadGate:
    """Lets bulk out at the owner's rate; a frame that was begun goes before one that was not."""

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self._bucket = TokenBucket(bytes_per_second)
        self._waiting: OrderedDict[Sender, None] = OrderedDict()
        self._turn: Sender | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._shut = False

    @property
    def bytes_per_second(self) -> float:
        """The rate; infinity without a limit."""
        return self._bucket.bytes_per_second

    def limit(self, bytes_per_second: float) -> None:
        """Use another rate from now on."""
        self._bucket = TokenBucket(bytes_per_second)
        if self._timer is not None:  # it was set for the old rate
            self._timer.cancel()
            self._timer = None
        self._arm()

    @property
    def slice_bytes(self) -> int:
        """Maximum number of bytes to send between two calls of `admits`."""
        return self._bucket.slice_bytes

    @property
    def shut(self) -> bool:
        """Whether bulk is stopped."""
        return self._shut

    @shut.setter
    def shut(self, shut: bool) -> None:
        self._shut = shut
        self._arm()

    def admits(self, sender: Sender, begun: bool) -> bool:
        """Whether `sender` may send a slice now; if not, its `proceed` is called when it may."""
        now = asyncio.get_running_loop().time()
        free = sender is self._turn or begun or not self._waiting
        if free and not self._shut and not self._bucket.wait_seconds(now):
            self._turn = None
            return True
        self._waiting[sender] = None
        if begun or sender is self._turn:
            self._waiting.move_to_end(sender, last=False)
        self._turn = None
        self._arm()
        return False

    def sent(self, size_bytes: int) -> None:
        """Count bytes sent, in either lane."""
        self._bucket.take(size_bytes, asyncio.get_running_loop().time())

    def leave(self, sender: Sender) -> None:
        """Remove a sender that has nothing more to send."""
        self._waiting.pop(sender, None)

    def _arm(self) -> None:
        if self._waiting and not self._shut and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._bucket.wait_seconds(loop.time()), self._next)

    def _next(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if self._waiting and not self._shut and not self._bucket.wait_seconds(now):
            self._turn, _ = self._waiting.popitem(last=False)
            self._turn.proceed()
            self._turn = None
        self._arm()


class DownloadGate:
    """Tells readers of bulk how long to rest after a read; the network then holds back the senders."""

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self._bucket = TokenBucket(bytes_per_second)
        self.shut = False  # while true, no bulk is read

    def limit(self, bytes_per_second: float) -> None:
        """Use another rate from now on."""
        self._bucket = TokenBucket(bytes_per_second)

    @property
    def slice_bytes(self) -> int:
        """Maximum number of bytes to read at once."""
        return self._bucket.slice_bytes

    def received(self, size_bytes: int, now: float) -> None:
        """Count bytes received, in either lane."""
        self._bucket.take(size_bytes, now)

    def wait_seconds(self, now: float) -> float:
        """Return how long to rest before reading more bulk; 0 for no rest."""
        return SHUT_SECONDS if self.shut else self._bucket.wait_seconds(now)


class _Turn:
    """A `Sender` that sends once."""

    def __init__(self, gate: UploadGate, size_bytes: int) -> None:
        self._gate = gate
        self._size_bytes = size_bytes
        self.taken = asyncio.get_running_loop().create_future()

    def proceed(self) -> None:
        if not self.taken.done() and self._gate.admits(self, begun=False):
            self._gate.sent(self._size_bytes)
            self.taken.set_result(None)


class Throttle:
    """The gates of one peer for both directions, and the share of strangers."""

    def __init__(self, upload: float = math.inf, download: float = math.inf) -> None:
        self.upload = UploadGate(upload)
        self.download = DownloadGate(download)
        self.strangers = StrangersShare(STRANGERS_BYTES_PER_SECOND, STRANGERS_BYTES_AT_ONCE)

    async def wait_for_relayed(self, size_bytes: int) -> None:
        """Wait until this much relayed traffic may come in and go out; it takes turns with our own bulk."""
        turn = _Turn(self.upload, size_bytes)
        turn.proceed()
        try:
            await turn.taken
        finally:
            self.upload.leave(turn)
        loop = asyncio.get_running_loop()
        self.download.received(size_bytes, loop.time())
        await asyncio.sleep(self.download.wait_seconds(loop.time()))

    def limit(self, upload: float, download: float) -> None:
        """Use other rates from now on; debts at the old ones are forgiven."""
        self.upload.limit(upload)
        self.download.limit(download)
