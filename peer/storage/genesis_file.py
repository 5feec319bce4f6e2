"""Version 0 in the run's folder, where its values are given and not seeded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coordinator.run.manifest import Manifest
from dht.errors import LocalError
from dht.files import publish
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import genesis_states

GENESIS_FILE = "genesis.safetensors"


def digests_of(states: Sequence[OuterState]) -> tuple[bytes, ...]:
    """Return the digests that name these states, by fragment."""
    return tuple(state.digest for state in states)


def save_genesis(folder: Path, states: Sequence[OuterState]) -> None:
    """Write the given values; raises LocalError."""
    path, new = folder / GENESIS_FILE, folder / f"{GENESIS_FILE}.new"
    try:
        save_file({str(fragment): state.anchor for fragment, state in enumerate(states)}, new)
        publish(new, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            new.unlink()
        raise LocalError(f"{path} cannot be written: {error}") from None


def has_genesis(folder: Path, manifest: Manifest) -> bool:
    """Whether version 0 is available without asking other peers."""
    return manifest.config.model.weights == "seeded" or (folder / GENESIS_FILE).exists()


def load_genesis(folder: Path, manifest: Manifest) -> list[OuterState]:
    """Load version 0 of every fragment; raises LocalError if the file is missing or not the manifest's."""
    if manifest.config.model.weights == "seeded":
        return genesis_states(manifest.config)
    path = folder / GENESIS_FILE
    try:
        saved = load_file(path)
        anchors = [saved[str(fragment)] for fragment in range(len(manifest.genesis))]
    except (OSError, SafetensorError, KeyError) as error:
        raise LocalError(f"{path} cannot be read ({error}); remove it to fetch the values again") from None
    states = [OuterState.begin(anchor, manifest.config.outer.momentum) for anchor in anchors]
    if digests_of(states) != manifest.genesis:
        raise LocalError(f"{path} is not version 0 of this run; remove it to fetch the values again")
    return states
