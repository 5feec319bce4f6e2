"""A peer that attacks its run (`muster join --attack`), by its outer gradients or by what it says, to see what follows.

For trials on one's own machine: it joins nothing but what is there alone, or in namespaces or containers that whoever
started it names. What an attack would know
of the others it does not: here it sees its own work only, so that those of `peer.attacks.omniscient` are tame.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address, ip_network

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from torch import Tensor

from coordinator.actions import Encode, Inspect, Reduce, RoundKey, Send
from coordinator.core import Core
from coordinator.events import Encoded, Inspected, Reduced
from coordinator.manifest import RunConfig
from coordinator.messages import Message, PartNote
from coordinator.virtual.mischief import Mischief
from dht.addresses import Reach
from dht.errors import LocalError, NetworkError, UsageError
from dht.identity import PeerId
from dht.invite import Invite
from dht.statement import digest_of
from peer.anchors import Anchors
from peer.attacks.attack import Attack, Scene
from peer.attacks.forgery import FORGERIES, Forgery, Merged
from peer.attacks.messages import CALL_SECONDS_MAX, MESSAGE_ATTACKS, ByteStream, MessageAttack, group_named
from peer.attacks.protocol import PROTOCOL_ATTACKS, mischief_named, own_attack
from peer.attacks.zoo import AttackChoice
from peer.blobs import BlobStore
from peer.frames import Transfer, encode_header
from peer.hivemind_transport import HivemindTransport, handler_name
from peer.inspection import Inspector
from peer.local_count import Counters
from peer.network import Network
from peer.pump import Pump
from peer.reduction import measure, segment_inputs
from peer.round_work import RoundWork
from peer.transport import Lane, Payload

SEED_ELEMENTS = 64  # of its own work, which no two peers have alike


def check_among_ourselves(invite: Invite, option: str, trial_network: str = "") -> None:
    """Raises UsageError if this run is not on this machine alone; `option` is what has no business elsewhere.

    `trial_network` is an IP network or a host's name, never public, that is this machine's own all the same.
    """
    for address in invite.addresses:
        named = address.reach is Reach.PRIVATE and _is_in(address.host, trial_network)
        if not (named or address.reach is Reach.LOOPBACK):
            raise UsageError(f"{option} is for runs on this machine alone, and {address.host} may be elsewhere")


def _is_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network)
    except ValueError:
        return host == network


class HostileWork(RoundWork):
    """Sends what the attack makes of its outer gradient; everything else is done as it should be."""

    def __init__(self, attack: Attack, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._attack = attack

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """As an honest peer, but of a lie; of the truth, if no codec holds the lie."""
        anchor = self._anchors.current(action.key.fragment).anchor
        lie = self._attack.lie(self._scene(action.key, anchor - vector))
        try:
            encoded = super().encode(action, anchor - lie, counters)
        except LocalError:
            return super().encode(action, vector, counters)
        # its own learner goes on from where it really was
        self.snapshots[action.key] = replace(self.snapshots[action.key], vector=vector)
        return self._attack.commit(encoded, self._blobs, self.leaf_bytes[0])

    def _scene(self, key: RoundKey, own: Tensor) -> Scene:
        seed = digest_of(b"attack", key.roster_id, own[:SEED_ELEMENTS].numpy().tobytes())[:7]
        return Scene(
            own=own,
            honest=lambda: {"me": own},
            attackers=1,
            seed=int.from_bytes(seed, "big"),
            fragment=key.fragment,
            state=self._anchors.current(key.fragment),
            outer_momentum=self._config.outer.momentum,
            merge=self.rule,
        )


class MischievousWork(RoundWork):
    """Contributes honestly; merges and inspects as its mischief has it."""

    def __init__(
        self, mischief: Mischief, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor
    ) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._mischief = mischief
        codecs = (self._contribution_codec, self._result_codec)
        self.inspector = _Complainer(self._partitioning, codecs, self.rule, blobs)
        self.inspector.mischief = mischief

    def reduce(self, action: Reduce) -> Reduced:
        """A cheat returns the negative of what its inputs give, and signs it as if nothing were."""
        reduced = super().reduce(self._mischief.merges(action))
        data = None if reduced.root is None else self._blobs.get(reduced.root)
        if not self._mischief.cheats or data is None:
            return reduced
        elements = self._partitioning(action.key.fragment, action.partitions).elements(action.partition)
        codec = self._result_codec
        return replace(reduced, root=self._blobs.add(codec.encode(-codec.decode(data, elements)), codec.leaf_bytes))


class ForgingWork(RoundWork):
    """Contributes honestly; signs what `forgery` makes of each merge."""

    def __init__(
        self, forgery: Forgery, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor
    ) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._forgery = forgery
        self._own: dict[RoundKey, tuple[bytes, ...]] = {}

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """As an honest peer; which parts are its own it remembers."""
        encoded = super().encode(action, vector, counters)
        self._own[action.key] = encoded.part_roots
        return encoded

    def discard(self, key: RoundKey) -> None:
        """A round is over."""
        super().discard(key)
        self._own.pop(key, None)

    def reduce(self, action: Reduce) -> Reduced:
        """As an honest peer, and then something else with norms that fit it, if it has any."""
        reduced, codec = super().reduce(action), self._result_codec
        data = None if reduced.root is None else self._blobs.get(reduced.root)
        if data is None or not reduced.coefficients:
            return reduced
        partitioning = self._partitioning(action.key.fragment, action.partitions)
        elements = partitioning.elements(action.partition)
        inputs, own = action.weighed(reduced.included), self._own.get(action.key, ())
        forged = self._forgery(
            Merged(
                self.rule.name,
                segment_inputs(inputs, self.rule, partitioning, action.partition),
                [self._contribution_codec.decode(self._blobs.get(one.root) or b"", elements) for one in inputs],
                reduced.coefficients,
                codec.decode(data, elements),
                next((at for at, one in enumerate(inputs) if one.root in own), None),
            )
        )
        data = forged.encoded(codec)
        measured = measure(data, partitioning, action.partition, codec)
        return replace(
            reduced,
            root=self._blobs.add(data, codec.leaf_bytes),
            coefficients=forged.coefficients,
            squared_norms=reduced.squared_norms if isinstance(measured, str) else measured.squared_norms,
        )


class _Complainer(Inspector):
    mischief: Mischief

    def inspect(self, action: Inspect) -> Inspected:
        return self.mischief.inspects(action, super().inspect(action))


@dataclass
class HostilePump(Pump):
    """Sends what its mischief makes of every message, and of the bytes beside it."""

    mischief: Mischief = field(kw_only=True)

    def _send(self, action: Send) -> None:
        for sent in self.mischief.sends(action):
            super()._send(sent)

    def post(self, peer: PeerId, message: Message | Transfer, payload: Payload) -> None:
        if isinstance(message, PartNote):
            payload = self.mischief.carries(message, bytes(payload))
        super().post(peer, message, payload)

    def _receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        for answer in self.mischief.hears(sender, message):
            super()._send(answer)
        super()._receive(sender, message, payload)


class OpenLine:
    """The network of a running peer without what keeps an honest one from misusing it; see `attacks.messages.Line`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def _transport(self) -> HivemindTransport:
        return self._network._transport  # another one after each restart of the daemon

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
class NoisyPump(Pump):
    """An honest pump, and an attack that hears what it sends and receives."""

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


def disguise(
    name: str, core: Core, anchors: Anchors, blobs: BlobStore, worker: Executor
) -> tuple[RoundWork, Callable[..., Pump]]:
    """The tensor work and the pump of a peer that attacks its run; raises UsageError if there is no such attack."""
    config = core.manifest.config
    own = MESSAGE_ATTACKS.get(name) or own_attack(name)
    if own is not None and issubclass(own, MessageAttack):
        return RoundWork(config, anchors, blobs, worker), partial(NoisyPump, attack=own)
    if name in FORGERIES:
        return ForgingWork(FORGERIES[name], config, anchors, blobs, worker), Pump
    if own is None and name not in PROTOCOL_ATTACKS:
        return HostileWork(AttackChoice.parse(name).make(), config, anchors, blobs, worker), Pump
    mischief = mischief_named(name, core.signer, core.manifest.founder_ids)
    return MischievousWork(mischief, config, anchors, blobs, worker), partial(HostilePump, mischief=mischief)
