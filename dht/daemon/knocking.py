"""Showing another peer our pass, on a stream of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from dht.daemon import calls
from dht.daemon.calls import DAEMON_ERRORS
from dht.door import ANSWER_BYTES_MAX, KNOCK, Door, framed, read_word
from dht.errors import PeerError
from dht.identity import PeerId


async def knock(door: Door, p2p: Any, me: PeerId, peer: PeerId, seconds: float) -> bool | None:
    """Show the pass of `me` to a peer that `p2p` is connected to.

    Returns whether the peer lets us in, None if it does not say. `door.told` then has the reason for a refusal.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await calls.open_stream(p2p, peer, KNOCK, seconds)
            try:
                writer.write(framed(door.show(me)))
                return door.hear(await read_word(reader, ANSWER_BYTES_MAX)) is None
            finally:
                writer.transport.abort()
    except (*DAEMON_ERRORS, PeerError):
        return None
