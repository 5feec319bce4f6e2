"""What else than a name may name an attack: MODULE.CLASS of one's own, and «+work» behind any attack on values."""

from __future__ import annotations

import importlib

from dht.errors import UsageError

MORE_WORK = "+work"


def class_named(name: str) -> type | None:
    """The class of this dotted name, None if it names none; raises UsageError if it cannot be imported."""
    module, _, kind = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), kind) if module else None
    except Exception as error:  # noqa: BLE001 - whatever the module does
        raise UsageError(f"the attack {name!r} cannot be imported: {error}") from None
    return found if isinstance(found, type) else None
