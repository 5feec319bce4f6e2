"""When a peer pauses by itself, and why: compares the owner's limits with the state of the machine. Sans-IO.

A reason takes effect at once, but ends only after it has been gone for a while: a peer that stops and starts every few
seconds disturbs its owner and its group more than one that rests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dht.units import GIGABYTE_BYTES
from peer.machine.hours import Hours
from peer.machine.limits import Limits

CALM_SECONDS = 30.0  # without a reason, before it counts as over
COOL_CELSIUS = 5.0  # below the limit, before a hot machine starts again


@dataclass(frozen=True, slots=True)
class Conditions:
    """The current state of a machine. An unknown value is None, and never a reason to pause."""

    on_battery: bool | None = None
    untouched_seconds: float | None = None  # since its user last did something
    gpu_program: bool | None = None  # another program keeps a GPU busy
    celsius: float | None = None
    watts: float | None = None  # of the GPUs
    disk_bytes: int | None = None  # in our data folder


@dataclass(frozen=True, slots=True)
class Today:
    """The local time, and the traffic since midnight."""

    week_minute: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """The reason for a pause, in words for the owner and for others; `silent` if the network is off limits, too."""

    reason: str
    silent: bool = False


@dataclass(frozen=True, slots=True)
class _Concern:
    """One of the owner's limits. `lasts` holds longer than `begins`: that is the hysteresis."""

    pause: Pause
    begins: bool
    lasts: bool
    calm_seconds: float = CALM_SECONDS


class PausePolicy:
    """Applies the owner's limits, and remembers when each reason was last seen."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hours = Hours.parse(limits.hours)
        self._seen_at: dict[str, float] = {}  # active reasons, and when they were last seen

    def judge(self, seen: Conditions, today: Today, now: float) -> Pause | None:
        """Return the first reason to pause, None without any."""
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
        """Whether the owner's daily upload is used up: then no more requests are answered either."""
        gigabytes = self._limits.upload_gigabytes_per_day
        return bool(gigabytes) and today.sent_bytes >= gigabytes * GIGABYTE_BYTES

    def _of_machine(self, seen: Conditions) -> Iterator[_Concern]:
        limits = self._limits
        battery = limits.pause_on_battery and bool(seen.on_battery)
        yield _Concern(Pause("on battery"), battery, battery)
        used = seen.untouched_seconds is not None and seen.untouched_seconds < 60 * limits.pause_while_used_minutes
        yield _Concern(Pause("its owner uses it"), used, used, 0.0)  # the minutes are the delay
        gpu = limits.pause_for_gpu_programs and bool(seen.gpu_program)
        yield _Concern(Pause("another program uses the GPU"), gpu, gpu)
        limit, celsius = limits.pause_above_celsius, seen.celsius
        hot = bool(limit) and celsius is not None and celsius > limit
        warm = bool(limit) and celsius is not None and celsius > limit - COOL_CELSIUS
        yield _Concern(Pause(f"hotter than {limit:g} °C"), hot, warm)
        full = bool(limits.disk_gigabytes) and (seen.disk_bytes or 0) > limits.disk_gigabytes * GIGABYTE_BYTES
        yield _Concern(Pause("its disk limit is reached", silent=True), full, full, 0.0)
