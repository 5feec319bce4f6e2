"""Changes limits in the `settings.toml` that the owner writes by hand, keeping comments and everything else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from coordinator.run.toml_file import parse_toml
from coordinator.views.owner_limits import OwnerLimit, OwnerLimits, Value
from dht.errors import LocalError, UsageError
from dht.files import write_whole
from peer.machine.limits import AT_START, OFF, SETTINGS_NAME, Limits, PeerSettings

TABLE = "[limits]"
_OURS = re.compile(r"\s*\[\s*limits\s*\]\s*(#.*)?")
_ANY_TABLE = re.compile(r"\s*\[")


def keep_limits(data_directory: Path, changes: Mapping[str, Value]) -> None:
    """Write these changes to the file for the next start, whole or not at all.

    Raises UsageError if the file is invalid, or in a form that we cannot change; LocalError if it cannot be written.
    """
    path = (data_directory / SETTINGS_NAME).resolve()  # the target of a link, which is the owner's file
    wanted = PeerSettings.load(data_directory).limits.model_copy(update=dict(changes))
    text = changed_text(path.read_text(encoding="utf-8") if path.exists() else "", changes)
    with suppress(UsageError, ValueError):
        if PeerSettings.model_validate(parse_toml(text, SETTINGS_NAME)).limits == wanted:
            return _write(path, text)
    raise UsageError(
        f"{path} is not written as in docs/how-to/limits.md and cannot be changed from here; change it by hand"
    )


def changed_text(text: str, changes: Mapping[str, Value]) -> str:
    """Return the text of a settings file with these keys in its table of limits; not checked."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if _OURS.fullmatch(line)), None)
    if begin is None:
        lines += ["", TABLE] if lines else [TABLE]
        begin = len(lines) - 1
    after = (number for number in range(begin + 1, len(lines)) if _ANY_TABLE.match(lines[number]))
    end = next(after, len(lines))
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    for key, value in changes.items():
        assignment = re.compile(rf"\s*{re.escape(key)}\s*=")
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        known = [number for number in range(begin + 1, end) if assignment.match(lines[number])]
        if known:
            lines[known[0]] = line
        else:
            lines.insert(end, line)
            end += 1
    return "\n".join(lines) + "\n"


def shown(limits: Limits, sharers: int = 1) -> OwnerLimits:
    """Return the limits of this many peers together, as rows for people."""
    values = limits.model_dump()
    return OwnerLimits(
        sharers=sharers,
        limits=tuple(
            OwnerLimit(
                key=key,
                title=field.title or key,
                meaning=field.description or "",
                value=values[key],
                off=OFF.get(key, ""),
                at_start=key in AT_START,
            )
            for key, field in Limits.model_fields.items()
        ),
    )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}; nothing was changed") from None
