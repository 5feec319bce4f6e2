"""A peer whose addresses change says so: in its presence, its invites and its joins."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.wire.presence import Presence
from dht.addresses import PeerAddress
from dht.daemon.config import DaemonConfig
from dht.errors import NetworkError
from dht.identity import Identity, KeyVerifier, PeerId
from dht.node import DhtNode as DhtNode
from dht.validation import RecordRules
from peer.learner.messages import StepEntry, Steps
from peer.learner.work_counters import LearnerProgress
from peer.net.addresses import LOOK_SECONDS, OwnAddresses, useful_first
from peer.node.options import NodeOptions
from peer.node.presence import OwnPresence
from peer.sync.introduction import fresh_invite
from tests.coordinator.rigs import core
from tests.peer.rounds.test_driver import Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual


class Moving:
    """A fake network and daemon of a peer, whose addresses a test sets."""

    def __init__(self, peer: Peer) -> None:
        self._me = peer.identity.peer_id
        self.endpoints = ["/ip4/8.8.4.4/tcp/7331", "/ip4/192.168.1.7/tcp/7331"]
        self.silent = False
        self.rebuilt: list[Callable[[], Awaitable[None]]] = []
        self.moves = 0
        self.relays: tuple[str, ...] = ()

    @property
    def daemon(self) -> Moving:
        return self

    def after_rebuild(self, callback: Callable[[], Awaitable[None]]) -> None:
        self.rebuilt.append(callback)

    async def visible_addresses(self) -> tuple[PeerAddress, ...]:
        if self.silent:
            raise NetworkError("the libp2p daemon does not answer: TimeoutError")
        return tuple(PeerAddress.parse(f"{endpoint}/p2p/{self._me}") for endpoint in self.endpoints)

    async def relayed_addresses(self, is_dialable: Callable[[PeerId], bool]) -> tuple[PeerAddress, ...]:
        return tuple(PeerAddress.parse(f"{relay}/p2p-circuit/p2p/{self._me}") for relay in self.relays)

    def moved(self) -> None:
        self.moves += 1


def hosts(texts: tuple[str, ...]) -> list[str]:
    return [PeerAddress.parse(text).host for text in texts]


def test_an_address_that_others_can_call_comes_before_those_of_containers() -> None:
    """As the daemon sorts them on a machine with many container networks: an invite would hold no other."""
    inside = [f"/ip4/172.{number}.0.1/tcp/7331" for number in range(18, 28)]
    endpoints = ["/ip4/127.0.0.1/tcp/7331", *inside, "/ip4/192.168.1.7/tcp/7331", "/ip4/93.184.216.34/tcp/7331"]
    found = [PeerAddress.parse(f"{endpoint}/p2p/{Identity(bytes(32)).peer_id}") for endpoint in endpoints]
    first = [one.host for one in useful_first(found, {"192.168.1.7"})]
    assert first[:3] == ["93.184.216.34", "192.168.1.7", "172.18.0.1"]
    assert first[-1] == "127.0.0.1"
    assert len(first) == len(found)


def test_values_that_no_presence_can_say_are_left_out_of_it(tmp_path: Path) -> None:
    """A session's loss may be no cross-entropy, and a relayed address may have a long name."""
    short, long = "/dns4/here.example/tcp/1", f"/dns4/{'a' * 240}.example/tcp/1"

    async def main() -> Presence:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        addresses: Any = SimpleNamespace(told=(long, short))
        own = OwnPresence(swarm.peers[0].driver, NodeOptions(tmp_path), addresses)
        progress = LearnerProgress()
        progress.report(
            Steps(entries=(StepEntry(step=1, loss=-0.7, tokens=64),), cpu_seconds=0.1, busy_seconds=0.1), 1.0
        )
        said = own.now("training", progress)
        await swarm.close()
        return said

    said = run_virtual(main())
    assert said.loss is None
    assert said.addresses == (short,)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ("0.3.1", "musterml 0.3.1"),
        ("", "musterml"),
        (f"0.3.2.dev4+g{'a' * 40}", "musterml 0.3.2.dev4+gaaaaaaaaaaa"),
    ],
)
def test_presence_names_the_release_that_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, said: str
) -> None:
    monkeypatch.setattr("peer.node.presence.release", lambda: installed)

    async def main() -> Presence:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        addresses: Any = SimpleNamespace(told=())
        presence = OwnPresence(swarm.peers[0].driver, NodeOptions(tmp_path), addresses).now("starting", None)
        await swarm.close()
        return presence

    assert run_virtual(main()).software == said


