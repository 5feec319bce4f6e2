"""Version 0 of a run: seeded values that every machine draws, or the host's own, which newcomers fetch once.

Given values lie in a file of the run's folder. They are proven against the digests in the manifest, whoever sent them
and whenever they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from coordinator.run.manifest import Manifest
from dht.errors import NetworkError, PeerError
from dht.identity import PeerId
from peer.net.frames import StatePiece, decode_header, encode_header
from peer.net.transport import Transport
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import Anchors, layouts_of
from peer.storage.genesis_file import has_genesis, save_genesis
from peer.sync.download_scheduler import Wanted
from peer.sync.state_client import StateClient

TRIES_MAX = 5  # per fragment; what has arrived is kept between them


async def ensure_genesis(folder: Path, manifest: Manifest, holders: Collection[PeerId], transport: Transport) -> None:
    """Fetch and keep version 0 unless it is here or can be drawn; raises NetworkError or LocalError."""
    if not has_genesis(folder, manifest):
        save_genesis(folder, await fetch_genesis(manifest, holders, transport))


async def fetch_genesis(manifest: Manifest, holders: Collection[PeerId], transport: Transport) -> list[OuterState]:
    """Version 0 of every fragment from these holders, before anything else is delivered here; raises NetworkError."""
    transfer = StateClient(
        Anchors(layouts_of(manifest.config), ()),
        lambda peer, message, payload: transport.post(peer, encode_header(message), payload),
    )

    def on_frame(sender: PeerId, header: bytes, payload: bytes) -> None:
        with suppress(PeerError):
            message = decode_header(header)
            if isinstance(message, StatePiece):
                transfer.receive(sender, message, payload)

    await transport.start(on_frame, transfer.gone)
    asked = sorted(holders)
    return [
        await _fetch(transfer, Wanted(fragment, 0, digest, digest), asked)
        for fragment, digest in enumerate(manifest.genesis)
    ]


async def _fetch(transfer: StateClient, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
    for _ in range(TRIES_MAX):
        with suppress(NetworkError):
            return await transfer.get(wanted, holders)
    raise NetworkError("nobody named in the invite gives the run's first version; ask for a fresh invite")
