"""When a peer pauses by itself, and why: the owner's wishes held against what the machine looks like. Sans-IO.

A reason holds at once, and ends only after it has been gone for a while: a peer that stops and starts every few seconds
disturbs its owner and its group more than one that rests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dht.units import GIGABYTE_BYTES
from peer.machine.hours import Hours
from peer.machine.limits import Limits

CALM_SECONDS = 30.0  # without a reason, before it is believed to be over
COOL_CELSIUS = 5.0  # below the limit, before a hot machine starts again


@dataclass(frozen=True, slots=True)
class Conditions:
    """A machine as it is now. What cannot be known here is None, and is then no reason for anything."""

    on_battery: bool | None = None
    untouched_seconds: float | None = None  # since its user last did something
    gpu_program: bool | None = None  # somebody else's program keeps a GPU busy
    celsius: float | None = None
    watts: float | None = None  # of the GPUs
    disk_bytes: int | None = None  # in our data folder


@dataclass(frozen=True, slots=True)
class Today:
    """The time here, and what went out and came in since midnight."""

    week_minute: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Why a peer pauses, in words for its owner and for others; `silent` if it must not use the network either."""

    reason: str
    silent: bool = False


@dataclass(frozen=True, slots=True)
class _Concern:
    """Something that the owner wants respected. `lasts` is true for longer than `begins`: that is the hysteresis."""

    pause: Pause
    begins: bool
    lasts: bool
    calm_seconds: float = CALM_SECONDS


class PausePolicy:
    """Remembers which reasons were seen when."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hours = Hours.parse(limits.hours)
        self._seen_at: dict[str, float] = {}  # reasons that hold, and when they were last seen

    def judge(self, seen: Conditions, today: Today, now: float) -> Pause | None:
        """The first reason to pause, None for none."""
        concerns = [*self._of_today(today), *self._of_machine(seen)]
        return next((concern.pause for concern in concerns if self._holds(concern, now)), None)

    def _holds(self, concern: _Concern, now: float) -> bool:
        reason = concern.pause.reason
        if concern.begins or (concern.lasts and reason in self._seen_at):
            self._seen_at[reason] = now
        elif now - self._seen_at.get(reason, float("-inf")) >= concern.calm_seconds:
            self._seen_at.pop(reason, None)
        return reason in self._seen_at

    def _of_today(self, today: Today) -> Iterator[_Concern]:
        limits = self._limits
        for direction, gigabytes, used_bytes in (
            ("upload", limits.upload_gigabytes_per_day, today.sent_bytes),
            ("download", limits.download_gigabytes_per_day, today.received_bytes),
        ):
            used_up = bool(gigabytes) and used_bytes >= gigabytes * GIGABYTE_BYTES
            yield _Concern(Pause(f"{direction} limit of the day reached", silent=True), used_up, used_up, 0.0)
        closed = not self._hours.contain(today.week_minute)
        yield _Concern(Pause("outside its hours"), closed, closed, 0.0)

    def has_sent_its_day(self, today: Today) -> bool:
        """Whether the owner's upload of the day is used up: then nobody is answered any more either."""
        gigabytes = self._limits.upload_gigabytes_per_day
        return bool(gigabytes) and today.sent_bytes >= gigabytes * GIGABYTE_BYTES

    def _of_machine(self, seen: Conditions) -> Iterator[_Concern]:
        limits = self._limits
        battery = limits.pause_on_battery and bool(seen.on_battery)
        yield _Concern(Pause("on battery"), battery, battery)
        used = seen.untouched_seconds is not None and seen.untouched_seconds < 60 * limits.pause_while_used_minutes
        yield _Concern(Pause("its owner uses it"), used, used, 0.0)  # the minutes are the calm
        gpu = limits.pause_for_gpu_programs and bool(seen.gpu_program)
        yield _Concern(Pause("another program uses the GPU"), gpu, gpu)
        limit, celsius = limits.pause_above_celsius, seen.celsius
        hot = bool(limit) and celsius is not None and celsius > limit
        warm = bool(limit) and celsius is not None and celsius > limit - COOL_CELSIUS
        yield _Concern(Pause(f"hotter than {limit:g} °C"), hot, warm)
        full = bool(limits.disk_gigabytes) and (seen.disk_bytes or 0) > limits.disk_gigabytes * GIGABYTE_BYTES
        yield _Concern(Pause("its disk limit is reached", silent=True), full, full, 0.0)
