"""What a peer shows others, and whom it lets in: one door for streams, calls, records and searches (docs/adr/0061).

It is open until somebody who knows the run gives it a keeper. A peer that has not shown a pass is refused everywhere
but here: it *knocks*, on a stream of its own, shows its pass, and is told in one word why it is not let in, if it is
not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dht.admission import PASS_BYTES_MAX
from dht.allowance import Turns
from dht.errors import PeerError
from dht.identity import PeerId
from dht.refusal import Refusal
from dht.wire import PROTOCOL_MAJOR

KNOCK = f"muster/{PROTOCOL_MAJOR}/door"
KNOCK_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 32
WELCOME = b"welcome"
KNOCKING_MAX = 64  # at once, of peers that we do not know
KNOCKS_EACH_PER_SECOND = 1.0
KNOCKS_EACH_AT_ONCE = 8
KNOCKS_PER_SECOND = 64.0  # of all together: one costs us two signatures at most, and its sender a connection
KNOCKERS_KEPT = 1024

Show = Callable[[PeerId], bytes]


class Keeper(Protocol):
    """Who knows the run and may come in."""

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        """Why a peer that shows this is not let in."""
        ...

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        """Whether this was a pass of the peer's at any time: what all peers say alike, whatever they have heard."""
        ...

    def knows(self, peer: PeerId) -> bool:
        """Whether a peer may come in, by what it has shown before."""
        ...


class Door:
    """One peer's door. `show` gives the pass of a key that is ours: the peer's own, or one made for a question."""

    def __init__(self, show: Show = lambda _: b"") -> None:
        self.show = show
        self.keeper: Keeper | None = None
        self.told: Refusal | None = None  # what we were told last at others' doors
        self._turns = Turns(KNOCKS_EACH_PER_SECOND, KNOCKS_EACH_AT_ONCE, KNOCKS_PER_SECOND, KNOCKERS_KEPT)
        self._knocking = 0

    def refusal(self, peer: str, shown: bytes) -> Refusal | None:
        """Why a peer that shows this is not let in; None if it is."""
        return None if self.keeper is None else self.keeper.refusal(PeerId(peer), shown)

    def proves(self, peer: str, shown: bytes) -> bool:
        """Whether records of this peer that carry this may be believed by anybody."""
        return self.keeper is None or self.keeper.proves(PeerId(peer), shown)

    def knows(self, peer: str) -> bool:
        """Whether a peer may come in that shows nothing now."""
        return self.keeper is None or self.keeper.knows(PeerId(peer))

    async def answer(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody knocks."""
        caller = info.peer_id.to_base58()
        known = self.knows(caller)
        if not known and (
            self._knocking >= KNOCKING_MAX or not self._turns.take(caller, asyncio.get_running_loop().time())
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
        """What another door has answered us."""
        self.told = None
        with suppress(ValueError):
            self.told = Refusal(answer.decode("ascii", "replace"))
        return self.told


def framed(data: bytes) -> bytes:
    """A word as it is said at a door."""
    return len(data).to_bytes(2, "big") + data


async def read_word(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """The word that comes; raises PeerError if it is too long, EOFError at the end."""
    length = int.from_bytes(await reader.readexactly(2), "big")
    if length > bytes_max:
        raise PeerError("a longer word than anybody says at a door")
    return await reader.readexactly(length)
