"""A libp2p daemon that dies or hangs under two real networks is replaced, and frames go both ways as before."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dht.addresses import PeerAddress
from dht.daemon.config import DaemonConfig
from dht.daemon.watchdog import WatchdogConfig, WatchdogCore, watch
from dht.identity import Identity, PeerId
from peer.net.network import Network
from tests.freezing import freeze
from tests.peer.net.test_transport_contract import Inbox

RUN_ID = bytes(range(32))
REBUILD_SECONDS_MAX = 50.0
PAYLOAD_BYTES_MAX = 200_000  # this run's limit, lower than the default


@asynccontextmanager
async def two_peers() -> AsyncIterator[tuple[Network, Inbox, Network, Inbox]]:
    """Yield two networks with their inboxes. Each knows the other's address; the second was admitted by the first."""
    met: list[PeerAddress] = []

    def addresses(peer: PeerId) -> list[str]:
        return [str(one) for one in met if one.peer_id == peer]

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # pytest's path is too long for sockets

        async def join(name: str) -> tuple[Network, Inbox]:
            Identity.load_or_create(folder / name)
            config = DaemonConfig(folder / name, initial_peers=tuple(met), runtime_parent=folder)
            network = await Network.open(config, RUN_ID, addresses)
            stack.push_async_callback(network.close)
            network.expect_payloads(PAYLOAD_BYTES_MAX)
            met.extend(await network.dht.daemon.visible_addresses())
            return network, await Inbox(network).start()

        yield *await join("alice"), *await join("bob")


async def talk(one: Inbox, other: Inbox, words: bytes) -> None:
    """Send a short frame and a long one each way, and check that they arrive."""
    for sender, receiver in ((one, other), (other, one)):
        for payload in (b"", words.ljust(PAYLOAD_BYTES_MAX)):
            header = b"%s, %d bytes" % (words, len(payload))
            sender.transport.post(receiver.peer_id, header, payload)
            await receiver.frame_is(header)
            assert receiver.frames[-1] == (sender.peer_id, header, payload)


def rebuilt(network: Network) -> asyncio.Event:
    """Return an event that is set once the network's daemon has been replaced and all listeners have been told."""
    event = asyncio.Event()

    async def note() -> None:
        event.set()

    network.dht.after_rebuild(note)
    return event


def test_frames_go_both_ways_again_when_a_daemon_that_was_killed_has_been_replaced() -> None:
    async def main() -> None:
        async with two_peers() as (_, at_alice, bob, at_bob):
            await talk(at_alice, at_bob, b"before")
            sent, received = bob.traffic.bytes_sent, bob.traffic.bytes_received
            answered = bob.dht.store.answered_bytes  # of the record store, which keeps running
            pid, replaced = bob.dht.daemon.pid, rebuilt(bob)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            watching = asyncio.create_task(bob.watch())
            async with asyncio.timeout(REBUILD_SECONDS_MAX):
                await replaced.wait()
            assert bob.dht.daemon.pid not in (None, pid)
            sent += bob.dht.store.answered_bytes - answered
            assert (bob.traffic.bytes_sent, bob.traffic.bytes_received) == (sent, received), "counted once"
            await at_alice.peer_is_gone(bob.peer_id)
            await talk(at_bob, at_alice, b"afterwards")
            assert bob.traffic.bytes_sent > sent
            assert bob.traffic.bytes_received > received
            with pytest.raises(ValueError, match="not within the limits"):
                bob.post(at_alice.peer_id, b"too long for this run", bytes(PAYLOAD_BYTES_MAX + 1))
            watching.cancel()
            await asyncio.wait([watching])

    asyncio.run(main())


@pytest.mark.slow
def test_a_daemon_that_hangs_is_found_out_by_its_silence_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dht.daemon.p2pd.STOP_SECONDS_MAX", 0.5)
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await asyncio.sleep(0)

    async def main() -> None:
        async with two_peers() as (_, at_alice, bob, at_bob):
            await talk(at_alice, at_bob, b"before")
            pid, replaced = bob.dht.daemon.pid, rebuilt(bob)
            assert pid is not None
            monkeypatch.setattr("dht.daemon.caller.DIAL_SECONDS_MAX", 1.0)
            bob.dht.store._protocol.wait_timeout = 0.5  # for calls over this daemon, not over its replacement
            freeze(pid)
            core = WatchdogCore(WatchdogConfig(), now[0])
            watching = asyncio.create_task(watch(core, bob.dht, lambda: now[0], sleep))
            async with asyncio.timeout(REBUILD_SECONDS_MAX):
                await replaced.wait()
            watching.cancel()
            await asyncio.wait([watching])
            assert bob.dht.daemon.pid not in (None, pid)
            assert now[0] >= WatchdogConfig().probe_seconds, "it was alive, so it was asked first"
            await at_alice.peer_is_gone(bob.peer_id)
            await talk(at_bob, at_alice, b"afterwards")

    asyncio.run(main())
