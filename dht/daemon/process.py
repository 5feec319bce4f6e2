"""Owns the libp2p daemon of one peer: identity, addresses, start, restart and a clean end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr as HivemindMultiaddr
from multiaddr import Multiaddr

from dht.address_book import AddressBook
from dht.addresses import PeerAddress, is_of_private_network
from dht.allowance import Answers
from dht.daemon import calls
from dht.daemon.caller import DIAL_SECONDS_MAX, Caller, dial
from dht.daemon.calls import DAEMON_ERRORS
from dht.daemon.config import DaemonConfig, arguments, control_address, control_socket
from dht.daemon.dns_names import Names
from dht.daemon.kademlia import PROTOCOL as KADEMLIA_PROTOCOL
from dht.daemon.kademlia import Kademlia
from dht.daemon.knocking import knock
from dht.daemon.neighbours import ConnectedPeers, host_in
from dht.daemon.p2pd import STARTUP_SECONDS, DaemonProcess
from dht.daemon.ports import check_ports_free, keep_ports, with_chosen_ports, with_last_ports
from dht.daemon.relay import HOP, Relay, RelayLimits
from dht.door import KNOCK, Door
from dht.errors import LocalError, NetworkError, UsageError
from dht.guard import Calls, Questions
from dht.identity import Identity, PeerId
from dht.invite_reach import no_answer_message
from dht.locks import IdentityLock, RuntimeDirectory

__all__ = ["Daemon", "DaemonConfig"]

CONTROL_SECONDS_MAX = 10.0  # one question to our own daemon
RELAYS_MAX = 2  # relays named in our addresses


class Daemon:
    """A running libp2p daemon with our key. `restart` replaces `p2p`, so read the property each time."""

    def __init__(self, config: DaemonConfig, peer_id: PeerId) -> None:
        self._config = config
        self._peer_id = peer_id
        self._lock = IdentityLock(config.identity_path)
        self._directory: RuntimeDirectory | None = None
        self._process: DaemonProcess | None = None
        self._p2p: Any = None
        self._listen = config.listen
        self._visible: tuple[PeerAddress, ...] = ()
        self._book = AddressBook(config.address_book)
        self.answers = Answers()  # counts on across restarts
        self.relay_limits = RelayLimits()
        self.names = Names()

    @classmethod
    async def start(cls, config: DaemonConfig) -> Daemon:
        """Start p2pd with the key at `config.identity_path`; it dials no peer until `dial` is called.

        Raises UsageError (no key, key in use here or elsewhere, port taken), NetworkError (no initial peer answers)
        or LocalError (the daemon cannot run here).
        """
        daemon = cls(config, Identity.load(config.identity_path).peer_id)
        daemon._lock.acquire()
        try:
            check_ports_free(config.listen)
            if config.port_file is not None:
                daemon._listen = with_last_ports(config.listen, config.port_file)
            if config.initial_peers and not config.fresh_key and await daemon._in_use_elsewhere():
                raise UsageError(
                    f"the key {config.identity_path} is in use on another machine right now; "
                    "stop muster there or start this one with a key of its own"
                )
            await daemon._launch()
        except BaseException:
            await daemon.close()
            raise
        return daemon

    @property
    def p2p(self) -> Any:
        """The `hivemind.p2p.P2P` over the running daemon."""
        if self._p2p is None:
            raise LocalError("the libp2p daemon is not running")
        return self._p2p

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def door(self) -> Door:
        """Our pass for others, and the check of the passes that they show us."""
        return self._config.door

    @property
    def initial_peers(self) -> tuple[PeerAddress, ...]:
        """The peers that the configuration names; none for the first peer of a run, which may rightly be alone."""
        return self._config.initial_peers

    @property
    def bootstrap_peers(self) -> tuple[PeerAddress, ...]:
        """The addresses to dial to join the network: the initial peers, then those remembered."""
        return tuple(dict.fromkeys((*self._config.initial_peers, *self._book.addresses)))

    def remember(self, addresses: Iterable[PeerAddress]) -> None:
        """Remember addresses of live peers, freshest first; with them a restart succeeds without the initial peers."""
        self._book.note(one for one in addresses if one.peer_id != self._peer_id and not one.relayed)

    @property
    def client_only(self) -> bool:
        """True if nobody can call this peer: it answers no requests and stores nothing for others."""
        return self._config.client_only

    @property
    def pid(self) -> int | None:
        """Process id of p2pd, None while it is not running."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """True while the p2pd process exists, can be asked, and hivemind talks to it; hivemind's own flag stays true.

        Its socket vanishes with the user's runtime directory, which systemd removes after the last logout.
        """
        if self._process is None or self._directory is None or not self._process.alive:
            return False
        reachable = control_socket(self._directory.path).exists()
        return reachable and (self._p2p is None or _is_heard(self._p2p))

    def serves(self, p2p: Any) -> bool:
        """True if `p2p` still leads to a live daemon; False for one from before a restart."""
        return self.alive and p2p is self._p2p

    async def visible_addresses(self) -> tuple[PeerAddress, ...]:
        """Return the addresses at which others may dial us; raises NetworkError if the daemon is silent."""
        try:
            visible = await calls.own_addresses(self.p2p, CONTROL_SECONDS_MAX)
        except DAEMON_ERRORS as error:
            raise NetworkError(f"the libp2p daemon does not answer: {type(error).__name__}") from None
        self._visible = tuple(PeerAddress.parse(f"{Multiaddr(address)}/p2p/{self._peer_id}") for address in visible)
        return self._visible

    async def relayed_addresses(self, is_dialable: Callable[[PeerId], bool]) -> tuple[PeerAddress, ...]:
        """Return addresses at which others may dial us through peers that are connected to us and can be dialled."""
        hosts = await self.hosts()
        relays: dict[PeerId, PeerAddress] = {}
        for one in self.bootstrap_peers:
            if hosts.get(one.peer_id) and not one.relayed and is_dialable(one.peer_id):
                relays.setdefault(one.peer_id, one)
        usable = list(relays.values())[:RELAYS_MAX]
        return tuple(PeerAddress.parse(f"{one}/p2p-circuit/p2p/{self._peer_id}") for one in usable)

    @property
    def home_hosts(self) -> frozenset[str]:
        """This machine's own IP addresses in private networks."""
        return frozenset(one.host for one in self._visible if is_of_private_network(one.host))

    async def host_of(self, peer: PeerId) -> str:
        """Return the IP address of a connected peer's connection; empty if unknown or relayed."""
        return (await self.hosts()).get(peer, "")

    async def hosts(self) -> dict[PeerId, str]:
        """Return the IP address of each connected peer's connection; empty if it is relayed."""
        found: dict[PeerId, str] = {}
        for peer, addresses in await self._connections():
            found[peer] = found.get(peer) or next(filter(None, map(host_in, addresses)), "")
        return found

    async def connections(self) -> Counter[PeerId]:
        """Count the connections of each connected peer; the daemon itself does not limit them."""
        return Counter(peer for peer, _ in await self._connections())

    async def _connections(self) -> list[tuple[PeerId, list[bytes]]]:
        try:
            return await calls.connected_peers(self.p2p, CONTROL_SECONDS_MAX)
        except (*DAEMON_ERRORS, LocalError):
            return []

    async def knock(self, peer: PeerId) -> bool | None:
        """Show a connected peer our pass; returns whether it lets us in, None if it does not say."""
        if self._p2p is None:  # the watchdog replaces the daemon while other tasks run
            return None
        return await knock(self.door, self._p2p, self._peer_id, peer, DIAL_SECONDS_MAX)

    async def hang_up(self, peer: PeerId) -> None:
        """Close all connections to a peer; raises DAEMON_ERRORS, or LocalError if the daemon is not running."""
        await calls.disconnect(self.p2p, peer, CONTROL_SECONDS_MAX)

    async def dial(self, address: PeerAddress) -> None:
        """Connect to a peer at this address, if not connected already; raises NetworkError."""
        if self._p2p is None:  # the watchdog replaces the daemon while other tasks run
            raise NetworkError(f"{address} cannot be called: the libp2p daemon is not running")
        if not await dial(self._p2p, address):
            raise NetworkError(f"{address} does not answer")

    async def restart(self) -> None:
        """Replace the daemon, dead or alive, with a new one at the same ports; raises UsageError or LocalError."""
        await self._shut_down()
        await self._launch()

    async def close(self) -> None:
        """Stop the daemon, remove its files and release the key. Safe to call twice."""
        await self._shut_down()
        self._lock.release()

    async def _in_use_elsewhere(self) -> bool:
        """Return whether peers that we know lead a stranger to a live peer with our id.

        Raises NetworkError if none of them answers.
        """
        async with Caller.start(self._config.runtime_parent) as caller:
            if not await caller.meets(self.bootstrap_peers, self.door):
                raise NetworkError(no_answer_message(self._config.initial_peers))
            return await caller.can_find(self._peer_id)

    async def _launch(self) -> None:
        self._directory = RuntimeDirectory(self._config.runtime_parent)
        config = replace(self._config, listen=self._listen)
        self._process = await DaemonProcess.start(arguments(config, self._directory.path), STARTUP_SECONDS)
        self._p2p = await _attach(self._directory.path)
        await self._close_to_strangers(self._p2p)
        if not self._config.announce:
            self._listen = with_chosen_ports(self._listen, await self.visible_addresses())
        if self._config.port_file is not None:
            keep_ports(self._listen, self._config.port_file)

    async def _close_to_strangers(self, p2p: Any) -> None:
        """Take over the services that the daemon gives anybody without limit (docs/adr/0057); raises LocalError."""
        clock = asyncio.get_running_loop().time
        kademlia = Kademlia(self._peer_id, ConnectedPeers(p2p, self._peer_id, clock), clock, self.door, self.answers)
        try:
            relay = Relay(p2p, self.hosts, self.relay_limits, clock)
            await calls.add_handler(p2p, HOP, relay.serve, CONTROL_SECONDS_MAX)
            if not self._config.client_only:
                await calls.add_handler(p2p, KADEMLIA_PROTOCOL, kademlia.serve, CONTROL_SECONDS_MAX)
            await calls.add_handler(p2p, KNOCK, self.door.answer, CONTROL_SECONDS_MAX)
        except DAEMON_ERRORS as error:
            raise LocalError(f"the libp2p daemon runs but does not answer: {type(error).__name__}") from None

    async def _shut_down(self) -> None:
        if self._process is not None:
            await self._process.stop()
            self._process = None
        # only now: since Python 3.12.1 the listening server waits for all streams, and a hung daemon keeps them open
        if self._p2p is not None:
            await _detach(self._p2p)
            self._p2p = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None


async def _attach(directory: Path) -> Any:
    """Attach hivemind's P2P to a daemon that it did not start, with its own socket in `directory`."""
    attached: Any = type("AttachedP2P", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{directory}/"})
    try:
        async with asyncio.timeout(CONTROL_SECONDS_MAX):
            p2p = await attached.replicate(HivemindMultiaddr(control_address(directory)))
    except (*DAEMON_ERRORS, P2PDaemonError) as error:
        raise LocalError(f"the libp2p daemon runs but does not answer: {type(error).__name__}") from None
    control = p2p._client.control
    control._handler_tasks, control._pending_calls = Calls(), Questions()
    return p2p


def _is_heard(p2p: Any) -> bool:
    """Whether hivemind's background tasks still read from the daemon and write to it."""
    control = p2p._client.control
    return not any(task is not None and task.done() for task in (control._read_task, control._write_task))


async def _detach(p2p: Any) -> None:
    """Close the connection to the daemon and wait for hivemind's background tasks, which it only cancels."""
    control = p2p._client.control
    tasks = [p2p._listen_task, control._read_task, control._write_task, *control._handler_tasks.values()]
    running = [task for task in tasks if task is not None]
    await p2p.shutdown()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
