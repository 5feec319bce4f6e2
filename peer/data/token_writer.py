"""A writer of token blocks; the hash of each block decides whether it is for training or evaluation."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dht.files import sync, write_whole
from peer.data.token_files import SIDES, cut_to, write_meta
from peer.data.tokens import Tokens

HELDOUT_SHARE = 0.03
SAVED_BYTES = 4 << 20  # of tokens between two records of progress
READ_BYTES = 1 << 20
_PROGRESS, _DIGESTS = "progress.json", "digests"
_DIGEST_BYTES = 32


def is_heldout_digest(digest: bytes, share: float = HELDOUT_SHARE) -> bool:
    """Whether a block of this digest is held out, about 3 %; a larger share includes all of a smaller one."""
    return int.from_bytes(digest[:8], "big") < int(share * 2**64)


def is_heldout_tokens(tokens: Tokens, share: float = HELDOUT_SHARE) -> bool:
    """Whether a document is held out, by its tokens: duplicates are always on the same side."""
    return is_heldout_digest(hashlib.sha256(tokens.tobytes()).digest(), share)


class TokenWriter:
    """A writer of a folder of tokens; it continues after the `done` blocks of an interrupted attempt."""

    def __init__(self, folder: Path, kind: np.dtype[Any], room: int, share: float = HELDOUT_SHARE) -> None:
        """Write at most `room` tokens of type `kind`, and hold out `share` of the blocks.

        Raises OSError, as every method does.
        """
        self._folder = folder
        self.share = share
        self._kind = kind
        self._counts = [0, 0]
        self._heldout_bytes = 0
        self.done = 0
        self._resume()
        self.room = room - sum(self._counts)
        self._unsaved_bytes = 0
        self._hasher = hashlib.sha256(b"muster-corpus/1")
        with (folder / _DIGESTS).open("rb") as file:
            while piece := file.read(READ_BYTES):
                self._hasher.update(piece)
        self._stack = ExitStack()
        self._files = [self._stack.enter_context((folder / name).open("ab")) for name in (*SIDES, _DIGESTS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _resume(self) -> None:
        try:
            saved = json.loads((self._folder / _PROGRESS).read_text(encoding="utf-8"))
            counts, done = [int(saved[side]) for side in SIDES], int(saved["blocks"])
            heldout_bytes = int(saved["heldout_bytes"])
            is_same = (saved["dtype"], saved["share"]) == (self._kind.name, self.share)
            # a file that is too short lost what was recorded, and zeros are no tokens
            if is_same and all(path.stat().st_size >= size for path, size in self._sizes(counts, done).items()):
                self._counts, self.done, self._heldout_bytes = counts, done, heldout_bytes
        except (OSError, ValueError, KeyError, TypeError):
            pass  # start from the beginning
        for path, size_bytes in self._sizes(self._counts, self.done).items():
            cut_to(path, size_bytes)

    def _sizes(self, counts: list[int], done: int) -> dict[Path, int]:
        """Return how many bytes each file has after so many tokens per side and so many blocks."""
        sizes = {self._folder / side: count * self._kind.itemsize for side, count in zip(SIDES, counts, strict=True)}
        return sizes | {self._folder / _DIGESTS: done * _DIGEST_BYTES}

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return sum(self._counts)

    @property
    def heldout_tokens(self) -> int:
        """Number of tokens held out."""
        return self._counts[1]

    def add(self, tokens: Tokens, text_bytes: int, heldout: bool | None = None) -> None:
        """Write one block, or as much of it as fits; `tokens` is uint8, or int32 in this machine's byte order.

        Digests are over the bytes of that type, whatever type the files have. `heldout` decides for a block that is
        not a document.
        """
        whole = len(tokens)
        tokens = tokens[: self.room]
        digest = hashlib.sha256(tokens.tobytes()).digest()
        self._hasher.update(digest)
        side = is_heldout_digest(digest, self.share) if heldout is None else heldout
        self._files[side].write(tokens.astype(self._kind).tobytes())
        self._files[2].write(digest)
        self._counts[side] += len(tokens)
        self._heldout_bytes += text_bytes * len(tokens) // max(1, whole) if side else 0
        self.room -= len(tokens)
        self.done += 1
        self._unsaved_bytes += tokens.nbytes
        if self._unsaved_bytes >= SAVED_BYTES:
            self._save()

    def _save(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())  # the record must not outlive a power failure that its tokens do not
        write_whole(
            self._folder / _PROGRESS, json.dumps(self._meta() | {"blocks": self.done, "share": self.share}).encode()
        )
        self._unsaved_bytes = 0

    def _meta(self) -> dict[str, Any]:
        counts = dict(zip(SIDES, self._counts, strict=True))
        return {"dtype": self._kind.name, **counts, "heldout_bytes": self._heldout_bytes}

    def forget(self) -> None:
        """Discard the record of progress, so that everything is written again."""
        (self._folder / _PROGRESS).unlink(missing_ok=True)
        sync(self._folder)

    def finish(self, note: str) -> None:
        """Mark the folder on disk as complete."""
        self._stack.close()
        write_meta(self._folder, self._meta() | {"digest": self._hasher.hexdigest(), "note": note})
        for name in (_PROGRESS, _DIGESTS):
            (self._folder / name).unlink(missing_ok=True)
