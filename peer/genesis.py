"""Version 0 of a run: seeded values that every machine draws, or the host's own, which newcomers fetch once.

Given values lie in a file of the run's folder. They are proven against the digests in the manifest, whoever sent them
and whenever they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coordinator.manifest import Manifest
from dht.errors import LocalError, NetworkError, PeerError
from dht.files import publish
from dht.identity import PeerId
from peer.anchors import Anchors, genesis_states, layouts_of
from peer.downloads import Wanted
from peer.frames import StatePiece, decode_header, encode_header
from peer.outer_optimizer import OuterState, state_digest
from peer.state_transfer import StateTransfer
from peer.transport import Transport

GENESIS_FILE = "genesis.safetensors"
TRIES_MAX = 5  # per fragment; what has arrived is kept between them


def digests_of(states: Sequence[OuterState]) -> tuple[bytes, ...]:
    """What names these states, by fragment."""
    return tuple(state_digest(state.anchor, state.momentum) for state in states)


def save_genesis(folder: Path, states: Sequence[OuterState]) -> None:
    """Keep given values; raises LocalError."""
    path, new = folder / GENESIS_FILE, folder / f"{GENESIS_FILE}.new"
    try:
        save_file({str(fragment): state.anchor for fragment, state in enumerate(states)}, new)
        publish(new, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            new.unlink()
        raise LocalError(f"{path} cannot be written: {error}") from None


def has_genesis(folder: Path, manifest: Manifest) -> bool:
    """Whether version 0 can be had without asking anybody."""
    return manifest.config.model.weights == "seeded" or (folder / GENESIS_FILE).exists()


def load_genesis(folder: Path, manifest: Manifest) -> list[OuterState]:
    """Version 0 of every fragment; raises LocalError if the file is missing or not the manifest's."""
    if manifest.config.model.weights == "seeded":
        return genesis_states(manifest.config)
    path = folder / GENESIS_FILE
    try:
        saved = load_file(path)
        anchors = [saved[str(fragment)] for fragment in range(len(manifest.genesis))]
    except (OSError, SafetensorError, KeyError) as error:
        raise LocalError(f"{path} cannot be read ({error}); remove it to fetch the values again") from None
    states = [OuterState(anchor, torch.zeros_like(anchor)) for anchor in anchors]
    if digests_of(states) != manifest.genesis:
        raise LocalError(f"{path} is not version 0 of this run; remove it to fetch the values again")
    return states


async def ensure_genesis(folder: Path, manifest: Manifest, holders: Collection[PeerId], transport: Transport) -> None:
    """Fetch and keep version 0 unless it is here or can be drawn; raises NetworkError or LocalError."""
    if not has_genesis(folder, manifest):
        save_genesis(folder, await fetch_genesis(manifest, holders, transport))


async def fetch_genesis(manifest: Manifest, holders: Collection[PeerId], transport: Transport) -> list[OuterState]:
    """Version 0 of every fragment from these holders, before anything else is delivered here; raises NetworkError."""
    transfer = StateTransfer(
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


async def _fetch(transfer: StateTransfer, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
    for _ in range(TRIES_MAX):
        with suppress(NetworkError):
            return await transfer.get(wanted, holders)
    raise NetworkError("nobody named in the invite gives the run's first version; ask for a fresh invite")
