"""Addresses of the peers connected to our daemon: the ones at which they claim to listen, if plausible."""

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
REFRESH_SECONDS_MIN = 0.25  # the limit for a peer we do not know, which may just have connected
CALL_SECONDS_MAX = 2.0
LOOKUPS_AT_ONCE = 32  # of peers that connected since the last refresh; the rest follow with the next
PEERS_KEPT = 512
HOSTS_KEPT = 2048


class ConnectedPeers:
    """The connected peers and their addresses, refreshed on demand, but not more often than every few seconds."""

    def __init__(self, p2p: Any, peer_id: PeerId, clock: Callable[[], float]) -> None:
        self._p2p = p2p
        self._peer_id = peer_id
        self._clock = clock
        self._found: dict[PeerId, tuple[bytes, ...]] = {}
        self._looked_at = -math.inf
        self._looking = asyncio.Lock()

    async def places(self, asked: bytes) -> Mapping[PeerId, tuple[bytes, ...]]:
        """Return the multiaddrs of ourselves and of each connected peer, perhaps none; the last known on a failure."""
        async with self._looking:
            known = any(found and calls.raw_of(peer) == asked for peer, found in self._found.items())
            seconds = REFRESH_SECONDS if known else REFRESH_SECONDS_MIN
            if self._clock() >= self._looked_at + seconds:
                with suppress(*DAEMON_ERRORS):  # the watchdog deals with a failed daemon
                    await self._look()
                self._looked_at = self._clock()
        return self._found

    async def _look(self) -> None:
        connected = dict((await calls.connected_peers(self._p2p, CALL_SECONDS_MAX))[:PEERS_KEPT])
        own = tuple(await calls.own_addresses(self._p2p, CALL_SECONDS_MAX))
        known = {peer: found for peer in connected if (found := self._found.get(peer))}  # empty: it was too early
        new = [peer for peer in connected if peer not in known][:LOOKUPS_AT_ONCE]
        looked_up = await asyncio.gather(*(self._addresses(peer, connected[peer]) for peer in new))
        self._found = {**known, **dict(zip(new, looked_up, strict=True)), self._peer_id: own}

    async def _addresses(self, peer: PeerId, connections: list[bytes]) -> tuple[bytes, ...]:
        try:
            claimed = await calls.addresses_of(self._p2p, peer, CALL_SECONDS_MAX)
        except DAEMON_ERRORS:  # it has just disconnected
            return ()
        seen = [host for host in map(host_in, connections) if host]
        return tuple(one for one in claimed if any(_fits(one, peer, host) for host in seen))


@lru_cache(maxsize=HOSTS_KEPT)  # each refresh asks for the same connections
def host_in(connection: bytes) -> str:
    """Return the IP address that a connection comes from; empty if it is relayed."""
    place = Multiaddr(connection)
    protocol, value = next(iter(place.items()))
    return str(value) if protocol.name in ("ip4", "ip6") and "p2p-circuit" not in str(place) else ""


def _fits(address: bytes, peer: PeerId, host: str) -> bool:
    try:
        return could_be_of(PeerAddress.parse(f"{Multiaddr(address)}/p2p/{peer}"), (host,))
    except (UsageError, ValueError):
        return False
