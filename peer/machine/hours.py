"""The weekly hours in which a machine may train, as written by its owner: `mon-fri 22:00-07:00, sun 10:00-18:00`.

Pure: local time comes in as the minute of the week, Monday 0:00 being 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dht.errors import UsageError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
_ENTRY = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?\s+)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Hours:
    """A set of minutes of the week; empty text means always."""

    open_minutes: frozenset[int] | None = None

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Parse days, or none for every day, with times; a time that ends before it begins ends on the next day.

        Raises UsageError.
        """
        entries = [entry.strip() for entry in text.lower().split(",") if entry.strip()]
        if not entries:
            return cls()
        return cls(frozenset(minute for entry in entries for minute in _minutes_of(entry)))

    def contain(self, week_minute: int) -> bool:
        """Whether this minute is in the set."""
        return self.open_minutes is None or week_minute in self.open_minutes

    def opens_in(self, week_minute: int) -> int | None:
        """Return the minutes until the next one in the set; None if this one is."""
        if self.open_minutes is None or week_minute in self.open_minutes:
            return None
        return min((minute - week_minute) % WEEK_MINUTES for minute in self.open_minutes)


def _minutes_of(entry: str) -> list[int]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise UsageError(f"{entry!r} are no hours; write them as in: mon-fri 22:00-07:00, sun 10:00-18:00")
    first, last = (_day(name) if name else None for name in match.groups()[:2])
    begin, end = (_minute(entry, *match.groups()[at : at + 2]) for at in (2, 4))
    if begin == end:
        raise UsageError(f"{entry!r} begin when they end; write 0:00-24:00 for a whole day")
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    first, last = (0, 6) if first is None else (first, first if last is None else last)
    days = range(first, first + (last - first) % 7 + 1)
    return [(day * DAY_MINUTES + begin + minute) % WEEK_MINUTES for day in days for minute in range(length)]


def _day(name: str) -> int:
    if name not in DAYS:
        raise UsageError(f"{name!r} is no day of the week; days are {', '.join(DAYS)}")
    return DAYS.index(name)


def _minute(entry: str, hour: str, minute: str) -> int:
    found = int(hour) * 60 + int(minute)
    if int(minute) > 59 or found > DAY_MINUTES:
        raise UsageError(f"{entry!r} name a time that no clock shows; the last is 24:00")
    return found
