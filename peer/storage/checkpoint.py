"""What a peer keeps on disk: checkpoints that survive any crash, and the log of its own votes (design §8, §6.2 step 9).

A checkpoint is one ordinary safetensors file whose name ends in the SHA-256 of its content. It is written in a folder
beside the others, forced to disk and renamed, so at every moment the directory holds a whole one; a file that was torn
or changed later does not match its name, and the one before it is used. One process writes a directory at a time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import Field
from safetensors import SafetensorError, safe_open

from dht.errors import LocalError, PeerError, UsageError
from dht.files import publish, sync, write_whole
from dht.statement import Digest
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 2
META_BYTES_MAX = 1 << 24
META_ENTRIES_MAX = 4096
VOTE_BYTES_MAX = 1 << 16
VOTE_LOG_BYTES_MAX = 1 << 26
RECORDS_KEPT = 1024  # of a log that is full; votes that still bind are among the newest

_FILE_NAME = re.compile(r"checkpoint-(\d{12})-([0-9a-f]{64})\.safetensors")
_UNFINISHED = "unfinished"  # a folder: safetensors leaves temporary files of its own beside the one it writes
_METADATA_KEY = "muster"
_VOTE_HEAD = struct.Struct("<II")  # length of the payload, CRC-32 of the payload

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a peer needs to go on: tensors of any type by name, and opaque bytes by name.

    The bytes (`meta`: certificates, counters, data position) may take META_BYTES_MAX in all.
    """

    run_id: bytes
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, bytes] = field(default_factory=dict)


class FormatVersion(Wire):
    """The fields that every checkpoint header starts with, whatever its version."""

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


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint that is on disk when this returns, and drop all but the last KEPT.

    Raises LocalError if the disk refuses; what was saved before is then untouched.
    """
    if sum(map(len, checkpoint.meta.values())) > META_BYTES_MAX:
        raise ValueError(f"the meta entries of a checkpoint take more than {META_BYTES_MAX} bytes")
    entries = tuple(MetaEntry(name=name, value=value) for name, value in sorted(checkpoint.meta.items()))
    header = CheckpointHeader(
        protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, run_id=checkpoint.run_id, meta=entries
    )
    with (
        _disk_errors(f"no checkpoint can be written to {directory} (earlier ones are untouched)"),
        empty_folder(directory / _UNFINISHED) as folder,
    ):
        earlier = _checkpoints(directory)
        for path in earlier[:-KEPT]:  # left by a crash between the last two steps of a save
            path.unlink()
        earlier = earlier[-KEPT:]
        temporary = folder / "checkpoint"
        _write_tensors(temporary, checkpoint.tensors, header)
        name = f"checkpoint-{_sequence(earlier[-1]) + 1 if earlier else 1:012d}-{_file_digest(temporary)}.safetensors"
        publish(temporary, directory / name)
        for path in earlier[: 1 - KEPT]:
            path.unlink()
    return directory / name


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


class VoteLog:
    """Votes in the order in which they were cast, each on disk before it may be sent. One process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None  # where the next record goes; unknown until the file has been read

    def read(self) -> list[bytes]:
        """All whole records; a torn or changed one ends the log. Raises LocalError if the file cannot be read."""
        with _disk_errors(f"{self._path} cannot be read"):
            data = self._path.read_bytes() if self._path.exists() else b""
        records = list(_records(data))
        self._end = sum(_VOTE_HEAD.size + len(record) for record in records)
        return records

    def append(self, *payloads: bytes) -> None:
        """Add records; they are on disk when this returns. Raises LocalError if the disk refuses.

        A log that is full keeps the newest RECORDS_KEPT and what is added.
        """
        record = b"".join(map(_vote_record, payloads))
        if self._end is None:
            self.read()
        if (self._end or 0) + len(record) > VOTE_LOG_BYTES_MAX:
            self.replace(self.read()[-RECORDS_KEPT:])
        end = self._end or 0
        with _disk_errors(f"{self._path} cannot be written"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = not self._path.exists()
            with self._path.open("r+b" if not new else "x+b") as file:
                # what a torn write left behind must never be read as part of a later record
                file.truncate(end)
                file.seek(end)
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync(self._path.parent)
        self._end = end + len(record)

    def replace(self, payloads: Sequence[bytes]) -> None:
        """Keep only these records: all of them or, after a crash, all of the earlier ones."""
        data = b"".join(map(_vote_record, payloads))
        with _disk_errors(f"{self._path} cannot be rewritten (it is untouched)"):
            write_whole(self._path, data)
        self._end = len(data)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], header: CheckpointHeader) -> None:
    from safetensors.torch import save_file  # imports torch, which takes seconds

    storages: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        # the format has no sharing: tied weights are written twice
        plain[name] = own.clone() if own.untyped_storage().data_ptr() in storages else own
        storages.add(own.untyped_storage().data_ptr())
    save_file(plain, path, metadata={_METADATA_KEY: base64.b64encode(header.to_wire()).decode()})


def _load(path: Path) -> Checkpoint:
    if path.name != f"checkpoint-{_sequence(path):012d}-{_file_digest(path)}.safetensors":
        raise ValueError("the content is not what was written")
    with safe_open(path, framework="pt") as file:
        data = base64.b64decode((file.metadata() or {}).get(_METADATA_KEY, ""), validate=True)
        major = FormatVersion.from_wire(data, bytes_max=2 * META_BYTES_MAX).protocol_major
        if major != PROTOCOL_MAJOR:
            raise UsageError(
                f"{path} was written under protocol {major}, and this is a muster of protocol {PROTOCOL_MAJOR}; "
                "install the version that wrote it or start with an empty directory"
            )
        header = CheckpointHeader.from_wire(data, bytes_max=2 * META_BYTES_MAX)
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    return Checkpoint(header.run_id, tensors, {entry.name: entry.value for entry in header.meta})


def _checkpoints(directory: Path) -> list[Path]:
    """The checkpoint files of a directory, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _FILE_NAME.fullmatch(path.name))


def _sequence(path: Path) -> int:
    return int(path.name.split("-")[1])


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def clear_folder(path: Path) -> None:
    """Have a folder without what an earlier crash left in it; raises OSError."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder of our own for as long as the block runs, without what an earlier crash left in it."""
    clear_folder(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    """Turn what the disk says into a LocalError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LocalError(f"{what}: {reason}") from None


def _vote_record(payload: bytes) -> bytes:
    if not 0 < len(payload) <= VOTE_BYTES_MAX:
        raise ValueError(f"a vote has 1 to {VOTE_BYTES_MAX} bytes, not {len(payload)}")
    return _VOTE_HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _records(data: bytes) -> Iterator[bytes]:
    start = 0
    while len(data) - start >= _VOTE_HEAD.size:
        size, checksum = _VOTE_HEAD.unpack_from(data, start)
        payload = data[start + _VOTE_HEAD.size : start + _VOTE_HEAD.size + size]
        # a crash may leave zeros at the end of a file, which are empty, or ones, of which four are their own checksum
        if not payload.strip(b"\xff") or len(payload) < size or zlib.crc32(payload) != checksum:
            return
        yield payload
        start += _VOTE_HEAD.size + size
