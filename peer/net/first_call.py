"""Whether anybody listens where an invite says: asked before anything is loaded or started, so that who is told no
does not wait for that. It shows nothing but an address, and nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dht.addresses import PeerAddress, ip_of
from dht.errors import NetworkError
from dht.invite_reach import silence
from dht.meeting import any_answers
from peer.net.probe import answers

Call = Callable[[str, int], Coroutine[Any, Any, bool]]


def check_somebody_listens(addresses: Sequence[PeerAddress]) -> None:
    """Raise NetworkError if a bare call gets through to none of these; all are called at once."""
    if not asyncio.run(somebody_listens(addresses, answers)):
        raise NetworkError(silence(addresses))


async def somebody_listens(addresses: Sequence[PeerAddress], call: Call) -> bool:
    """Whether `call` gets through to one of these; true if there is one that only the daemon can call."""
    if not all(address.over_tcp and ip_of(address.host) is not None for address in addresses):
        return True  # a name may take its resolver longer than a call, and cannot be given up

    places = {(address.host, address.port) for address in addresses}
    return await any_answers(call(*place) for place in sorted(places))
