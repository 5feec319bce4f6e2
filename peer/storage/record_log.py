"""A file of votes or certificates in order, each on disk before any peer is told of it (design §6.2 step 9)."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dht.files import sync, write_whole
from peer.storage.disk import disk_errors

RECORD_BYTES_MAX = 1 << 16
LOG_BYTES_MAX = 1 << 26
RECORDS_KEPT = 1024  # of a full log; votes that still bind are among the newest

_RECORD_HEADER = struct.Struct("<II")  # length of the payload, CRC-32 of the payload


class RecordLog:
    """Records in the order in which they were added, each on disk when `append` returns. Only one process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None  # offset of the next record; unknown until the file has been read

    def read(self) -> list[bytes]:
        """Return all whole records; a torn or changed one ends the log. Raises LocalError if reading fails."""
        with disk_errors(f"{self._path} cannot be read"):
            data = self._path.read_bytes() if self._path.exists() else b""
        records = list(_records(data))
        self._end = sum(_RECORD_HEADER.size + len(record) for record in records)
        return records

    def append(self, *payloads: bytes) -> None:
        """Add records; they are on disk when this returns. Raises LocalError if the disk refuses.

        A full log keeps the newest RECORDS_KEPT and the added ones.
        """
        record = b"".join(map(_framed, payloads))
        if self._end is None:
            self.read()
        if (self._end or 0) + len(record) > LOG_BYTES_MAX:
            self.replace(self.read()[-RECORDS_KEPT:])
        end = self._end or 0
        with disk_errors(f"{self._path} cannot be written"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = not self._path.exists()
            with self._path.open("r+b" if not new else "x+b") as file:
                # the rest of a torn write must never be read as part of a later record
                file.truncate(end)
                file.seek(end)
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync(self._path.parent)
        self._end = end + len(record)

    def replace(self, payloads: Sequence[bytes]) -> None:
        """Keep only these records: after a crash, either all of them or all of the earlier ones are there."""
        data = b"".join(map(_framed, payloads))
        with disk_errors(f"{self._path} cannot be rewritten (it is untouched)"):
            write_whole(self._path, data)
        self._end = len(data)


def _framed(payload: bytes) -> bytes:
    if not 0 < len(payload) <= RECORD_BYTES_MAX:
        raise ValueError(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(payload)}")
    return _RECORD_HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _records(data: bytes) -> Iterator[bytes]:
    start = 0
    while len(data) - start >= _RECORD_HEADER.size:
        size, checksum = _RECORD_HEADER.unpack_from(data, start)
        payload = data[start + _RECORD_HEADER.size : start + _RECORD_HEADER.size + size]
        # a crash may leave zeros at the end of a file, which decode as empty records, or ones, of which four are their
        # own checksum
        if not payload.strip(b"\xff") or len(payload) < size or zlib.crc32(payload) != checksum:
            return
        yield payload
        start += _RECORD_HEADER.size + size
