"""How fast bytes may go out and come in at one peer: the owner's limits, over all other peers together.

Small messages never wait: they are counted, and bulk waits the longer for them. Bulk frames go out one after the other,
because a frame that shared a narrow link with all others would miss the deadline that its receiver sets it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from typing import Protocol

from dht.allowance import Allowance, StrangersShare

BURST_SECONDS = 0.1  # what may go at once after a rest, at the full rate
SLICE_SECONDS = 0.05
SLICE_BYTES_MIN = 4 << 10
SLICE_BYTES_MAX = 256 << 10
STRANGERS_BYTES_PER_SECOND = float(1 << 20)  # answers to all of them; four that join a full swarm read as much
STRANGERS_BYTES_AT_ONCE = float(32 << 20)
SHUT_SECONDS = 5.0  # between two looks of a reader whose gate is shut


class TokenBucket(Allowance):
    """An allowance of bytes, with what to take at once so that the rate is even."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__(bytes_per_second, bytes_per_second * BURST_SECONDS)
        self.bytes_per_second = bytes_per_second

    @property
    def slice_bytes(self) -> int:
        """The most to take at once."""
        return int(min(max(self.bytes_per_second * SLICE_SECONDS, SLICE_BYTES_MIN), SLICE_BYTES_MAX))


class Sender(Protocol):
    """Something that has bulk to send, and comes back when it is told that it may."""

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
        """Infinity without a limit."""
        return self._bucket.bytes_per_second

    def limit(self, bytes_per_second: float) -> None:
        """Another rate from now on."""
        self._bucket = TokenBucket(bytes_per_second)
        if self._timer is not None:  # it was set for another rate
            self._timer.cancel()
            self._timer = None
        self._arm()

    @property
    def slice_bytes(self) -> int:
        """The most to send between two questions."""
        return self._bucket.slice_bytes

    @property
    def shut(self) -> bool:
        """While shut, no bulk goes out."""
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
        """So much went out, in whichever lane."""
        self._bucket.take(size_bytes, asyncio.get_running_loop().time())

    def leave(self, sender: Sender) -> None:
        """It has nothing to send any more."""
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
    """Says how long readers of bulk have to rest after what they have read; the network then holds back its senders."""

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self._bucket = TokenBucket(bytes_per_second)
        self.shut = False  # while shut, no bulk is read

    def limit(self, bytes_per_second: float) -> None:
        """Another rate from now on."""
        self._bucket = TokenBucket(bytes_per_second)

    @property
    def slice_bytes(self) -> int:
        """The most to read at once."""
        return self._bucket.slice_bytes

    def received(self, size_bytes: int, now: float) -> None:
        """So much came in, in whichever lane."""
        self._bucket.take(size_bytes, now)

    def wait_seconds(self, now: float) -> float:
        """How long to rest before more bulk is read; 0 for not at all."""
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
    """Both directions of one peer."""

    def __init__(self, upload: float = math.inf, download: float = math.inf) -> None:
        self.upload = UploadGate(upload)
        self.download = DownloadGate(download)
        self.strangers = StrangersShare(STRANGERS_BYTES_PER_SECOND, STRANGERS_BYTES_AT_ONCE)

    async def pass_on(self, size_bytes: int) -> None:
        """Wait until so much of others' may come in and go out: it has its turn like bulk of our own."""
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
        """Other rates from now on; what was owed at the old ones is forgiven."""
        self.upload.limit(upload)
        self.download.limit(download)
