"""The file of a base that peers of a run hand out: downloaded to disk piece by proven piece, and served from there.

The manifest has the root of the file's Merkle tree. So a piece proves itself, whichever peer sent it, and a false one
is never written. Valid pieces of an interrupted download on disk count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from coordinator.run.adapter_spec import BaseFile
from coordinator.wire.merkle import leaf_count, root_of_leaves
from dht.errors import LocalError
from peer.data.tally import Tell, tell_nobody
from peer.model.base import leaves_of
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES
from peer.sync.download import Download, Piece

FETCHING = "fetching the base"


def is_file(leaves: tuple[bytes, ...], file: BaseFile) -> bool:
    """Whether these are the leaf digests of the run's file."""
    pieces = leaf_count(file.size_bytes, STATE_PIECE_BYTES)
    return len(leaves) == pieces and root_of_leaves(leaves) == file.digest


class FileDownload(Download):
    """The download of a file to `path`, where a part of it may be already."""

    def __init__(self, path: Path, file: BaseFile, tell: Tell = tell_nobody) -> None:
        """Allocate the disk space for the file; raises LocalError."""
        pieces = leaf_count(file.size_bytes, STATE_PIECE_BYTES)
        super().__init__(file.digest, pieces, pieces, file.size_bytes)
        self._file, self._tell = file, tell
        try:
            self._there = leaves_of(path)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._descriptor, file.size_bytes)
            os.posix_fallocate(self._descriptor, 0, file.size_bytes)
        except OSError as error:
            raise LocalError(f"{path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _is_named(self, leaves: tuple[bytes, ...]) -> bool:
        return is_file(leaves, self._file)

    def take(self, piece: Piece, payload: bytes) -> bool:
        """Take a piece; the first leaf digests also let pieces count that were on disk before."""
        proved_before = self.proves
        is_right = super().take(piece, payload)
        if self.proves and not proved_before:
            self._recall()
        return is_right

    def _recall(self) -> None:
        for piece, (wanted, found) in enumerate(zip(self.leaves, self._there, strict=False)):
            if wanted == found:
                start = piece * STATE_PIECE_BYTES
                self._count(piece, min(STATE_PIECE_BYTES, self.bytes_total - start))

    def _keep(self, piece: int, payload: bytes) -> None:
        os.pwrite(self._descriptor, payload, piece * STATE_PIECE_BYTES)
        self._tell(FETCHING, (self.bytes_done + len(payload)) / self.bytes_total)


class ServedFile:
    """The base file at a peer that has all of it."""

    def __init__(self, path: Path, leaves: tuple[bytes, ...]) -> None:
        self._path = path
        self._leaves = leaves

    @classmethod
    def read(cls, path: Path, file: BaseFile) -> Self | None:
        """Return the file, or None if the one on disk is not the run's."""
        try:
            leaves = leaves_of(path)
        except OSError:
            return None
        return cls(path, leaves) if is_file(leaves, file) else None

    def piece(self, piece: Piece) -> bytes:
        """Return this piece, or all leaf digests; empty if the file can no longer be read."""
        if piece is None:
            return b"".join(self._leaves)
        try:
            with self._path.open("rb") as file:
                file.seek(piece * STATE_PIECE_BYTES)
                return file.read(STATE_PIECE_BYTES)
        except OSError:
            return b""
