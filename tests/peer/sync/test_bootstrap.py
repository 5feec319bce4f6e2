"""Which of the manifests that others show it a newcomer accepts, over the memory transport in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.chain.waypoint import Waypoint
from coordinator.run.manifest import Manifest
from dht.errors import NetworkError, UsageError
from dht.identity import Identity, KeyVerifier, PeerId
from dht.statement import digest_of
from dht.wire import PROTOCOL_MINOR
from peer.net.frames import ManifestAnswer, ManifestAsk, decode_header, encode_header
from peer.net.transport import Transport
from peer.sync.bootstrap import INQUIRY_SECONDS_MAX, MANIFEST_SECONDS_MAX, fetch_chains, fetch_manifest
from peer.sync.introduction import Introduction, empty_chains, observer_rules
from tests.peer.homely import manifest
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

NEWCOMER, HOLDER, LIAR = (Identity(digest_of(name)).peer_id for name in (b"newcomer", b"holder", b"liar"))


def fetched(shown: dict[PeerId, bytes], run_id: bytes) -> Manifest:
    """Return the manifest that the newcomer accepts if these peers answer with these bytes."""

    async def show(network: MemoryNetwork, peer: PeerId, data: bytes) -> None:
        transport = network.transport(peer)

        def on_frame(sender: PeerId, header: bytes, _: bytes) -> None:
            if isinstance(decode_header(header), ManifestAsk):
                transport.post(sender, encode_header(ManifestAnswer(manifest=data)))

        await transport.start(on_frame, lambda peer: None)

    async def ask() -> Manifest:
        network = MemoryNetwork(1)
        for peer, data in shown.items():
            await show(network, peer, data)
        return await fetch_manifest(network.transport(NEWCOMER), run_id, shown.keys())

    return run_virtual(ask())


def test_only_the_bytes_with_the_runs_hash_count() -> None:
    ours = manifest()
    other = ours.model_copy(update={"created_unix_seconds": 1})
    assert fetched({LIAR: other.to_wire(), HOLDER: ours.to_wire()}, ours.run_id) == ours
    with pytest.raises(NetworkError, match="nobody named in the invite answers"):
        fetched({LIAR: other.to_wire()}, ours.run_id)


def test_a_run_of_newer_peers_is_not_taken_for_silence() -> None:
    newer = manifest().model_copy(update={"protocol_minor_min": PROTOCOL_MINOR + 1})
    with pytest.raises(UsageError, match=r"this run needs protocol .* install a newer version"):
        fetched({HOLDER: newer.to_wire()}, newer.run_id)


def test_a_peer_that_takes_the_question_and_says_nothing_is_not_waited_for() -> None:
    """This happens on a connection of which only our end is left."""
    waypoint = Waypoint(version=8, digest=digest_of(b"heads"))
    introduction = Introduction(waypoint, empty_chains(manifest(), observer_rules(manifest(), KeyVerifier())))

    async def ask(what: Callable[[Transport, frozenset[PeerId]], Awaitable[Any]]) -> tuple[str, float]:
        network = MemoryNetwork(1)
        await network.transport(HOLDER).start(lambda *frame: None, lambda peer: None)
        with pytest.raises(NetworkError) as told:
            await what(network.transport(NEWCOMER), frozenset({HOLDER}))
        return str(told.value), asyncio.get_running_loop().time()

    for what, sentence, seconds_max in (
        (
            lambda transport, holders: fetch_manifest(transport, manifest().run_id, holders),
            "nobody named in the invite",
            MANIFEST_SECONDS_MAX,
        ),
        (
            lambda transport, holders: fetch_chains(transport, holders, introduction),
            "ask for a fresh invite",
            INQUIRY_SECONDS_MAX,
        ),
    ):
        told, seconds = run_virtual(ask(what))
        assert sentence in told
        assert seconds <= seconds_max
