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
    """Show a peer to which `p2p` is connected the pass of `me`; whether it lets us in. None if it does not say.

    Why it does not, `door.told` has.
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
