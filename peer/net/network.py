"""The network endpoint of one peer: daemon, record store and transport, watched and rebuilt together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from dht.daemon.config import DaemonConfig
from dht.daemon.watchdog import WatchdogConfig, WatchdogCore, watch
from dht.errors import UsageError
from dht.identity import KeyVerifier, PeerId
from dht.node import DhtNode
from dht.validation import RecordRules
from peer.machine.clock import Clock, unix_seconds
from peer.machine.limits import Limits
from peer.machine.throttle import Throttle
from peer.net.hivemind_transport import HivemindTransport
from peer.net.transport import PAYLOAD_BYTES_END, OnFrame, OnGone, Payload, Traffic, TransportConfig

QUEUE_SECONDS = 10.0  # of bulk data to one peer at the owner's rate; later, nobody needs the frame any more
QUEUE_BYTES_MIN = 1 << 20
UNFINISHED_PAYLOADS = 8  # large payloads that may be under way to us at once


class Network:
    """A `peer.net.transport.Transport` over the daemon that runs now. `start` sets the receiver of frames."""

    def __init__(
        self,
        dht: DhtNode,
        run_id: bytes,
        addresses: Callable[[PeerId], list[str]],
        throttle: Throttle | None = None,
    ) -> None:
        self.dht = dht
        self.throttle = throttle or Throttle()
        dht.store.share(self.throttle.strangers)
        dht.daemon.relay_limits.wait = self.throttle.wait_for_relayed
        self._run_id = run_id
        self._addresses = addresses
        self._payload_bytes_max = TransportConfig().payload_bytes_max
        self._on_frame: OnFrame = _ignore_frame
        self._on_gone: OnGone = lambda peer: None
        self._transport = self._new_transport()
        self._past = Traffic()

    @classmethod
    async def open(
        cls,
        config: DaemonConfig,
        run_id: bytes,
        addresses: Callable[[PeerId], list[str]],
        throttle: Throttle | None = None,
        clock: Clock = unix_seconds,
    ) -> Network:
        """Start daemon, record store and transport; raises UsageError, NetworkError or LocalError."""
        dht = await DhtNode.start(config, RecordRules(run_id, KeyVerifier(), config.door), clock)
        network = cls(dht, run_id, addresses, throttle)
        try:
            await network._transport.start(network._frame, network._gone)
        except BaseException:
            await dht.close()
            raise
        dht.after_rebuild(network._reattach)
        return network

    async def watch(self) -> None:
        """Supervise the network and rebuild it where it breaks, until cancelled. For callers that keep it open long."""
        loop = asyncio.get_running_loop()
        await watch(WatchdogCore(WatchdogConfig(), loop.time()), self.dht, loop.time, asyncio.sleep)

    # -- the transport port

    @property
    def peer_id(self) -> PeerId:
        return self._transport.peer_id

    @property
    def traffic(self) -> Traffic:
        own, relayed_bytes = self._own_traffic, self.dht.daemon.relay_limits.carried_bytes
        return replace(
            own,
            bytes_sent=own.bytes_sent + self.dht.store.answered_bytes + relayed_bytes,
            bytes_received=own.bytes_received + relayed_bytes,
        )

    @property
    def _own_traffic(self) -> Traffic:
        now = self._transport.traffic
        return Traffic(
            bytes_sent=self._past.bytes_sent + now.bytes_sent,
            bytes_received=self._past.bytes_received + now.bytes_received,
            frames_dropped=self._past.frames_dropped + now.frames_dropped,
            congested=now.congested,
        )

    def traffic_of(self, peer: PeerId) -> Traffic:
        return self._transport.traffic_of(peer)

    def post(self, peer: PeerId, header: bytes, payload: Payload = b"") -> None:
        self._transport.post(peer, header, payload)

    async def start(self, on_frame: OnFrame, on_gone: OnGone) -> None:
        """Deliver to these callbacks from now on."""
        self._on_frame, self._on_gone = on_frame, on_gone

    async def flush(self, timeout_seconds: float) -> bool:
        return await self._transport.flush(timeout_seconds)

    async def close(self) -> None:
        """Leave the network, once the watchdog has ended; safe to call twice."""
        await self._transport.close()
        await self.dht.close()

    def _frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self._on_frame(sender, header, payload)

    def _gone(self, peer: PeerId) -> None:
        self._on_gone(peer)

    def expect_payloads(self, payload_bytes_max: int) -> None:
        """Send and take payloads up to this length: no honest peer in this run makes longer ones.

        Raises UsageError if no message can hold that.
        """
        self._payload_bytes_max = payload_bytes_max
        self._transport.adjust(self._transport_config())

    def respect(self, limits: Limits) -> None:
        """Send and receive at these rates from now on; open streams keep their queue sizes."""
        self.throttle.limit(limits.upload_bytes_per_second, limits.download_bytes_per_second)
        self._transport.adjust(self._transport_config())

    def _transport_config(self) -> TransportConfig:
        return transport_config(self.throttle.upload.bytes_per_second, self._payload_bytes_max)

    def _new_transport(self) -> HivemindTransport:
        return HivemindTransport(
            self.dht.daemon.p2p,
            self._run_id,
            self._addresses,
            self._transport_config(),
            self.throttle,
            self.dht.daemon.door,
        )

    async def _reattach(self) -> None:
        """Start a new transport on the rebuilt daemon: the old streams and handlers are gone."""
        await self._transport.close()
        # without a pause in between, so that no reader counts anything twice
        self._past = self._own_traffic
        self._transport = self._new_transport()
        await self._transport.start(self._frame, self._gone)


def transport_config(bytes_per_second: float, payload_bytes_max: int) -> TransportConfig:
    """Return bounds for an upload of this rate, with queues as long as their frames are of use when sent.

    Raises UsageError if no message can hold such a payload.
    """
    if payload_bytes_max >= PAYLOAD_BYTES_END:
        raise UsageError(
            f"a fragment of this run takes {payload_bytes_max / 1e9:.1f} GB encoded, and a message holds "
            f"{PAYLOAD_BYTES_END / 1e9:.1f}; the run needs more fragments (pace.fragments)"
        )
    usual = TransportConfig()
    unfinished_bytes = max(usual.unfinished_bytes_max, UNFINISHED_PAYLOADS * payload_bytes_max)
    config = replace(usual, payload_bytes_max=payload_bytes_max, unfinished_bytes_max=unfinished_bytes)
    if math.isinf(bytes_per_second):
        return config
    queue_bytes = max(QUEUE_BYTES_MIN, int(bytes_per_second * QUEUE_SECONDS))
    return replace(config, queue_bytes_max=min(queue_bytes, config.queue_bytes_max))


def _ignore_frame(_: PeerId, __: bytes, ___: bytes) -> None:
    """Drop frames that arrive before `start`; their senders repeat what matters."""
