"""Where others find this peer: asked of the libp2p daemon again and again, for a machine moves between networks.

Presence, invites and the networks that our joins name all read what was found last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

import structlog

from coordinator.core.context import Core
from dht.addresses import PeerAddress
from dht.errors import MusterError
from peer.net.origins import own_networks

log = structlog.get_logger(__name__)

LOOK_SECONDS = 60.0  # a daemon that was rebuilt is asked at once


class Visible(Protocol):
    """What is asked; `dht.daemon.process.Daemon` has it."""

    async def visible_addresses(self) -> tuple[PeerAddress, ...]: ...


class AddressSource(Protocol):
    """As much of a peer's network as is needed here; `dht.node.DhtNode` has it."""

    @property
    def daemon(self) -> Visible: ...
    def after_rebuild(self, callback: Callable[[], Awaitable[None]]) -> None: ...


class OwnAddresses:
    """Our addresses as they are now. `moved` is called when they have changed, with nothing else left to do."""

    def __init__(
        self, place: AddressSource, core: Core, moved: Callable[[], None], found: tuple[PeerAddress, ...]
    ) -> None:
        self._place = place
        self._core = core
        self._moved = moved
        self._take(found)

    @classmethod
    async def start(cls, place: AddressSource, core: Core, moved: Callable[[], None]) -> Self:
        """Ask for the first time; raises NetworkError if the daemon is silent."""
        own = cls(place, core, moved, await place.daemon.visible_addresses())
        place.after_rebuild(own.look)
        return own

    @property
    def texts(self) -> tuple[str, ...]:
        """As presence and invites carry them."""
        return tuple(map(str, self._found))

    @property
    def port(self) -> int:
        """Where we listen."""
        return self._found[0].port

    async def look(self) -> None:
        """Ask again. Without an answer, or an address, the old ones stay: it may be for a moment."""
        try:
            found = await self._place.daemon.visible_addresses()
        except MusterError as error:  # the watchdog sees to it
            log.info("addresses_unknown", reason=str(error))
            return
        if found and set(found) != set(self._found):  # the daemon names them in any order
            self._take(found)
            log.info("addresses", now=self.texts)
            self._moved()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    def _take(self, found: tuple[PeerAddress, ...]) -> None:
        self._found = found
        self._core.networks = own_networks(found)
