"""Further names of attacks: MODULE.CLASS for a user's own, and the suffix «+work» for attacks on values."""

from __future__ import annotations

import importlib

from dht.errors import UsageError

MORE_WORK = "+work"


def class_named(name: str) -> type | None:
    """Return the class of this dotted name, None if there is none; raises UsageError if the import fails."""
    module, _, kind = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), kind) if module else None
    except Exception as error:  # noqa: BLE001 - the module may raise anything
        raise UsageError(f"the attack {name!r} cannot be imported: {error}") from None
    return found if isinstance(found, type) else None
