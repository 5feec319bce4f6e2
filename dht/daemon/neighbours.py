"""Where the peers are that are connected to our daemon: what they say to listen at, as far as that can be theirs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from multiaddr import Multiaddr

from dht.addresses import PeerAddress, could_be_of
from dht.daemon import calls
from dht.daemon.calls import DAEMON_ERRORS
from dht.errors import UsageError
from dht.identity import PeerId

REFRESH_SECONDS = 2.0
REFRESH_SECONDS_MIN = 0.25  # also where somebody looks for a peer that may just have come
CALL_SECONDS_MAX = 2.0
LOOKUPS_AT_ONCE = 32  # of peers that have come since the last look; the others follow with the next one
PEERS_KEPT = 512
HOSTS_KEPT = 2048


class ConnectedPeers:
    """Looked up when somebody asks, and not more often than every few seconds."""

    def __init__(self, p2p: Any, peer_id: PeerId, clock: Callable[[], float]) -> None:
        self._p2p = p2p
        self._peer_id = peer_id
        self._clock = clock
        self._found: dict[PeerId, tuple[bytes, ...]] = {}
        self._looked_at = -math.inf
        self._looking = asyncio.Lock()

    async def places(self, asked: bytes) -> Mapping[PeerId, tuple[bytes, ...]]:
        """Multiaddrs of ourselves and of connected peers that can be called somewhere; as last known on a failure."""
        async with self._looking:
            known = any(found and calls.raw_of(peer) == asked for peer, found in self._found.items())
            seconds = REFRESH_SECONDS if known else REFRESH_SECONDS_MIN
            if self._clock() >= self._looked_at + seconds:
                with suppress(*DAEMON_ERRORS):  # the watchdog sees to it
                    await self._look()
                self._looked_at = self._clock()
        return self._found

    async def _look(self) -> None:
        connected = dict((await calls.connected_peers(self._p2p, CALL_SECONDS_MAX))[:PEERS_KEPT])
        own = tuple(await calls.own_addresses(self._p2p, CALL_SECONDS_MAX))
        known = {peer: found for peer in connected if (found := self._found.get(peer))}  # else it was too early to tell
        new = [peer for peer in connected if peer not in known][:LOOKUPS_AT_ONCE]
        looked_up = await asyncio.gather(*(self._addresses(peer, connected[peer]) for peer in new))
        self._found = {**known, **dict(zip(new, looked_up, strict=True)), self._peer_id: own}

    async def _addresses(self, peer: PeerId, connections: list[bytes]) -> tuple[bytes, ...]:
        try:
            claimed = await calls.addresses_of(self._p2p, peer, CALL_SECONDS_MAX)
        except DAEMON_ERRORS:  # it has just gone
            return ()
        seen = [host for host in map(host_in, connections) if host]
        return tuple(one for one in claimed if any(_fits(one, peer, host) for host in seen))


@lru_cache(maxsize=HOSTS_KEPT)  # asked at each look, of the same connections
def host_in(connection: bytes) -> str:
    """The IP address that a connection comes from; empty through a relay."""
    place = Multiaddr(connection)
    protocol, value = next(iter(place.items()))
    return str(value) if protocol.name in ("ip4", "ip6") and "p2p-circuit" not in str(place) else ""


def _fits(address: bytes, peer: PeerId, host: str) -> bool:
    try:
        return could_be_of(PeerAddress.parse(f"{Multiaddr(address)}/p2p/{peer}"), (host,))
    except (UsageError, ValueError):
        return False
