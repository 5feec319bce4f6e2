"""A peer that attacks its run (`muster join --attack`), by outer gradients or messages, to test the run's defences.

It is for trials on one machine: it joins only runs on that machine, or in namespaces or containers that its user
names.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address, ip_network

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError

from coordinator.adversary.mischief import Mischief, MischievousCore
from coordinator.core.actions import Send
from coordinator.core.context import Core
from coordinator.run.manifest import Manifest
from coordinator.wire.messages import Message, PartNote
from dht.addresses import Reach
from dht.errors import NetworkError, UsageError
from dht.identity import PeerId, Signer
from dht.invite import Invite
from peer.attacks.evasion import EVASIVE, EvasiveWork
from peer.attacks.forgery import FORGERIES
from peer.attacks.messages import CALL_SECONDS_MAX, MESSAGE_ATTACKS, ByteStream, MessageAttack, group_named
from peer.attacks.protocol import is_mischief, mischief_named, own_attack
from peer.attacks.work import ForgingWork, HostileWork, MischievousWork
from peer.attacks.zoo import AttackChoice
from peer.net.frames import Transfer, encode_header
from peer.net.hivemind_transport import HivemindTransport, handler_name
from peer.net.network import Network
from peer.net.transport import Lane, Payload
from peer.rounds.driver import RoundDriver
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors
from peer.storage.blobs import BlobStore


def check_among_ourselves(invite: Invite, option: str, trial_network: str = "") -> None:
    """Raise UsageError unless this run is on this machine alone; `option` is the option that is refused otherwise.

    `trial_network` is an IP network, or a host's name and its addresses, that counts as this machine's own. It is never
    public.
    """
    for address in invite.addresses:
        named = address.reach is Reach.PRIVATE and _is_in(address.host, trial_network)
        if not (named or address.reach is Reach.LOOPBACK):
            raise UsageError(f"{option} is for runs on this machine alone, and {address.host} may be elsewhere")


def _is_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network)
    except ValueError:
        return bool(network) and (host == network or host in _addresses_of(network))


def _addresses_of(name: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


@dataclass
class HostileDriver(RoundDriver):
    """A driver that sends its mischief's version of every message and payload."""

    mischief: Mischief = field(kw_only=True)

    def _send(self, action: Send) -> None:
        for sent in self.mischief.sends(action):
            super()._send(sent)

    def post(self, peer: PeerId, message: Message | Transfer, payload: Payload) -> None:
        if isinstance(message, PartNote):
            payload = self.mischief.carries(message, bytes(payload))
        super().post(peer, message, payload)

    def _receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        if self.mischief.is_deaf_to(sender, message):
            return
        for answer in self.mischief.hears(sender, message):
            super()._send(answer)
        super()._receive(sender, message, payload)


class OpenLine:
    """The network of a running peer without an honest peer's restrictions; see `attacks.messages.AttackLine`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def _transport(self) -> HivemindTransport:
        return self._network._transport  # a new one after each restart of the daemon

    def post(self, peer: PeerId, header: bytes, payload: bytes) -> None:
        self._transport.post(peer, header, payload)

    async def open(self, peer: PeerId, lane: Lane | str) -> ByteStream:
        handler = handler_name(self._network._run_id, lane) if isinstance(lane, Lane) else lane
        return await self._transport.open_stream(peer, handler)

    async def call(self, peer: PeerId, handler: str, request: bytes) -> None:
        client = self._network.dht.daemon.p2p._client
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await client.call_unary_handler(PeerID.from_base58(peer), handler, request)
        except (P2PDaemonError, P2PHandlerError) as error:
            raise NetworkError(f"{peer} refuses: {error}") from None


@dataclass
class NoisyDriver(RoundDriver):
    """An honest driver with an attack that sees all messages sent and received."""

    attack: type[MessageAttack] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.transport, Network)
        core = self.engine.core
        others = {*core.manifest.founder_ids, PeerId(core.manifest.organiser)} - {core.me}
        self._attack = self.attack(OpenLine(self.transport), others, random.Random(core.me))
        self._start(self._attack.run())

    def on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self._attack.tap.note(header, payload)
        super().on_frame(sender, header, payload)

    def post(self, peer: PeerId, message: Message | Transfer, payload: Payload) -> None:
        self._attack.tap.note(encode_header(message), bytes(payload))
        super().post(peer, message, payload)

    def _receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        if (group := group_named(message)) is not None:
            self._attack.tap.note_group(group)
        super()._receive(sender, message, payload)


def core_kind(name: str, manifest: Manifest, signer: Signer) -> Callable[..., Core]:
    """Return the factory for the core of a peer that attacks its run; raises UsageError if there is no such attack."""
    if not is_mischief(name):
        return Core
    mischief = mischief_named(name, signer, manifest.founder_ids)
    return partial(MischievousCore, mischief=lambda: mischief)


def hostile_parts(
    name: str, core: Core, anchors: Anchors, blobs: BlobStore, worker: Executor
) -> tuple[TensorWorker, Callable[..., RoundDriver]]:
    """Return tensor work and driver of a peer that attacks its run; raises UsageError if there is no such attack."""
    config = core.manifest.config
    own = MESSAGE_ATTACKS.get(name) or own_attack(name)
    if own is not None and issubclass(own, MessageAttack):
        return TensorWorker(config, anchors, blobs, worker), partial(NoisyDriver, attack=own)
    if name == EVASIVE:
        return EvasiveWork(config, anchors, blobs, worker), RoundDriver
    if name in FORGERIES:
        return ForgingWork(FORGERIES[name], config, anchors, blobs, worker), RoundDriver
    mischief = core.mischief() if isinstance(core, MischievousCore) else None
    if mischief is None:
        return HostileWork(AttackChoice.parse(name).make(), config, anchors, blobs, worker), RoundDriver
    return MischievousWork(mischief, config, anchors, blobs, worker), partial(HostileDriver, mischief=mischief)
