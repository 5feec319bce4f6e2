"""Whether anybody listens where an invite says: asked before anything is loaded or started, so that who is told no
does not wait for that. It shows nothing but an address, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from dht.addresses import PeerAddress
from dht.errors import NetworkError
from dht.invite_reach import silence
from dht.meeting import any_answers
from peer.net.probe import answers

Call = Callable[[str, int], Awaitable[bool]]


def check_somebody_listens(addresses: Sequence[PeerAddress]) -> None:
    """Raise NetworkError if a bare call gets through to none of these; all are called at once."""
    if not asyncio.run(somebody_listens(addresses, answers)):
        raise NetworkError(silence(addresses))


async def somebody_listens(addresses: Sequence[PeerAddress], call: Call) -> bool:
    """Whether `call` gets through to one of these; true if there is one that only the daemon can call."""
    if not all(address.over_tcp and _is_number(address.host) for address in addresses):
        return True  # a name may take its resolver longer than a call, and cannot be given up

    async def through(host: str, port: int) -> bool:
        return await call(host, port)

    places = {(address.host, address.port) for address in addresses}
    return await any_answers(through(*place) for place in sorted(places))


def _is_number(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False
