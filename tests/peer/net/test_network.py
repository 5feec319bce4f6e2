"""A peer's place in the network: waits on slow lines, and reports when its maintenance fails."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.run.manifest import Manifest
from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX, NetworkView
from dht.addresses import PeerAddress
from dht.daemon.dns_names import Names
from dht.errors import NetworkError, UsageError
from dht.identity import Identity, PeerId
from dht.invite import Invite
from dht.statement import digest_of
from dht.store import StoredRecord
from peer.machine.text import plain
from peer.net.network import QUEUE_BYTES_MIN, QUEUE_SECONDS, Network, transport_config
from peer.net.transport import OnFrame, OnGone, TransportConfig
from peer.node.options import NodeOptions
from peer.node.parts import join_network
from peer.observer.process import Observer, Show
from tests.coordinator.builders import Club
from tests.peer.virtual_loop import run_virtual


def test_queues_are_as_short_as_the_owners_upload_limit_makes_them() -> None:
    usual = TransportConfig()

    def queue_bytes(bytes_per_second: float) -> int:
        return transport_config(bytes_per_second, usual.payload_bytes_max).queue_bytes_max

    assert queue_bytes(math.inf) == usual.queue_bytes_max
    assert queue_bytes(1e12) == usual.queue_bytes_max
    assert queue_bytes(250_000.0) == 250_000 * QUEUE_SECONDS < usual.queue_bytes_max
    assert queue_bytes(1.0) == QUEUE_BYTES_MIN


def test_payloads_are_as_long_as_a_runs_fragments_make_them() -> None:
    long = 125_000_000  # a fragment of a billion parameters in eight, where one peer reduces it
    config = transport_config(math.inf, long)
    assert config.payload_bytes_max == long
    assert config.unfinished_bytes_max >= 4 * long
    assert transport_config(math.inf, 1000).unfinished_bytes_max == TransportConfig().unfinished_bytes_max
    with pytest.raises(UsageError, match="needs more fragments"):
        transport_config(math.inf, 1 << 32)


class Broken:
    """A record store whose probe fails with an unexpected error."""

    alive = True

    async def probe(self) -> None:
        raise RuntimeError("nobody thought of this")

    async def rebuild(self) -> None: ...
    async def close(self) -> None: ...


class Unwatched(Network):
    """A `Network` without a real network."""

    def __init__(self) -> None:
        self.dht = Broken()  # type: ignore[assignment]

    async def start(self, on_frame: OnFrame, on_gone: OnGone) -> None: ...
    async def flush(self, timeout_seconds: float) -> bool:
        return True

    async def close(self) -> None: ...


def test_a_peer_hears_when_its_network_is_watched_by_nobody_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_network(*_: object) -> Network:
        return Unwatched()

    monkeypatch.setattr("peer.node.parts.open_network", open_network)

    async def main() -> None:
        joined = await join_network(
            NodeOptions(tmp_path), Identity(digest_of(b"me")), "learner", digest_of(b"run"), None
        )
        with pytest.raises(RuntimeError, match="nobody thought of this"):
            await joined.life.wait()
        await joined.life.close()

    run_virtual(main())


def make_observer(
    network: Network, folder: Path, show: Show, monkeypatch: pytest.MonkeyPatch, patient: bool = True
) -> Observer:
    """Return an observer that connects to this network."""
    manifest = Club.of(2).manifest

    async def open_network(*_: object) -> Network:
        return network

    async def fetch_manifest(*_: object) -> Manifest:
        return manifest

    monkeypatch.setattr(Network, "open", open_network)
    monkeypatch.setattr("peer.observer.process.fetch_manifest", fetch_manifest)
    address = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/1/p2p/{manifest.organiser}")
    return Observer(Invite(manifest.run_id, manifest.organiser, (address,)), folder / "key", show, patient)


def test_an_observer_hears_when_its_network_is_watched_by_nobody_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def show(_: NetworkView) -> None: ...
    async def read(_: Observer) -> None:
        await asyncio.sleep(1e9)

    monkeypatch.setattr(Observer, "_read", read)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="nobody thought of this"):
            await make_observer(Unwatched(), tmp_path, show, monkeypatch).run()

    run_virtual(main())


def test_an_observer_that_is_not_patient_fails_where_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def show(_: NetworkView) -> None: ...
    async def nobody(*_: object) -> Network:
        raise NetworkError("nobody answers at 127.0.0.1:1")

    async def main() -> None:
        observer = make_observer(Unwatched(), tmp_path, show, monkeypatch, patient=False)
        monkeypatch.setattr(Network, "open", nobody)
        with pytest.raises(NetworkError, match=r"nobody answers at 127\.0\.0\.1:1"):
            await observer.run()
        assert asyncio.get_running_loop().time() < 1.0

    run_virtual(main())


@pytest.mark.parametrize("error", ["nobody answers; this invite works on one machine only" * 8, "x" * 10_000, "a\nb"])
def test_an_observer_says_why_it_sees_nothing_at_whatever_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Before, a dashboard ended because the advice about an invite of this machine was longer than a view allows."""
    notes: list[str] = []

    async def show(view: NetworkView) -> None:
        notes.append(view.note)
        if len(notes) > 1:
            raise EndOfTest

    async def nobody(*_: object) -> Network:
        raise NetworkError(error)

    async def main() -> None:
        observer = make_observer(Unwatched(), tmp_path, show, monkeypatch)
        monkeypatch.setattr(Network, "open", nobody)
        with pytest.raises(EndOfTest):
            await observer.run()

    run_virtual(main())
    assert notes[-1] == plain(error, SENTENCE_CHARACTERS_MAX)


class EndOfTest(Exception):
    """Raised to end a test."""


class Quiet(Unwatched):
    """A `Network` in which no peer sends anything."""

    def __init__(self) -> None:
        self.dht = self  # type: ignore[assignment]
        self.store = self
        self.daemon = self
        self.bootstrap_peers: tuple[PeerAddress, ...] = ()
        self.home_hosts: frozenset[str] = frozenset()
        self.names = Names()

    async def get(self, _: bytes) -> list[StoredRecord]:
        return []

    def remember(self, _: list[PeerAddress]) -> None: ...
    async def watch(self) -> None: ...

    async def hosts(self) -> dict[PeerId, str]:
        return {}


def test_an_observers_clock_goes_on_after_its_machine_has_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    wall = [1e9]  # of monotonic time 0

    async def show(view: NetworkView) -> None:
        seen.append(view.taken_unix_seconds - asyncio.get_running_loop().time())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr("peer.observer.process.unix_seconds", lambda: wall[0] + loop.time())
        observing = asyncio.create_task(make_observer(Quiet(), tmp_path, show, monkeypatch).run())
        await asyncio.sleep(10.0)
        wall[0] += 5 * 3600.0
        await asyncio.sleep(10.0)
        observing.cancel()
        with suppress(asyncio.CancelledError):
            await observing

    run_virtual(main())
    assert seen[0] == pytest.approx(1e9, abs=1.0)
    assert seen[-1] == pytest.approx(1e9 + 5 * 3600.0, abs=1.0)
