"""One admission check for streams, calls, records and searches: a peer's door (docs/adr/0061).

The door is open until code that knows the run gives it a policy. After that, a peer that has not shown a pass is
refused everywhere but here. It *knocks*: it shows its pass on a stream of its own, and is told in one word whether it
is let in or why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dht.admission import PASS_BYTES_MAX
from dht.allowance import CallerLimits
from dht.errors import PeerError
from dht.identity import PeerId
from dht.refusal import Refusal
from dht.wire import PROTOCOL_MAJOR

KNOCK = f"muster/{PROTOCOL_MAJOR}/door"
KNOCK_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 32
WELCOME = b"welcome"
KNOCKING_MAX = 64  # at once, of unknown peers
KNOCKS_EACH_PER_SECOND = 1.0
KNOCKS_EACH_AT_ONCE = 8
KNOCKS_PER_SECOND = 64.0  # of all peers: a knock costs us two signature checks at most, and its sender a connection
KNOCKERS_KEPT = 1024

Show = Callable[[PeerId], bytes]


class AdmissionPolicy(Protocol):
    """The rule of a run that decides which peers are let in."""

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        """Return the reason to refuse a peer that shows this pass; None if it is let in."""
        ...

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        """Whether this was ever a pass of this peer; all peers agree on that, whatever orders they have heard."""
        ...

    def knows(self, peer: PeerId) -> bool:
        """Whether a peer may come in by the pass that it showed before."""
        ...


class Door:
    """One peer's door. `show` returns the pass of a key of ours: the peer's own, or that of a short-lived caller."""

    def __init__(self, show: Show = lambda _: b"") -> None:
        self.show = show
        self.policy: AdmissionPolicy | None = None
        self.told: Refusal | None = None  # the last refusal by another peer's door
        self._limits = CallerLimits(KNOCKS_EACH_PER_SECOND, KNOCKS_EACH_AT_ONCE, KNOCKS_PER_SECOND, KNOCKERS_KEPT)
        self._knocking = 0

    def refusal(self, peer: str, shown: bytes) -> Refusal | None:
        """Return the reason to refuse a peer that shows this pass; None if it is let in."""
        return None if self.policy is None else self.policy.refusal(PeerId(peer), shown)

    def proves(self, peer: str, shown: bytes) -> bool:
        """Whether any peer may believe this peer's records that carry this pass."""
        return self.policy is None or self.policy.proves(PeerId(peer), shown)

    def knows(self, peer: str) -> bool:
        """Whether a peer may come in without showing a pass now."""
        return self.policy is None or self.policy.knows(PeerId(peer))

    async def answer(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a peer that knocks: read its pass, and say whether it is let in or why not."""
        caller = info.peer_id.to_base58()
        known = self.knows(caller)
        if not known and (
            self._knocking >= KNOCKING_MAX or not self._limits.take(caller, asyncio.get_running_loop().time())
        ):
            writer.transport.abort()
            return
        self._knocking += not known
        try:
            with suppress(OSError, EOFError, PeerError):  # a TimeoutError is an OSError
                async with asyncio.timeout(KNOCK_SECONDS_MAX):
                    refused = self.refusal(caller, await read_word(reader, PASS_BYTES_MAX))
                    writer.write(framed(WELCOME if refused is None else refused.value.encode()))
                    await writer.drain()
                    await reader.read(1)  # until the other side has read it
        finally:
            self._knocking -= not known
            writer.transport.abort()

    def hear(self, answer: bytes) -> Refusal | None:
        """Decode another door's answer and keep it in `told`; None if we are let in."""
        self.told = None
        with suppress(ValueError):
            self.told = Refusal(answer.decode("ascii", "replace"))
        return self.told


def framed(data: bytes) -> bytes:
    """Return a word in the form that doors exchange: two bytes of length, then the word."""
    return len(data).to_bytes(2, "big") + data


async def read_word(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Read one word; raises PeerError if it is too long, EOFError at the end of the stream."""
    length = int.from_bytes(await reader.readexactly(2), "big")
    if length > bytes_max:
        raise PeerError("a longer word than anybody says at a door")
    return await reader.readexactly(length)
