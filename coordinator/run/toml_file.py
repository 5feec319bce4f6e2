"""Reads and parses TOML files that people write; errors are one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dht.errors import UsageError

SHORT_NAMES = {"pace": {"period": "steps_per_version", "grace": "grace_share"}}  # the names of `muster lab`'s options

ADVICE = {  # for common mistakes, by the beginning of the parser's message
    "Invalid value": "text has to be in quotes",
    "Cannot overwrite a value": "a key may be there only once",
    "Cannot declare": "a table may be there only once",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading this file as text within the block into a UsageError of one sentence."""
    try:
        yield
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; name a file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text file; it has to be text in UTF-8") from None


def read_run_file(path: Path) -> str:
    """Return the text of a run file; raises UsageError."""
    return read_text(path, "run file", "; muster init writes one")


def read_text(path: Path, what: str, advice: str = "") -> str:
    """Return the text of this file, called `what` in the error if it is missing; raises UsageError."""
    with reading(path):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no {what} at {path}{advice}") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML text; raises UsageError, in which `source` names the text."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        advice = next((f"; {said}" for begin, said in ADVICE.items() if str(error).startswith(begin)), "")
        raise UsageError(f"{source} is not valid TOML: {error}{advice}") from None


def with_full_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the full names of run file keys in place of the short ones that people use."""
    found = dict(values)
    for table, names in SHORT_NAMES.items():
        if isinstance(inner := found.get(table), dict):
            short = {name: full for name, full in names.items() if name in inner and full not in inner}
            found[table] = {short.get(key, key): value for key, value in inner.items()}
    return found


def full_name(key: str) -> str:
    """Return a dotted key with its full name in place of a short one."""
    table, _, name = key.partition(".")
    return f"{table}.{SHORT_NAMES[table].get(name, name)}" if table in SHORT_NAMES else key
