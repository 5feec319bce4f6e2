"""Fetching a base that the run's peers give away: piece by piece, from those that have it, and never a false one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.run.adapter_spec import BaseFile
from coordinator.run.manifest import Manifest
from coordinator.wire.merkle import leaf_count
from dht.errors import NetworkError, UsageError
from dht.identity import Identity, PeerId
from dht.statement import digest_of
from peer.data.tally import tell_nobody
from peer.model.base import BASE_FILE, check_base, given_file, leaves_of
from peer.model.description import describe
from peer.net.frames import Transfer, decode_header, encode_header
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors
from peer.sync.base_fetch import ensure_base, hand_out_base
from peer.sync.base_file import FileDownload, ServedFile
from peer.sync.genesis import begin_client
from tests.peer.adapting import adapter_run, write_base
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

HOST, NEWCOMER, OTHER = (Identity(digest_of(b"base", name)) for name in (b"host", b"newcomer", b"other"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a base of a few megabytes."""
    return write_base(tmp_path_factory.mktemp("base"), inner=2048)


@pytest.fixture(scope="module")
def manifest(base: Path) -> Manifest:
    """Return the manifest of a run whose host gives away the base."""
    config = describe(adapter_run(base, give_base=True)).config
    return Manifest(
        config=config,
        organiser=HOST.peer_id,
        founders=(HOST.peer_id,),
        data_digest=digest_of(b"data"),
        genesis=tuple(digest_of(bytes([one])) for one in range(config.pace.fragments)),
        created_unix_seconds=0,
    )


def file_of(manifest: Manifest) -> BaseFile:
    adapter = manifest.config.adapter
    assert adapter is not None
    assert adapter.base_file is not None
    return adapter.base_file


def pieces_of(manifest: Manifest) -> int:
    return leaf_count(file_of(manifest).size_bytes, STATE_PIECE_BYTES)


class Holder:
    """A peer that hands out its base, and falls silent after so many questions."""

    def __init__(self, network: MemoryNetwork, identity: Identity, answers: float = math.inf) -> None:
        self.asked = 0
        self._answers = answers
        self._transport = network.transport(identity.peer_id)
        self.requests = PeerRequests(
            Anchors((), ()),
            b"",
            tuple,
            lambda to, what, data: self._transport.post(to, encode_header(what), data),
        )

    async def start(self) -> None:
        await self._transport.start(self._on_frame, lambda peer: None)

    def _on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self.asked += 1
        message = decode_header(header)
        assert isinstance(message, Transfer)
        if self.asked <= self._answers:
            self.requests.handle(sender, message, payload, 0.0)  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.requests.close()
        await self._transport.close()


async def got(part: Path, file: BaseFile, served: Sequence[ServedFile], answers: float = math.inf) -> tuple[bool, int]:
    """Return whether one try with these holders brings the whole file to `part`, and how many questions it took."""
    network = MemoryNetwork(1)
    newcomer, holders = network.transport(NEWCOMER.peer_id), []
    for identity, one in zip((HOST, OTHER), served, strict=False):
        holders.append(Holder(network, identity, answers))
        holders[-1].requests.server.hand_out(file.digest, one)
        await holders[-1].start()
    download = FileDownload(part, file, tell_nobody)
    client = await begin_client(Anchors((), ()), newcomer)
    try:
        await client.get_file(download, [HOST.peer_id, OTHER.peer_id][: len(served)])
    finally:
        client.close()
        download.close()
        for holder in holders:
            await holder.close()
        await newcomer.close()
    return download.done, sum(one.asked for one in holders)


def served_by(base: Path, file: BaseFile) -> ServedFile:
    found = ServedFile.read(base / BASE_FILE, file)
    assert found is not None
    return found


def damaged(path: Path, folder: Path, piece: int) -> Path:
    """Return a copy of the file with one byte of this piece changed."""
    content = bytearray(path.read_bytes())
    content[piece * STATE_PIECE_BYTES + 7] ^= 1
    found = folder / "damaged"
    found.write_bytes(content)
    return found


