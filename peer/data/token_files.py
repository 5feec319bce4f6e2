"""Tokens in files that are mapped into memory, kept between starts and shared by all processes here.

A folder of the cache holds one corpus, and its name is a hash of the inputs. The first process that needs it makes it,
and continues after a crash. When the cache is too large, the corpora that were unused for longest are removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dht.errors import UsageError
from dht.files import sync
from peer.data.tally import Tell

META = "meta.json"
SIDES = ("train", "heldout")
LOOK_SECONDS = 0.5
CACHE_BYTES_MAX = 100_000_000_000  # of all cached corpora
MAKING = ".making"
DTYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "int32": torch.int32}


@dataclass(frozen=True, slots=True)
class TokenData:
    """Training and held-out tokens, shape (tokens,), in the smallest type that holds them, and the digest of both.

    `heldout_bytes` is the size of the held-out text, 0 if unknown; `note` describes what was left out.
    """

    train: Tensor
    heldout: Tensor
    digest: bytes
    heldout_bytes: int = 0
    note: str = ""


def smallest_type(size: int) -> np.dtype[Any]:
    """Return the smallest type that torch can index and that holds numbers below `size`."""
    return np.dtype("uint8" if size <= 1 << 8 else "uint16" if size <= 1 << 16 else "int32")


def kept_tokens(cache: str, name: str, make: Callable[[Path], None], tell: Tell) -> TokenData:
    """Return the cached tokens of this name, or those that `make` writes into a folder; raises UsageError.

    Without a cache, they are made in a temporary folder, which leaves the disk once nothing maps it.
    """
    home = Path(cache or tempfile.gettempdir())
    try:
        if not cache:
            with tempfile.TemporaryDirectory(prefix="muster-tokens-") as folder:
                make(Path(folder))
                return _told(_mapped(Path(folder)))
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(home / f"{name}.lock", tell):
            final, making = home / name, home / f"{name}{MAKING}"
            found = _mapped(final)
            if found is None:
                shutil.rmtree(final, ignore_errors=True)  # damaged
                making.mkdir(exist_ok=True)
                make(making)
                making.rename(final)
                sync(home)
                found = _mapped(final)
                _make_room(home, name)
            else:
                os.utime(final)  # marks it as in use
            return _told(found)
    except OSError as error:
        raise UsageError(
            f"the tokens of this corpus cannot be kept in {home}: {error.strerror or error}; make room there"
        ) from None


def _make_room(home: Path, newest: str) -> None:
    """Remove the corpora unused for longest until the rest fits; a process that has one mapped keeps it."""
    folders = [path for path in home.iterdir() if path.is_dir() and path.name.removesuffix(MAKING) != newest]
    sizes = {path: _size_bytes(path) for path in folders}
    room = CACHE_BYTES_MAX - _size_bytes(home / newest) - sum(sizes.values())
    for path in sorted(folders, key=lambda path: path.stat().st_mtime):
        if room >= 0:
            return
        with (home / f"{path.name.removesuffix(MAKING)}.lock").open("w") as lock:
            if _locked(lock.fileno()):  # no process makes or opens it now
                shutil.rmtree(path, ignore_errors=True)
                room += sizes[path]


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


def _told(found: TokenData | None) -> TokenData:
    if found is None:
        raise UsageError("the tokens that were just written cannot be read again; look at the disk")
    return found


def _mapped(folder: Path) -> TokenData | None:
    """Return the corpus of this folder; None if it is missing or incomplete."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        kind, counts = np.dtype(meta["dtype"]), [int(meta[side]) for side in SIDES]
        for side, count in zip(SIDES, counts, strict=True):
            if (folder / side).stat().st_size != count * kind.itemsize:
                return None
        train, heldout = (
            torch.from_file(str(folder / side), shared=False, size=count, dtype=DTYPES[kind.name])
            if count
            else torch.empty(0, dtype=DTYPES[kind.name])
            for side, count in zip(SIDES, counts, strict=True)
        )
        return TokenData(train, heldout, bytes.fromhex(meta["digest"]), int(meta["heldout_bytes"]), str(meta["note"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _alone(lock: Path, tell: Tell) -> Iterator[None]:
    """Wait until no other process has this lock; report progress whenever the other's output grows."""
    making = lock.with_suffix(MAKING)
    with lock.open("w") as file:
        grown = -1
        while not _locked(file.fileno()):
            if (size := _size_bytes(making)) != grown:
                grown = size
                tell("waiting for the tokens that another process makes", None)
            threading.Event().wait(LOOK_SECONDS)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write the last file of a folder, which marks it as complete."""
    path = folder / META
    path.write_text(json.dumps(meta), encoding="utf-8")
    for one in (*(folder / side for side in SIDES), path):
        sync(one)


def cut_to(path: Path, size_bytes: int) -> None:
    """Create this file, or cut off what a crash left behind its saved part, which must be there."""
    with path.open("ab"):
        pass
    os.truncate(path, size_bytes)
