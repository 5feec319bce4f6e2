"""The place of an adapter run's base on this machine: in the run's folder, or where its owner has it.

The peer notes the owner's place, so that `muster export`, `sample` and `eval` need not be told again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from dht.files import write_whole
from peer.data.hub import HUB

BASE_FOLDER = "base"  # a base that other peers of the run gave
NOTE = "base-is-in"


def note_base(folder: Path, config: RunConfig, base: str) -> None:
    """Note in the run's folder where its owner has the base, if there is one; raises LocalError."""
    if config.adapter is None or not base or base.startswith(HUB):
        return
    path, said = folder / NOTE, os.fsencode(Path(base).absolute())
    try:
        if not path.exists() or path.read_bytes() != said:  # every start reaches this, also on a full disk
            write_whole(path, said)
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}") from None


def noted_base(folder: Path) -> str:
    """Return where the base of the run with this folder is; empty if it is missing."""
    places = [folder / BASE_FOLDER]
    with suppress(OSError):
        places.insert(0, Path(os.fsdecode((folder / NOTE).read_bytes())))
    return next((str(place) for place in places if any(place.glob("*.safetensors"))), "")
