"""A short-lived daemon with a throw-away key: it calls other peers, asks one question and stops.

Nothing here imports hivemind, so the answer arrives before a full peer would have loaded its libraries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from multiaddr import Multiaddr

from dht.addresses import PeerAddress
from dht.daemon import calls
from dht.daemon.calls import DAEMON_ERRORS, ControlSocket, DaemonError
from dht.daemon.config import caller_arguments, control_socket
from dht.daemon.knocking import knock
from dht.daemon.p2pd import STARTUP_SECONDS, DaemonProcess
from dht.door import Door
from dht.identity import PeerId
from dht.locks import RuntimeDirectory
from dht.meeting import any_answers
from dht.refusal import Refusal

DIAL_SECONDS_MAX = 5.0
FIND_SECONDS_MAX = 5.0
IDENTIFY_SECONDS_MAX = 10.0
EMPTY_TABLE = "failed to find any peer in table"  # libp2p's error until the called peers have identified themselves
EMPTY_TABLE_SECONDS = 0.1


class Caller:
    """A running short-lived daemon. `refusals` has an entry for each peer it met, None if that one did not refuse."""

    def __init__(self, socket: ControlSocket, peer_id: PeerId) -> None:
        self._socket = socket
        self._peer_id = peer_id
        self.refusals: list[Refusal | None] = []

    @classmethod
    @asynccontextmanager
    async def start(cls, runtime_parent: Path) -> AsyncIterator[Caller]:
        """Run a daemon with a new key; raises LocalError or UsageError if none can run here."""
        directory = RuntimeDirectory(runtime_parent)
        process: DaemonProcess | None = None
        try:
            process = await DaemonProcess.start(caller_arguments(directory.path), STARTUP_SECONDS)
            socket = ControlSocket(control_socket(directory.path))
            yield cls(socket, await calls.own_id(socket, IDENTIFY_SECONDS_MAX))
        finally:
            if process is not None:
                await process.stop()
            directory.close()

    async def meets(self, addresses: Iterable[PeerAddress], door: Door) -> bool:
        """Call all these addresses at once and show `door`'s pass to peers that answer; returns whether any does."""
        return await any_answers(self._meets(address, door) for address in addresses)

    async def _meets(self, address: PeerAddress, door: Door) -> bool:
        if not await dial(self._socket, address):
            return False
        welcome = await knock(door, self._socket, self._peer_id, address.peer_id, DIAL_SECONDS_MAX)
        self.refusals.append(door.told if welcome is False else None)
        return True

    async def can_find(self, peer_id: PeerId) -> bool:
        """Return whether the peers we have met lead us to `peer_id`; retries while our routing table is empty."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIND_SECONDS_MAX):
                while True:
                    try:
                        await calls.connect(self._socket, peer_id, [], FIND_SECONDS_MAX)
                    except DaemonError as error:
                        if EMPTY_TABLE not in str(error):
                            return False
                        await asyncio.sleep(EMPTY_TABLE_SECONDS)
                    else:
                        return True
        return False


async def dial(p2p: Any, address: PeerAddress) -> bool:
    """Connect to a peer at this address; False if it does not answer."""
    # encoded by py-multiaddr, since hivemind's own class encodes a relay's peer id wrongly
    place = Multiaddr(address.text.removesuffix(f"/p2p/{address.peer_id}"))
    try:
        await calls.connect(p2p, address.peer_id, [place.to_bytes()], DIAL_SECONDS_MAX)
    except DAEMON_ERRORS:
        return False
    return True
