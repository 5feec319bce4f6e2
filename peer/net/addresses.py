"""The addresses where other peers find this one, asked of the libp2p daemon at intervals.

A machine moves between networks. Presence, invites and the networks in our joins all use the addresses found last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, Self

import structlog

from coordinator.core.context import Core
from dht.addresses import PeerAddress
from dht.daemon.own_hosts import outward_hosts
from dht.errors import MusterError
from dht.identity import PeerId
from dht.invite_reach import WIDEST_FIRST
from peer.machine.timed_wait import pause
from peer.net.origins import own_networks

log = structlog.get_logger(__name__)

LOOK_SECONDS = 60.0  # interval; after a rebuild the daemon is asked at once


class Visible(Protocol):
    """The source of addresses; `dht.daemon.process.Daemon` implements it."""

    async def visible_addresses(self) -> tuple[PeerAddress, ...]: ...
    async def relayed_addresses(self, is_dialable: Callable[[PeerId], bool]) -> tuple[PeerAddress, ...]: ...


class AddressSource(Protocol):
    """The part of a peer's network that is needed here; `dht.node.DhtNode` implements it."""

    @property
    def daemon(self) -> Visible: ...
    def after_rebuild(self, callback: Callable[[], Awaitable[None]]) -> None: ...


class OwnAddresses:
    """Our current addresses. `moved` is called after every change, when they are in place."""

    def __init__(
        self, place: AddressSource, core: Core, moved: Callable[[], None], found: tuple[PeerAddress, ...]
    ) -> None:
        self._place = place
        self._core = core
        self._moved = moved
        self._hurried = asyncio.Event()
        self.relayed: tuple[PeerAddress, ...] = ()  # where peers call us through relays while none reaches us directly
        self._take(found)

    @classmethod
    async def start(cls, place: AddressSource, core: Core, moved: Callable[[], None]) -> Self:
        """Ask for the first time; raises NetworkError if the daemon is silent."""
        own = cls(place, core, moved, await place.daemon.visible_addresses())
        place.after_rebuild(own.look)
        return own

    @property
    def texts(self) -> tuple[str, ...]:
        """Addresses for invites; none is relayed, because a newcomer has not shown a relay its pass yet."""
        return tuple(map(str, self._found))

    @property
    def told(self) -> tuple[str, ...]:
        """Addresses for presence records: the relayed ones, then our own."""
        return (*map(str, self.relayed), *self.texts)

    @property
    def port(self) -> int:
        """The port on which we listen; at a public address, which comes first, a router may have another."""
        return self._found[-1].port

    async def look(self) -> None:
        """Ask the daemon again. Without an answer or an address the old ones stay, because the gap may be short."""
        daemon, core = self._place.daemon, self._core
        try:
            found = await daemon.visible_addresses()
        except MusterError as error:  # the watchdog handles a daemon that fails
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
        """Look now instead of at the next interval, because our reachability has changed."""
        self._hurried.set()

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        while True:
            await pause(LOOK_SECONDS, self._hurried)
            self._hurried.clear()
            await self.look()

    def _take(self, found: tuple[PeerAddress, ...]) -> None:
        self._found = useful_first(found, outward_hosts())
        self._core.networks = own_networks(found)


def useful_first(found: Sequence[PeerAddress], outward: Collection[str]) -> tuple[PeerAddress, ...]:
    """Return these addresses, those that most peers can call first: an invite or a record has room for a few.

    `outward` are the hosts from which this machine calls others. The daemon sorts addresses as text, and the networks
    of a machine's containers come before most homes'.
    """
    return tuple(sorted(found, key=lambda one: (WIDEST_FIRST.index(one.reach), one.host not in outward)))
