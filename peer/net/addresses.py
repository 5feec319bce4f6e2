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
from dht.identity import PeerId
from peer.machine.timed_wait import pause
from peer.net.origins import own_networks

log = structlog.get_logger(__name__)

LOOK_SECONDS = 60.0  # a daemon that was rebuilt is asked at once


class Visible(Protocol):
    """What is asked; `dht.daemon.process.Daemon` has it."""

    async def visible_addresses(self) -> tuple[PeerAddress, ...]: ...
    async def relayed_addresses(self, is_dialable: Callable[[PeerId], bool]) -> tuple[PeerAddress, ...]: ...


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
        self._hurried = asyncio.Event()
        self.relayed: tuple[PeerAddress, ...] = ()  # where we are called while nobody gets through to us
        self._take(found)

    @classmethod
    async def start(cls, place: AddressSource, core: Core, moved: Callable[[], None]) -> Self:
        """Ask for the first time; raises NetworkError if the daemon is silent."""
        own = cls(place, core, moved, await place.daemon.visible_addresses())
        place.after_rebuild(own.look)
        return own

    @property
    def texts(self) -> tuple[str, ...]:
        """As invites carry them: relays pass on nothing of those who come by one."""
        return tuple(map(str, self._found))

    @property
    def told(self) -> tuple[str, ...]:
        """As presence carries them."""
        return (*map(str, self.relayed), *self.texts)

    @property
    def port(self) -> int:
        """Where we listen."""
        return self._found[0].port

    async def look(self) -> None:
        """Ask again. Without an answer, or an address, the old ones stay: it may be for a moment."""
        daemon, core = self._place.daemon, self._core
        try:
            found = await daemon.visible_addresses()
        except MusterError as error:  # the watchdog sees to it
            log.info("addresses_unknown", reason=str(error))
            return
        relayed = () if core.dialable else await daemon.relayed_addresses(core.presence.is_dialable) or self.relayed
        if not found or set(found) == set(self._found):  # the daemon names them in any order
            found = self._found
        if (found, relayed) != (self._found, self.relayed):
            self.relayed = relayed
            self._take(found)
            log.info("addresses", now=self.told)
            self._moved()

    def hurry(self) -> None:
        """Whether we can be called has changed: look now instead of at the next interval."""
        self._hurried.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await pause(LOOK_SECONDS, self._hurried)
            self._hurried.clear()
            await self.look()

    def _take(self, found: tuple[PeerAddress, ...]) -> None:
        self._found = found
        self._core.networks = own_networks(found)
