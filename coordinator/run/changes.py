"""Changes of a run's keys by name, as with `--set TABLE.KEY=VALUE`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from coordinator.run.manifest import RunConfig
from coordinator.run.toml_file import full_name
from coordinator.run.validation_errors import first_error
from dht.errors import UsageError


def with_changes(base: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """Return the run with these values by dotted key; raises UsageError."""
    return checked_run(changed_values(base, changes)) if changes else base


def changed_values(base: RunConfig, changes: Mapping[str, object]) -> dict[str, Any]:
    """Return all values of the run in JSON's types, with these by dotted key, unchecked; raises UsageError."""
    values: dict[str, Any] = json.loads(base.model_dump_json())
    for key, value in changes.items():
        if value is not None:
            *path, last = key.split(".")
            place: Any = values
            for part in path:
                if isinstance(place, dict) and part in place and place[part] is None:
                    place[part] = {}  # a table that the run file leaves out
                place = place.get(part) if isinstance(place, dict) else None
            if not isinstance(place, dict):
                raise UsageError(f"{key} is no key of a run file; see docs/reference/config.md")
            place[last] = value
    return values


def checked_run(values: dict[str, Any]) -> RunConfig:
    """Check these values and return the run that has them; raises UsageError."""
    try:
        return RunConfig.model_validate_json(json.dumps(values))  # JSON has arrays where a run has tuples
    except ValidationError as error:
        raise UsageError(f"{first_error(error, RunConfig)}; see docs/reference/config.md") from None


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse each `TABLE.KEY=VALUE`; values are as in TOML, or words without quotes.

    Dates and times are words as well. Raises UsageError.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--set {text!r} is not of the form TABLE.KEY=VALUE, as in inner.momentum=0.95")
        found[full_name(key)] = _parsed(value)
    return found


def _parsed(text: str) -> object:
    """Return the value that the text has in TOML, or the text itself if it has none that a run can have."""
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
        json.dumps(value)
    except (ValueError, TypeError, RecursionError):  # it is no TOML, has a date or time, or is nested too deeply
        return text
    return value