def test_a_newcomer_gets_the_base_and_can_use_it(base: Path, manifest: Manifest, tmp_path: Path) -> None:
    async def main() -> Path:
        network = MemoryNetwork(1)
        host, newcomer = Holder(network, HOST), network.transport(NEWCOMER.peer_id)
        await hand_out_base(host.requests.server, manifest.config, str(base))
        await host.start()

        async def holders() -> set[PeerId]:
            return {HOST.peer_id}

        try:
            found = await ensure_base(tmp_path, manifest, holders, newcomer, tell_nobody)
            asked = host.asked
            assert await ensure_base(tmp_path, manifest, holders, newcomer, tell_nobody) == found
            assert host.asked == asked, "what is here is not fetched again"
        finally:
            await host.close()
            await newcomer.close()
        return found

    found = asyncio.run(main())
    assert (found / BASE_FILE).read_bytes() == (base / BASE_FILE).read_bytes()
    assert manifest.config.adapter is not None
    check_base(manifest.config.adapter, found)
    again = describe(adapter_run(found, give_base=True)).config
    assert again == manifest.config, "the folder is as good a base as the organiser's"


def test_a_false_piece_is_refused_by_name_and_not_written(base: Path, manifest: Manifest, tmp_path: Path) -> None:
    file, part = file_of(manifest), tmp_path / "part"
    liar = ServedFile(damaged(base / BASE_FILE, tmp_path, piece=3), leaves_of(base / BASE_FILE))
    with pytest.raises(NetworkError, match=f"piece 3 from {HOST.peer_id} is false"):
        run_virtual(got(part, file, [liar]))
    assert leaves_of(part)[3] != leaves_of(tmp_path / "damaged")[3]
    done, asked = run_virtual(got(part, file, [liar, served_by(base, file)]))
    assert done
    assert asked > 1
    assert part.read_bytes() == (base / BASE_FILE).read_bytes()


def test_pieces_that_have_arrived_count_after_an_interruption(base: Path, manifest: Manifest, tmp_path: Path) -> None:
    file, part, pieces = file_of(manifest), tmp_path / "part", pieces_of(manifest)
    assert pieces > 8
    with pytest.raises(NetworkError):
        run_virtual(got(part, file, [served_by(base, file)], answers=pieces // 2))
    done, asked = run_virtual(got(part, file, [served_by(base, file)]))
    assert done
    assert asked == 1 + pieces - (pieces // 2 - 1), "the digests again, and of the pieces those that are missing"
    assert part.read_bytes() == (base / BASE_FILE).read_bytes()


def test_a_damaged_copy_is_not_used_and_its_piece_is_fetched_again(
    base: Path, manifest: Manifest, tmp_path: Path
) -> None:
    file = file_of(manifest)
    copy = damaged(base / BASE_FILE, tmp_path, piece=1)
    assert ServedFile.read(copy, file) is None
    assert run_virtual(got(copy, file, [served_by(base, file)])) == (True, 2)
    assert ServedFile.read(copy, file) is not None


def test_only_the_runs_own_base_is_handed_out(manifest: Manifest, tmp_path: Path) -> None:
    other = write_base(tmp_path / "other", seed=2, inner=2048)

    async def main() -> tuple[bool, int]:
        network = MemoryNetwork(1)
        host, newcomer = Holder(network, HOST), network.transport(NEWCOMER.peer_id)
        await hand_out_base(host.requests.server, manifest.config, str(other))
        await host.start()
        download = FileDownload(tmp_path / "part", file_of(manifest), tell_nobody)
        client = await begin_client(Anchors((), ()), newcomer)
        try:
            with pytest.raises(NetworkError, match="no holder gave all of it"):
                await client.get_file(download, [HOST.peer_id])
            return download.proves, host.asked
        finally:
            client.close()
            download.close()
            await host.close()
            await newcomer.close()

    assert asyncio.run(main()) == (False, 1)


def test_a_base_that_is_large_or_in_several_files_is_not_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"max_shard_size"):
        given_file(tmp_path)
    with (tmp_path / BASE_FILE).open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(UsageError, match=r"3\.0 GB, and peers hand out 2\.0 GB at most"):
        given_file(tmp_path)
