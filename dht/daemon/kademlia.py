"""libp2p's own Kademlia, answered by us instead of by the daemon: who is near a peer, and nothing else.

The daemon would keep provider records and values for any stranger, without end. All that Muster needs of it is where a
peer is that somebody names, so that is all that is answered: from the peers which are connected, each caller and all
together so many times a second, and within what the owner gives.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from dht.allowance import Answers, Turns
from dht.daemon.calls import DAEMON_ERRORS, raw_of
from dht.daemon.messages import BYTES, PEER, field, framed, message_class, read_message
from dht.door import Door
from dht.identity import PeerId

PROTOCOL = "/ipfs/kad/1.0.0"
REQUEST_BYTES_MAX = 1024  # a search names one peer; what carries a record is longer
NEAREST = 20  # Kademlia's bucket, which libp2p expects
ADDRESSES_EACH_MAX = 8
STREAMS_MAX = 128
STREAMS_PER_PEER_MAX = 4
IDLE_SECONDS = 60.0  # as in libp2p
ANSWERS_PER_SECOND = 8.0
ANSWERS_AT_ONCE = 64.0
ALL_ANSWERS_PER_SECOND = 256.0
CALLERS_KEPT = 1024

FIND_NODE, PING = 4, 5


# `Message` of libp2p's Kademlia: the fields that a search has
Message = message_class("kademlia", field("type", 1), field("key", 2, BYTES), field("closer", 8, PEER, many=True))


class Neighbours(Protocol):
    """Where peers are."""

    async def places(self, asked: bytes) -> Mapping[PeerId, tuple[bytes, ...]]:
        """Multiaddrs of the peers that may be named, ourselves among them; `asked` is the id that is looked for."""
        ...


def answer(request: bytes, caller: PeerId, places: Mapping[PeerId, tuple[bytes, ...]]) -> bytes | None:
    """What a caller is told; None for what nobody is answered. Pure."""
    try:
        asked = Message.FromString(request)
    except DecodeError:
        return None
    if asked.type == PING:
        return bytes(Message(type=PING).SerializeToString())
    if asked.type != FIND_NODE:
        return None
    target = _place(asked.key)
    named = {raw_of(peer): addresses for peer, addresses in places.items() if peer != caller}
    nearest = sorted(named, key=lambda one: _place(one) ^ target)[:NEAREST]
    told = Message(type=FIND_NODE)
    for one in nearest:
        told.closer.add(id=one, addrs=named[one][:ADDRESSES_EACH_MAX])
    return bytes(told.SerializeToString())


class Kademlia:
    """Answers every stream of the protocol; refuses, by closing it, peers that open too many or ask too often.

    libp2p keeps a stream that it has asked on. Where there are too many, the one that has been silent longest makes
    room: its peer opens another when it asks again, but who is refused at the door searches through us no more.
    """

    def __init__(
        self, me: PeerId, neighbours: Neighbours, clock: Callable[[], float], door: Door, answers: Answers
    ) -> None:
        self._me = me
        self._neighbours = neighbours
        self._given = answers
        self._door = door
        self._clock = clock
        self._turns = Turns(ANSWERS_PER_SECOND, ANSWERS_AT_ONCE, ALL_ANSWERS_PER_SECOND, CALLERS_KEPT)
        self._open: Counter[PeerId] = Counter()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # those that wait for a question, longest first

    async def serve(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One stream, until it is idle for long."""
        caller = PeerId(info.peer_id.to_base58())
        full = self._open.total() >= STREAMS_MAX
        if self._open[caller] >= STREAMS_PER_PEER_MAX or (full and not self._silent):
            writer.transport.abort()
            return
        if full:
            longest = next(iter(self._silent))
            del self._silent[longest]
            longest.transport.abort()
        self._open[caller] += 1
        try:
            with suppress(*DAEMON_ERRORS, ValueError):
                while await self._answer_one(caller, reader, writer):
                    pass
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # forgets peers that have none
            writer.transport.abort()

    async def _answer_one(self, caller: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._silent[writer] = None
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                request = await read_message(reader, REQUEST_BYTES_MAX)
        finally:
            self._silent.pop(writer, None)
        now = self._clock()
        if not self._given.strangers.admits(caller, now) or not self._turns.take(caller, now):
            return False
        # not refused, and not told of nobody: libp2p would ask us no more, and a peer shows its pass only now
        places = await self._neighbours.places(_asked(request)) if self._door.knows(caller) else {self._me: ()}
        told = answer(request, caller, places)
        if told is None:
            return False
        whole = framed(told)
        self._given.gave(caller, len(whole), now)
        writer.write(whole)
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
        return True


def _asked(request: bytes) -> bytes:
    """What a request looks for; nothing if it cannot be read."""
    try:
        return bytes(Message.FromString(request).key)
    except DecodeError:
        return b""


def _place(key: bytes) -> int:
    """Where a key or a peer's id lies in libp2p's Kademlia."""
    return int.from_bytes(hashlib.sha256(key).digest(), "big")
