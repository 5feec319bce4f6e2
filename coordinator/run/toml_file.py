"""TOML files that people write: read as text and parsed, in one sentence if that cannot be done."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dht.errors import UsageError

SHORT_NAMES = {"pace": {"period": "steps_per_version", "grace": "grace_share"}}  # as options of `muster lab` are called


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever keeps this file from being read as text within is told in one sentence; raises UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} cannot be read as text: it is no text in UTF-8") from None


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


def fault_of(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong with a value of this model, in words."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # one of our own, which names its keys
        return str(first["ctx"]["error"])
    problem = _unknown(first["loc"], model) if first["type"] == "extra_forbidden" else first["msg"].lower()
    return f"{'.'.join(map(str, first['loc']))}: {problem}"


def _unknown(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """What is wrong with a key that a file of this model does not have, and which one may have been meant."""
    for table in place[:-1]:
        annotation = model.model_fields[str(table)].annotation
        (model,) = (
            one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)
        )
    return "is not a known key" + nearest(str(place[-1]), model.model_fields)


def nearest(word: str, known: Iterable[str]) -> str:
    """A question within a sentence, which of the known words was meant; empty if none is near."""
    found = get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
