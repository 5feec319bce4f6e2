"""A peer's log for people: its lines in words, and new lines as they come."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from peer.machine.log import newest_of

LOOK_SECONDS = 0.5
DIGITS = 6  # significant digits of a fraction; more tell people nothing
NOT_SHOWN = frozenset({"timestamp", "level", "event", "logger", "exception"})


def in_words(line: str) -> str:
    """Turn a JSON line into time, level from warning up, event and values; other lines stay unchanged."""
    try:
        said = json.loads(line)
        when = datetime.fromisoformat(said["timestamp"]).astimezone()
        event, level = str(said["event"]), str(said.get("level", "info"))
    except (ValueError, TypeError, KeyError):
        return line
    values = [f"{name}={_short(value)}" for name, value in said.items() if name not in NOT_SHOWN]
    told = [f"{when:%b %d %H:%M:%S}", *([] if level in ("info", "debug") else [level.upper()])]
    text = " ".join([*told, event.replace("_", " "), *values])
    return "\n".join([text, *str(said["exception"]).splitlines()]) if said.get("exception") else text


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value)


def following(path: Path, ended: threading.Event, newest: int) -> Iterator[str]:
    """Yield so many of the newest lines, then what is added until `ended` is set; follows the log into a new file."""
    file = path.open(encoding="utf-8", errors="replace")
    try:
        lines = file.read().splitlines(keepends=True)
        begun = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        yield from newest_of([line.rstrip("\n") for line in lines], path, newest)
        while not ended.is_set():
            begun += file.readline()
            if begun.endswith("\n"):
                yield begun.rstrip("\n")
                begun = ""
            elif not ended.wait(LOOK_SECONDS) and _is_another(path, file.fileno()):
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
    finally:
        file.close()


def _is_another(path: Path, descriptor: int) -> bool:
    return path.exists() and path.stat().st_ino != os.fstat(descriptor).st_ino