@asynccontextmanager
async def looking(folder: Path) -> AsyncIterator[tuple[Peer, Moving, OwnAddresses, OwnPresence]]:
    """Yield a peer that checks its own addresses, as often as peers do."""
    swarm = Swarm(config_of(), 1, folder)
    await swarm.start()
    (peer,) = swarm.peers
    place = Moving(peer)
    own = await OwnAddresses.start(place, peer.driver.engine.core, place.moved)
    presence = OwnPresence(peer.driver, NodeOptions(folder), own)
    task = asyncio.get_running_loop().create_task(own.run())
    yield peer, place, own, presence
    task.cancel()
    await swarm.close()


def test_a_relay_is_told_while_nobody_gets_through_and_never_in_an_invite(tmp_path: Path) -> None:
    async def main() -> None:
        async with looking(tmp_path) as (peer, place, own, presence):
            own_core = peer.driver.engine.core
            place.relays = (f"/ip4/9.9.9.9/tcp/7400/p2p/{Identity(bytes(32)).peer_id}",)
            await asyncio.sleep(2 * LOOK_SECONDS)
            assert hosts(presence.now("training", None).addresses) == ["8.8.4.4", "192.168.1.7"], "it can be called"

            own_core.dialable = False
            own.hurry()
            await asyncio.sleep(1.0)
            assert hosts(presence.now("training", None).addresses) == ["9.9.9.9", "8.8.4.4", "192.168.1.7"]
            assert (hosts(own.texts), own.port, own_core.networks) == (
                ["8.8.4.4", "192.168.1.7"],
                7331,
                (b"\x08\x08\x04",),
            )
            assert place.moves == 1

            place.relays = ()
            await asyncio.sleep(LOOK_SECONDS)
            assert len(own.relayed) == 1, "it may be away for a moment"
            own_core.dialable = True
            own.hurry()
            await asyncio.sleep(1.0)
            assert own.relayed == ()

    run_virtual(main())


def test_presence_invites_and_joins_follow_a_machine_that_moves(tmp_path: Path) -> None:
    async def main() -> None:
        async with looking(tmp_path) as (peer, place, own, presence):
            own_core = peer.driver.engine.core
            assert hosts(presence.now("training", None).addresses) == ["8.8.4.4", "192.168.1.7"]
            assert own_core.networks == (b"\x08\x08\x04",)
            await asyncio.sleep(1.5 * LOOK_SECONDS)
            assert place.moves == 0

            place.endpoints = ["/ip4/9.9.9.9/tcp/7332"]
            await asyncio.sleep(LOOK_SECONDS)
            assert hosts(presence.now("training", None).addresses) == ["9.9.9.9"]
            assert own_core.networks == (b"\x09\x09\x09",)
            assert own.port == 7332
            invite = fresh_invite(own_core.manifest, own.texts, peer.driver.engine.chains)
            assert [address.host for address in invite.addresses] == ["9.9.9.9"]
            assert place.moves == 1

            place.endpoints = ["/ip4/9.9.9.9/tcp/7333"]
            for callback in place.rebuilt:
                await callback()
            assert own.port == 7333, "a daemon that was rebuilt is asked at once"

    run_virtual(main())


def test_without_an_answer_or_an_address_the_old_ones_stay(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        place = Moving(swarm.peers[0])
        own = await OwnAddresses.start(place, swarm.peers[0].driver.engine.core, place.moved)
        before = own.texts
        place.endpoints.reverse()
        await own.look()
        place.silent = True
        await own.look()
        place.silent, place.endpoints = False, []
        await own.look()
        assert own.texts == before
        assert place.moves == 0
        await swarm.close()

    run_virtual(main())


def test_a_daemon_that_comes_back_at_another_port_is_told_of() -> None:
    """This is checked with a real daemon."""

    async def main() -> tuple[tuple[str, ...], tuple[str, ...], int]:
        with tempfile.TemporaryDirectory() as name:  # pytest's own is too long for sockets
            folder = Path(name)
            Identity(bytes([1]) * 32).save(folder / "key")
            config = DaemonConfig(folder / "key", runtime_parent=folder)
            node = await DhtNode.start(config, RecordRules(bytes(32), KeyVerifier()), time.time)
            try:
                moved: list[int] = []
                own = await OwnAddresses.start(node, core(), lambda: moved.append(1))
                before = own.texts
                node.daemon._listen = config.listen  # any port, as if the old one were taken by now
                await node.rebuild()
                assert own.texts == tuple(map(str, await node.daemon.visible_addresses()))
                return before, own.texts, len(moved)
            finally:
                await node.close()

    before, after, moves = asyncio.run(main())
    assert before != after
    assert moves == 1
