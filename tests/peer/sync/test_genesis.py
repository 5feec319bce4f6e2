"""Version 0 that nobody can draw: the host keeps it, newcomers fetch it, and the manifest's digests prove it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from coordinator.run.manifest import Manifest, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec, TensorEntry
from dht.errors import LocalError, NetworkError
from dht.identity import Identity
from dht.statement import digest_of
from peer.net.frames import Transfer, decode_header, encode_header
from peer.numerics.outer_optimizer import OuterState
from peer.rounds.requests import StateRequests
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.genesis_file import GENESIS_FILE, digests_of, has_genesis, load_genesis, save_genesis
from peer.sync.genesis import TRIES_MAX, fetch_genesis
from peer.sync.source import STALL_SECONDS
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

HOST, NEWCOMER = (Identity(digest_of(b"genesis", name)) for name in (b"host", b"newcomer"))
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


async def fetched_from(held: list[OuterState]) -> list[OuterState]:
    """What a newcomer gets from a host that serves `held`, over a transport in memory."""
    network = MemoryNetwork(1)
    host, newcomer = network.transport(HOST.peer_id), network.transport(NEWCOMER.peer_id)
    anchors = Anchors(layouts_of(CONFIG), held)
    anchors.serve_first(MANIFEST.genesis, held)
    transfers = StateRequests(
        anchors, MANIFEST.to_wire(), tuple, lambda to, what, data: host.post(to, encode_header(what), data)
    )

    def on_frame(sender: str, header: bytes, payload: bytes) -> None:
        message = decode_header(header)
        assert isinstance(message, Transfer)
        transfers.handle(sender, message, payload, 0.0)  # type: ignore[arg-type]

    await host.start(on_frame, lambda peer: None)
    try:
        return await fetch_genesis(MANIFEST, {HOST.peer_id}, newcomer)
    finally:
        transfers.states.close()
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
            await fetch_genesis(MANIFEST, {HOST.peer_id}, newcomer)
        await host.close()
        await newcomer.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < TRIES_MAX * STALL_SECONDS + 1.0


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
