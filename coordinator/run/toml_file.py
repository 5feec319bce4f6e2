"""TOML files that people write: read as text and parsed, in one sentence if that cannot be done."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dht.errors import UsageError

SHORT_NAMES = {"pace": {"period": "steps_per_version", "grace": "grace_share"}}  # as options of `muster lab` are called

ADVICE = {  # by how the parser's complaint begins, for what people often forget
    "Invalid value": "text has to be in quotes",
    "Cannot overwrite a value": "a key may be there only once",
    "Cannot declare": "a table may be there only once",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever keeps this file from being read as text within is told in one sentence; raises UsageError."""
    try:
        yield
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; name a file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text file; it has to be text in UTF-8") from None


def read_run_file(path: Path) -> str:
    """The text of a run file; raises UsageError."""
    return read_text(path, "run file", "; muster init writes one")


def read_text(path: Path, what: str, advice: str = "") -> str:
    """The text of this file, which is called `what` if it is not there; raises UsageError."""
    with reading(path):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no {what} at {path}{advice}") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """What TOML text holds; `source` names it in the UsageError that is raised."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        advice = next((f"; {said}" for begin, said in ADVICE.items() if str(error).startswith(begin)), "")
        raise UsageError(f"{source} is not valid TOML: {error}{advice}") from None


def with_full_names(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, with keys of a run file by the names that they have, where people call them otherwise."""
    found = dict(values)
    for table, names in SHORT_NAMES.items():
        if isinstance(inner := found.get(table), dict):
            short = {name: full for name, full in names.items() if name in inner and full not in inner}
            found[table] = {short.get(key, key): value for key, value in inner.items()}
    return found


def full_name(key: str) -> str:
    """The same of a dotted key."""
    table, _, name = key.partition(".")
    return f"{table}.{SHORT_NAMES[table].get(name, name)}" if table in SHORT_NAMES else key
