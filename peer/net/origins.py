"""The public networks of this peer and of the peers connected to it (docs/adr/0017)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from coordinator.core.events import OriginsSeen
from dht.addresses import PeerAddress, network_of
from dht.identity import PeerId

HostsOf = Callable[[], Awaitable[Mapping[PeerId, str]]]


def own_networks(addresses: Iterable[PeerAddress]) -> tuple[bytes, ...]:
    """Return the public networks of our own addresses, each once; a relay's network is not ours."""
    found = (network_of(address.host) for address in addresses if not address.relayed)
    return tuple(sorted({network for network in found if network is not None}))


class OriginsLoop:
    """Tells the protocol core at intervals from which networks its neighbours call, until cancelled."""

    def __init__(self, hosts: HostsOf, feed: Callable[[OriginsSeen], None]) -> None:
        self._hosts = hosts
        self._feed = feed
        self._told: dict[PeerId, bytes] = {}

    async def look(self) -> None:
        """Look once; report only changes."""
        networks = {peer: network_of(host) for peer, host in (await self._hosts()).items()}
        public = {peer: network for peer, network in networks.items() if network is not None}
        if public != self._told:
            self._told = public
            self._feed(OriginsSeen(public))

    async def run(self, interval_seconds: float) -> None:
        """Look at this interval."""
        while True:
            await self.look()
            await asyncio.sleep(interval_seconds)
