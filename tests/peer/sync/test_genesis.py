"""A version 0 that no seed reproduces: the host keeps it, newcomers fetch it, and the manifest's digests prove it."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from coordinator.run.manifest import Manifest, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec, TensorEntry
from coordinator.wire.merkle import leaf_count
from dht.errors import LocalError, NetworkError
from dht.identity import Identity, PeerId
from dht.statement import digest_of
from peer.net.frames import Transfer, decode_header, encode_header
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.genesis_file import GENESIS_FILE, digests_of, has_genesis, load_genesis, save_genesis
from peer.storage.genesis_parts import PARTS_FOLDER, GenesisParts
from peer.sync.genesis import RETRY_SECONDS, TRIES_MAX, Holders, ensure_genesis, fetch_genesis
from peer.sync.source import STALL_SECONDS
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

HOST, NEWCOMER, OTHER = (Identity(digest_of(b"genesis", name)) for name in (b"host", b"newcomer", b"other"))
ENTRIES = tuple(TensorEntry(name=f"w{number}", shape=(300, 400)) for number in range(3))
CONFIG = RunConfig(model=ModelSpec(family="own", weights="given", tensors=ENTRIES), pace=PaceSpec(fragments=2))
VALUES = {
    one.name: torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
    for number, one in enumerate(ENTRIES)
}


def manifest_of(states: list[OuterState]) -> Manifest:
    return Manifest(
        config=CONFIG,
        organiser=HOST.peer_id,
        founders=(HOST.peer_id,),
        data_digest=digest_of(b"data"),
        genesis=digests_of(states),
        created_unix_seconds=0,
    )


STATES = genesis_states(CONFIG, VALUES)
MANIFEST = manifest_of(STATES)


def known(*identities: Identity) -> Holders:
    """Return a lookup in which these are the possible holders, now and later."""

    async def holders() -> set[PeerId]:
        return {one.peer_id for one in identities}

    return holders


async def fetched_from(held: list[OuterState]) -> list[OuterState]:
    """Return what a newcomer gets from a host that serves `held`, over the memory transport."""
    network = MemoryNetwork(1)
    host, newcomer = network.transport(HOST.peer_id), network.transport(NEWCOMER.peer_id)
    anchors = Anchors(layouts_of(CONFIG), held)
    anchors.serve_first(MANIFEST.genesis, held)
    requests = PeerRequests(
        anchors, MANIFEST.to_wire(), tuple, lambda to, what, data: host.post(to, encode_header(what), data)
    )

    def on_frame(sender: str, header: bytes, payload: bytes) -> None:
        message = decode_header(header)
        assert isinstance(message, Transfer)
        requests.handle(sender, message, payload, 0.0)  # type: ignore[arg-type]

    await host.start(on_frame, lambda peer: None)
    try:
        return await fetch_genesis(MANIFEST, known(HOST), newcomer)
    finally:
        requests.states.close()
        await host.close()
        await newcomer.close()


def test_a_newcomer_gets_the_hosts_values(tmp_path: Path):
    assert not has_genesis(tmp_path, MANIFEST)
    save_genesis(tmp_path, run_virtual(fetched_from(STATES)))
    assert has_genesis(tmp_path, MANIFEST)
    loaded = load_genesis(tmp_path, MANIFEST)
    assert all(torch.equal(ours.anchor, theirs.anchor) for ours, theirs in zip(loaded, STATES, strict=True))


def test_other_values_are_not_taken():
    false = [OuterState(state.anchor + 1, state.momentum) for state in STATES]
    with pytest.raises(NetworkError, match="first version"):
        run_virtual(fetched_from(false))


def test_a_host_that_takes_the_question_and_says_nothing_is_not_waited_for():
    async def main() -> float:
        network = MemoryNetwork(1)
        host, newcomer = network.transport(HOST.peer_id), network.transport(NEWCOMER.peer_id)
        await host.start(lambda *frame: None, lambda peer: None)
        with pytest.raises(NetworkError, match="first version"):
            await fetch_genesis(MANIFEST, known(HOST), newcomer)
        await host.close()
        await newcomer.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < TRIES_MAX * (STALL_SECONDS + RETRY_SECONDS) + 1.0


def test_the_values_of_version_0_outlive_later_versions():
    anchors = Anchors(layouts_of(CONFIG), STATES)
    anchors.serve_first(MANIFEST.genesis, STATES)
    for version in range(5):
        anchors.install(0, digest_of(bytes([version])), OuterState(STATES[0].anchor + version, STATES[0].momentum))
    assert anchors.served(0, MANIFEST.genesis[0]) is STATES[0]
    assert anchors.served(1, MANIFEST.genesis[0]) is None


def test_a_damaged_file_is_named(tmp_path: Path):
    save_genesis(tmp_path, [OuterState(state.anchor + 1, state.momentum) for state in STATES])
    with pytest.raises(LocalError, match="is not version 0 of this run"):
        load_genesis(tmp_path, MANIFEST)
    (tmp_path / GENESIS_FILE).write_bytes(b"nonsense")
    with pytest.raises(LocalError, match="remove it"):
        load_genesis(tmp_path, MANIFEST)


class Holder:
    """A peer that serves version 0 and dies after so many pieces."""

    def __init__(self, network: MemoryNetwork, identity: Identity, pieces: float = math.inf) -> None:
        self.asked = 0
        self._pieces = pieces
        self._transport = network.transport(identity.peer_id)
        anchors = Anchors(layouts_of(CONFIG), STATES)
        anchors.serve_first(MANIFEST.genesis, STATES)
        self.requests = PeerRequests(
            anchors,
            MANIFEST.to_wire(),
            tuple,
            lambda to, what, data: self._transport.post(to, encode_header(what), data),
        )

    async def start(self) -> None:
        await self._transport.start(self._on_frame, lambda peer: None)

    def _on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self.asked += 1
        if self.asked <= self._pieces:
            self.requests.handle(sender, decode_header(header), payload, 0.0)  # type: ignore[arg-type]

    async def close(self) -> None:
        self.requests.states.close()
        await self._transport.close()


def test_a_newcomer_whose_host_dies_asks_the_others_who_hold_version_0(tmp_path: Path) -> None:
    """Before, it gave up at once and kept nothing, although two other peers held version 0."""

    async def main() -> list[OuterState]:
        network = MemoryNetwork(1)
        newcomer = network.transport(NEWCOMER.peer_id)
        host, other = Holder(network, HOST, pieces=2), Holder(network, OTHER)
        await host.start()
        await other.start()
        looks = 0

        async def holders() -> set[PeerId]:
            nonlocal looks
            looks += 1
            return {HOST.peer_id} if looks == 1 else {HOST.peer_id, OTHER.peer_id}

        try:
            return await fetch_genesis(MANIFEST, holders, newcomer)
        finally:
            assert host.asked > 2
            assert other.asked > 0
            for one in (host, other, newcomer):
                await one.close()

    found = run_virtual(main())
    assert all(torch.equal(ours.anchor, theirs.anchor) for ours, theirs in zip(found, STATES, strict=True))


def test_pieces_of_version_0_are_kept_for_the_next_start(tmp_path: Path) -> None:
    pieces = [leaf_count(4 * state.anchor.numel(), STATE_PIECE_BYTES) for state in STATES]  # its momentum is spent

    async def fetched(pieces_given: float) -> int:
        network = MemoryNetwork(1)
        host, newcomer = Holder(network, HOST, pieces_given), network.transport(NEWCOMER.peer_id)
        await host.start()
        try:
            with suppress(NetworkError):
                await ensure_genesis(tmp_path, MANIFEST, known(HOST), newcomer)
            return host.asked
        finally:
            await host.close()
            await newcomer.close()

    run_virtual(fetched(pieces[0] + 2))  # the list of its pieces, too, and something of the next
    assert not has_genesis(tmp_path, MANIFEST)
    assert GenesisParts(tmp_path, MANIFEST).load(0) is not None
    assert run_virtual(fetched(math.inf)) < sum(pieces) + len(pieces)
    assert has_genesis(tmp_path, MANIFEST)
    assert not (tmp_path / PARTS_FOLDER).exists()
    assert all(
        torch.equal(ours.anchor, theirs.anchor)
        for ours, theirs in zip(load_genesis(tmp_path, MANIFEST), STATES, strict=True)
    )


def test_a_damaged_part_is_fetched_again(tmp_path: Path) -> None:
    parts = GenesisParts(tmp_path, MANIFEST)
    parts.keep(0, OuterState(STATES[0].anchor + 1, STATES[0].momentum))
    assert parts.load(0) is None
    (tmp_path / PARTS_FOLDER / "0.safetensors").write_bytes(b"nonsense")
    assert parts.load(0) is None
