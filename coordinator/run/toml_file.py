"""TOML files that people write: read as text and parsed, in one sentence if that cannot be done."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dht.errors import UsageError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever keeps this file from being read as text within is told in one sentence; raises UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from None


def read_text(path: Path, what: str) -> str:
    """The text of this file, which is called `what` if it is not there; raises UsageError."""
    with reading(path):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no {what} at {path}") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """What TOML text holds; `source` names it in the UsageError that is raised."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from None
