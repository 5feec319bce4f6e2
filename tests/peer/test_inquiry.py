"""What a newcomer makes of the manifests that others show it: memory transport, virtual time."""

from __future__ import annotations

import pytest

from coordinator.manifest import Manifest
from dht.errors import NetworkError, UsageError
from dht.identity import Identity, PeerId
from dht.statement import digest_of
from dht.wire import PROTOCOL_MINOR
from peer.frames import ManifestAnswer, ManifestAsk, decode_header, encode_header
from peer.inquiry import fetch_manifest
from peer.memory_transport import MemoryNetwork
from peer.virtual_loop import run_virtual
from tests.peer.homely import manifest

NEWCOMER, HOLDER, LIAR = (Identity(digest_of(name)).peer_id for name in (b"newcomer", b"holder", b"liar"))


def fetched(shown: dict[PeerId, bytes], run_id: bytes) -> Manifest:
    """What the newcomer ends with if these peers answer with these bytes."""

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
