"""Checkpoints as they were before `peer.storage.generations`, to go on from.

One safetensors file holds everything, its name ends in the SHA-256 of its content, and there are two of them. They go
when a generation has been saved.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dht.errors import PeerError, UsageError
from dht.files import publish
from dht.statement import Digest
from dht.wire import PROTOCOL_MAJOR, Wire
from peer.storage.disk import disk_errors, empty_folder
from peer.storage.tensor_file import map_tensors, write_tensors

META_BYTES_MAX = 1 << 24
META_ENTRIES_MAX = 4096
LEARNER_FILE = "learner.safetensors"  # the learner's part, taken out of a checkpoint for it
_BEHIND = "learner_behind"
_LEARNER_PREFIX = "learner/"
_FILE_NAME = re.compile(r"checkpoint-(\d{12})-([0-9a-f]{64})\.safetensors")
_METADATA_KEY = "muster"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a peer needs to go on: tensors of any type by name, and opaque bytes by name."""

    run_id: bytes
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, bytes]

    @property
    def held(self) -> tuple[tuple[int, ...], tuple[bytes | None, ...]]:
        """The versions of all fragments, and the digests of their certificates where known; raises PeerError."""
        saved = HeldVersions.from_wire(self.meta.get("held", b""))
        return saved.versions, saved.heads or (None,) * len(saved.versions)

    @property
    def learner_behind(self) -> bool:
        """Whether the learner's part is of an earlier moment."""
        return _BEHIND in self.meta

    def state_tensors(self, fragment: int) -> dict[str, Tensor]:
        """Those of one fragment, by what they are."""
        ending = f"/{fragment}"
        return {name.removesuffix(ending): one for name, one in self.tensors.items() if name.endswith(ending)}

    def unpack_learner(self, folder: Path) -> Path | None:
        """Write the learner's part to a file of its own, if there is one. Raises LocalError."""
        tensors = {
            name.removeprefix(_LEARNER_PREFIX): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(_LEARNER_PREFIX)
        }
        if not tensors:
            return None
        path = folder / LEARNER_FILE
        with disk_errors(f"{path} cannot be written"), empty_folder(folder / "learner-unpacked") as temporary:
            write_tensors(temporary / path.name, tensors)
            publish(temporary / path.name, path)
        return path


class HeldVersions(Wire):
    """Which version of each fragment a checkpoint holds, and the digests of these versions."""

    versions: tuple[int, ...]
    heads: tuple[Digest, ...] = ()


class FormatVersion(Wire):
    """The fields that every header starts with, whatever its version."""

    protocol_major: int = Field(ge=0)
    protocol_minor: int = Field(ge=0)


class MetaEntry(Wire):
    """Opaque bytes under a name."""

    name: str = Field(min_length=1, max_length=256)
    value: bytes = Field(max_length=META_BYTES_MAX)


class CheckpointHeader(FormatVersion):
    """What a checkpoint says beside its tensors; base64 in the metadata of the safetensors file."""

    run_id: Digest
    meta: tuple[MetaEntry, ...] = Field(max_length=META_ENTRIES_MAX)


def check_major(major: int, path: Path) -> None:
    """Raise UsageError if what lies there was written by another major version."""
    if major != PROTOCOL_MAJOR:
        raise UsageError(
            f"{path} was written under protocol {major}, and this is a muster of protocol {PROTOCOL_MAJOR}; "
            "install the version that wrote it or start with an empty directory"
        )


def load_latest(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; damaged ones are passed over with a warning.

    Raises UsageError if the newest whole one was written by another major version.
    """
    for path in reversed(_checkpoints(directory)):
        try:
            return _load(path)
        except (OSError, SafetensorError, PeerError, ValueError) as error:
            _log.warning("checkpoint_damaged", path=str(path), error=str(error))
    return None


def is_earlier(path: Path) -> bool:
    """Whether an earlier version wrote this file, and this one does not."""
    return path.name == LEARNER_FILE or _FILE_NAME.fullmatch(path.name) is not None


def _load(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if path.name.removesuffix(path.suffix).rpartition("-")[2] != digest:
        raise ValueError("the content is not what was written")
    with safe_open(path, framework="pt") as opened:
        data = base64.b64decode((opened.metadata() or {}).get(_METADATA_KEY, ""), validate=True)
    check_major(FormatVersion.from_wire(data, bytes_max=2 * META_BYTES_MAX).protocol_major, path)
    header = CheckpointHeader.from_wire(data, bytes_max=2 * META_BYTES_MAX)
    return Checkpoint(header.run_id, map_tensors(path), {entry.name: entry.value for entry in header.meta})


def _checkpoints(directory: Path) -> list[Path]:
    """The checkpoint files of a directory, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _FILE_NAME.fullmatch(path.name))
