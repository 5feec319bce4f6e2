"""A peer's traffic and training time since midnight, across restarts: a small file in its data folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

TRAFFIC_NAME = "traffic.json"
DAYS_KEPT = 4  # besides the present one: a clock may be set back, as on a machine that boots without one


class Day(BaseModel):
    """One day, local time."""

    day: str
    sent_bytes: int = Field(0, ge=0)
    received_bytes: int = Field(0, ge=0)
    trained_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)


class _Days(Day):
    """The day that was last, and others before it."""

    others: tuple[Day, ...] = ()


class DailyTraffic:
    """Turns totals of this process into sums of the day; a day that comes again goes on with its sums."""

    def __init__(self, data_directory: Path, day: str) -> None:
        self._path = data_directory / TRAFFIC_NAME
        self._totals = (0, 0)
        found = _read(self._path) or _Days(day=day)
        self._others = {one.day: one for one in found.others[-DAYS_KEPT:]}
        self.today = Day(**found.model_dump(exclude={"others"}))

    def note(self, day: str, sent_total_bytes: int, received_total_bytes: int, trained_seconds: float = 0.0) -> Day:
        """Take the totals of this process and the training time since the last call; return the sums of the day."""
        if day != self.today.day:
            self._begin(day)
        sent, received = sent_total_bytes - self._totals[0], received_total_bytes - self._totals[1]
        self._totals = (max(sent_total_bytes, self._totals[0]), max(received_total_bytes, self._totals[1]))
        self.today = Day(
            day=day,
            sent_bytes=self.today.sent_bytes + max(0, sent),
            received_bytes=self.today.received_bytes + max(0, received),
            trained_seconds=self.today.trained_seconds + trained_seconds,
        )
        return self.today

    def _begin(self, day: str) -> None:
        self._others[self.today.day] = self.today
        self.today = self._others.pop(day, Day(day=day))
        if len(self._others) > DAYS_KEPT:
            del self._others[next(iter(self._others))]

    def save(self) -> None:
        """Write the sums to the file, whole or not at all; raises OSError."""
        new = self._path.with_suffix(".new")
        new.write_text(_Days(**self.today.model_dump(), others=tuple(self._others.values())).model_dump_json())
        new.replace(self._path)


def _read(path: Path) -> _Days | None:
    """Return what was written last; None if the file is missing or cannot be read."""
    try:
        return _Days.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
