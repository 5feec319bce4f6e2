"""The event tape of a lab run: what happened in which step of whom, as JSON lines (DiLoCo 2604.21428 §E.1).

With the first line, which holds the manifest, it is everything that `peer.lab.replay` needs to make the same
parameters again: snapshots, versions with their members and weights, adoptions, failures, returns, checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from dht.errors import LocalError, UsageError

TapeLine = dict[str, Any]
Record = Callable[[TapeLine], None]
"""Takes one line as it happens."""


def keep_no_tape(_line: TapeLine) -> None:
    """A `Record` for runs without a tape."""


class TapeWriter:
    """Writes lines as they come; use as a context manager. Raises LocalError if the disk refuses."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"no tape can be written to {path}: {error.strerror}") from None

    def __enter__(self) -> TapeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: TapeLine) -> None:
        """Append one line."""
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise LocalError(f"the tape cannot be written: {error.strerror}") from None


def read_tape(path: Path) -> Iterator[TapeLine]:
    """The lines of a tape in order; raises UsageError if it is none."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                line = json.loads(text)
                if not isinstance(line, dict) or "event" not in line:
                    raise UsageError(f"line {number} of {path} is no line of an event tape")
                yield line
    except OSError as error:
        raise UsageError(f"the tape {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no event tape: {error}") from None
