"""The files that match an owner's patterns, each only once, however many links lead to it."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from dht.errors import UsageError
from peer.data.tally import CorpusTally

HERE_AND_BELOW = "**"


def corpus_paths(patterns: str, tally: CorpusTally) -> list[Path]:
    """Return the files in order of name; raises UsageError if a pattern matches none.

    The name of a file means that file, even if it has the signs of a pattern.
    """
    if not patterns.strip():
        raise UsageError("this run trains on files that every peer brings; name yours with --corpus")
    found: set[str] = set()
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        try:
            own = [pattern] if os.path.isfile(pattern) else []
            named = own or [path for path in _expand(pattern) if os.path.isfile(path)]
        except (OSError, ValueError) as error:  # such as a NUL in a name
            raise UsageError(f"--corpus {pattern!r} cannot be looked up: {error}") from None
        if not named:
            raise UsageError(_nothing(pattern))
        found.update(map(os.path.normpath, named))
    return _once(sorted(map(Path, found)), tally)


def _nothing(pattern: str) -> str:
    if os.path.isdir(pattern):
        return f"{pattern} is a folder; name the files in it, as '{pattern.rstrip('/')}/**/*.txt'"
    if os.path.exists(pattern):
        return f"{pattern} is no plain file; copy its text into one"
    return f"there is no file {pattern}; name your text with a path or a pattern such as 'text/*.txt'"


def _expand(pattern: str) -> Iterator[str]:
    """Yield matches like `glob.glob(pattern, recursive=True)`, but without endless loops through symbolic links."""
    parts = pattern.split("/")
    if HERE_AND_BELOW not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index(HERE_AND_BELOW)
    above = "/".join(parts[:at]) or ("/" if at else ".")
    rest = [part for part in parts[at + 1 :] if part] or ["*"]
    for root in glob.glob(above):
        for folder in _folders(root):
            yield from _expand("/".join([glob.escape(folder), *rest]))


def _folders(root: str) -> Iterator[str]:
    """Yield this folder and all below it, each once: first under their own names, then those reached only by links."""
    seen: set[tuple[int, int]] = set()
    own, links = deque([root]), deque[str]()
    while own or links:
        folder = (own or links).popleft()
        try:
            status = os.stat(folder)
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except NotADirectoryError:
            continue
        except OSError as error:
            raise UsageError(f"the folder {folder} cannot be looked into: {error.strerror}") from None
        if (place := (status.st_dev, status.st_ino)) in seen:
            continue
        seen.add(place)
        yield folder
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                (links if entry.is_symlink() else own).append(entry.path)


def _once(paths: list[Path], tally: CorpusTally) -> list[Path]:
    seen: set[tuple[int, int]] = set()
    once = []
    for path in paths:
        status = path.stat()
        if (place := (status.st_dev, status.st_ino)) in seen:
            tally.left_out["further links to the same files"] += 1
            continue
        seen.add(place)
        once.append(path)
    return once
