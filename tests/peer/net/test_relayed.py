"""Frames between two networks that nobody can call, relayed by a third, whose owner's limits count them."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from dht.addresses import PeerAddress
from dht.daemon.config import DaemonConfig
from dht.identity import Identity, PeerId
from peer.machine.throttle import Throttle
from peer.net.network import Network
from tests.peer.net.test_transport_contract import Inbox

RUN_ID = bytes(range(32))
PAYLOAD_BYTES = 200_000


def test_frames_pass_through_a_third_peer_and_count_as_its_own() -> None:
    told: list[PeerAddress] = []

    def addresses(peer: PeerId) -> list[str]:
        return [str(one) for one in told if one.peer_id == peer]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # pytest's path is too long for sockets

            async def enter(name: str, initial: tuple[PeerAddress, ...] = ()) -> Network:
                Identity.load_or_create(folder / name)
                config = DaemonConfig(
                    folder / name, initial_peers=initial, client_only=bool(initial), runtime_parent=folder
                )
                network = await Network.open(config, RUN_ID, addresses, Throttle())
                stack.push_async_callback(network.close)
                return network

            host = await enter("host")
            at = await host.dht.daemon.visible_addresses()
            one, other = await enter("one", at), await enter("other", at)
            for network in (one, other):
                assert await network.dht.daemon.relayed_addresses(lambda _: False) == ()
                told.extend(await network.dht.daemon.relayed_addresses(lambda _: True))
            assert [(one.called, one.relayed) for one in told] == [(host.peer_id, True)] * 2
            host.dht.daemon.relay_limits.admits = lambda _: True
            sent, received = host.traffic.bytes_sent, host.traffic.bytes_received
            boxes = [await Inbox(network).start() for network in (one, other)]
            for sender, receiver in (boxes, reversed(boxes)):
                sender.transport.post(receiver.peer_id, b"through a third", bytes(PAYLOAD_BYTES))
                await receiver.frame_is(b"through a third")
                assert receiver.frames[-1] == (sender.peer_id, b"through a third", bytes(PAYLOAD_BYTES))
            assert host.traffic.bytes_sent - sent > 2 * PAYLOAD_BYTES
            assert host.traffic.bytes_received - received > 2 * PAYLOAD_BYTES
            host.throttle.upload.shut = True  # its owner allows no upload
            boxes[0].transport.post(boxes[1].peer_id, b"held back", bytes(PAYLOAD_BYTES))
            arriving = asyncio.ensure_future(boxes[1].frame_is(b"held back"))
            await asyncio.wait({arriving}, timeout=0.3)
            assert not arriving.done()
            host.throttle.upload.shut = False
            await arriving

    asyncio.run(main())
