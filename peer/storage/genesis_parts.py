"""Downloaded fragments of version 0 in the run's folder, so that a later start fetches only the others."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coordinator.run.manifest import Manifest
from dht.files import publish
from peer.numerics.outer_optimizer import OuterState

PARTS_FOLDER = "genesis-parts"
_ANCHOR = "anchor"


class GenesisParts:
    """The fragments of one download; with `None` for the folder, nothing is kept."""

    def __init__(self, folder: Path | None, manifest: Manifest) -> None:
        self._folder = None if folder is None else folder / PARTS_FOLDER
        self._digests = manifest.genesis
        self._momentum = manifest.config.outer.momentum

    def load(self, fragment: int) -> OuterState | None:
        """Return the kept state of this fragment, if it is the manifest's."""
        if self._folder is None:
            return None
        try:
            anchor = load_file(self._path(self._folder, fragment))[_ANCHOR]
        except (OSError, SafetensorError, KeyError):
            return None
        state = OuterState.begin(anchor, self._momentum)
        return state if state.digest == self._digests[fragment] else None

    def keep(self, fragment: int, state: OuterState) -> None:
        """Write the fragment. If the disk refuses, a later start fetches this fragment again."""
        if self._folder is None:
            return
        with suppress(OSError, SafetensorError):
            self._folder.mkdir(exist_ok=True)
            path = self._path(self._folder, fragment)
            save_file({_ANCHOR: state.anchor}, path.with_suffix(".new"))
            publish(path.with_suffix(".new"), path)

    def remove(self) -> None:
        """Remove the parts, because the whole is kept elsewhere."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def _path(folder: Path, fragment: int) -> Path:
        return folder / f"{fragment}.safetensors"
