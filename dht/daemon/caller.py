"""A daemon under a key that is made for it and forgotten: it calls others, asks them one thing, and goes away.

Nothing here imports hivemind, so an answer is there before a peer would have loaded what it needs to run.
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
EMPTY_TABLE = "failed to find any peer in table"  # libp2p's words, until those called have told who they are
EMPTY_TABLE_SECONDS = 0.1


class Caller:
    """Such a daemon. `refusals` are what the doors of those it has met said, None for one that is open or silent."""

    def __init__(self, socket: ControlSocket, peer_id: PeerId) -> None:
        self._socket = socket
        self._peer_id = peer_id
        self.refusals: list[Refusal | None] = []

    @classmethod
    @asynccontextmanager
    async def start(cls, runtime_parent: Path) -> AsyncIterator[Caller]:
        """One with a new key; raises LocalError or UsageError if none can run here."""
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
        """Call all of these at once, and show those who answer a pass, as `door` does; whether anybody answers."""
        return await any_answers(self._meets(address, door) for address in addresses)

    async def _meets(self, address: PeerAddress, door: Door) -> bool:
        if not await dial(self._socket, address):
            return False
        welcome = await knock(door, self._socket, self._peer_id, address.peer_id, DIAL_SECONDS_MAX)
        self.refusals.append(door.told if welcome is False else None)
        return True

    async def can_find(self, peer_id: PeerId) -> bool:
        """Whether those we have met lead us to this peer; asks again while we have not yet learnt whom to ask."""
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
    # as bytes by py-multiaddr: hivemind's own encodes the relay's peer id wrongly
    place = Multiaddr(address.text.removesuffix(f"/p2p/{address.peer_id}"))
    try:
        await calls.connect(p2p, address.peer_id, [place.to_bytes()], DIAL_SECONDS_MAX)
    except DAEMON_ERRORS:
        return False
    return True
