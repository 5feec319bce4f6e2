"""libp2p's own Kademlia protocol, answered by us instead of the daemon: only searches for peers.

The daemon would store provider records and values for any stranger, without limit. Muster only needs the addresses of a
named peer, so nothing else is answered, and only from the peers that are connected. Answers are limited per second, for
each caller and for all together, and by the upload that the owner gives.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from dht.allowance import Answers, CallerLimits
from dht.daemon.calls import DAEMON_ERRORS, raw_of
from dht.daemon.messages import BYTES, PEER, field, framed, message_class, read_message
from dht.door import Door
from dht.identity import PeerId

PROTOCOL = "/ipfs/kad/1.0.0"
REQUEST_BYTES_MAX = 1024  # a search names one peer; requests with records are longer
NEAREST = 20  # Kademlia's bucket size, which libp2p expects
ADDRESSES_EACH_MAX = 8
STREAMS_MAX = 128
STREAMS_PER_PEER_MAX = 4
IDLE_SECONDS = 60.0  # as in libp2p
ANSWERS_PER_SECOND = 8.0
ANSWERS_AT_ONCE = 64.0
ALL_ANSWERS_PER_SECOND = 256.0
CALLERS_KEPT = 1024

FIND_NODE, PING = 4, 5


# `Message` of libp2p's Kademlia, with only the fields of a search
Message = message_class("kademlia", field("type", 1), field("key", 2, BYTES), field("closer", 8, PEER, many=True))


class Neighbours(Protocol):
    """A source of peers' addresses."""

    async def places(self, asked: bytes) -> Mapping[PeerId, tuple[bytes, ...]]:
        """Return multiaddrs of the peers that may be named, our own included; `asked` is the id searched for."""
        ...


def answer(request: bytes, caller: PeerId, places: Mapping[PeerId, tuple[bytes, ...]]) -> bytes | None:
    """Return the encoded answer to a caller's request; None for requests that are never answered. Pure."""
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
    """Answers the streams of the protocol; closes those of peers that open too many or ask too often.

    libp2p keeps a stream open after it has asked on it. When too many are open, the one that was silent longest is
    closed: its peer opens another when it asks again. A peer whose new stream is refused no longer searches through us.
    """

    def __init__(
        self, me: PeerId, neighbours: Neighbours, clock: Callable[[], float], door: Door, answers: Answers
    ) -> None:
        self._me = me
        self._neighbours = neighbours
        self._given = answers
        self._door = door
        self._clock = clock
        self._limits = CallerLimits(ANSWERS_PER_SECOND, ANSWERS_AT_ONCE, ALL_ANSWERS_PER_SECOND, CALLERS_KEPT)
        self._open: Counter[PeerId] = Counter()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # streams that wait for a request, silent longest first

    async def serve(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream until it is refused, fails or is idle for long."""
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
        if not self._given.strangers.admits(caller, now) or not self._limits.take(caller, now):
            return False
        # a peer that has not shown its pass yet is told of us alone: after a refusal or an empty answer, libp2p would
        # not ask us again
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
    """Return the key that a request searches for; empty if it cannot be decoded."""
    try:
        return bytes(Message.FromString(request).key)
    except DecodeError:
        return b""


def _place(key: bytes) -> int:
    """Return the position of a key or a peer's id in libp2p's Kademlia."""
    return int.from_bytes(hashlib.sha256(key).digest(), "big")
