"""Carries a plan out: does what is due, undoes what was to last for a while, and notes what really happened."""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Generic, TypeVar

from dht.errors import LocalError
from peer.chaos.executor import MACHINE_KINDS, Breaker, Link
from peer.chaos.plan import LINK_VALUES, UNDONE_BY, Event, Kind, Plan, number_of
from peer.chaos.record import Happening

END_OF_PLAN = "the run ended first"


Target = TypeVar("Target")


class Conductor(Generic[Target]):
    """Fed with the time and with deaths; `tell` hears of every event.

    `restart` starts a peer's process anew, with the name of an attack if it is hostile.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Breaker[Target],
        processes: Mapping[str, Target],
        restart: Callable[[str, str | None], None],
        tell: Callable[[Happening], None],
    ) -> None:
        self._executor = executor
        self._processes = processes
        self._restart = restart
        self._tell = tell
        self._order = count()
        self._due: list[tuple[float, int, Event]] = []
        self._timed = [event for event in plan.events if event.at_seconds is not None]
        self._at_points = {event.waits_for: event for event in plan.events if event.at_point is not None}
        self._down: set[str] = set()
        self._stopped: set[str] = set()
        self._full: set[str] = set()
        self._links: dict[str, Link] = {}
        self._skewed: set[str] = set()
        self._attacks: dict[str, str] = {}  # what the hostile do
        self._cut = False

    def begin(self, now: float) -> None:
        """Times in the plan count from here."""
        for event in self._timed:
            self._push(now + (event.at_seconds or 0.0), event)

    def advance(self, now: float) -> None:
        """Do everything that is due, and what somebody stands still for."""
        for name, event in list(self._at_points.items()):
            if not event.dies_there and self._executor.stands(process := self._processes[name]):
                del self._at_points[name]
                self._fire(event, now)
                self._executor.release(process)
        while self._due and self._due[0][0] <= now:
            _, _, event = heapq.heappop(self._due)
            self._fire(event, now)

    def note_death(self, name: str, exit_code: int | None, now: float) -> bool:
        """A process has ended by itself; True if that was in the plan."""
        if name in self._down:
            return True
        self._forget(name)
        event = self._at_points.get(name)
        if event is None or not event.dies_there or exit_code != -signal.SIGKILL:
            return False
        del self._at_points[name]
        self._note(event, now, self._tried(event) if event.do == "attacker" else None)
        return True

    @property
    def restarts_pending(self) -> bool:
        """Whether somebody is still to come back."""
        return any(event.do == "restart" for _, _, event in self._due)

    def end(self, now: float) -> None:
        """Repair everything but deaths and hostility, and note what never came to happen."""
        left = [event for _, _, event in sorted(self._due)] + list(self._at_points.values())
        self._due.clear()
        for event in left:
            if event.do not in UNDONE_BY.values():
                self._tell(Happening(event, now, END_OF_PLAN))
        hurt: tuple[tuple[Kind, Iterable[str]], ...] = (
            ("continue", self._stopped),
            ("clear", self._links),
            ("disk_free", self._full),
            ("clock_right", self._skewed),
        )
        mending = [Event(do=kind, at_seconds=0, peer=number_of(name)) for kind, names in hurt for name in sorted(names)]
        for event in [*mending, *([Event(do="heal", at_seconds=0)] if self._cut else [])]:
            self._fire(event, now)

    def _push(self, seconds: float, event: Event) -> None:
        heapq.heappush(self._due, (seconds, next(self._order), event))

    def _fire(self, event: Event, now: float) -> None:
        refusal = self._executor.refusal(event.do) or self._obstacle(event) or self._tried(event)
        self._note(event, now, refusal)

    def _tried(self, event: Event) -> str | None:
        """Why it could not be done; None if it has been."""
        try:
            self._do(event)
        except LocalError as error:
            return str(error)
        return None

    def _note(self, event: Event, now: float, refusal: str | None = None) -> None:
        self._tell(Happening(event, now, refusal))
        if refusal is None and event.for_seconds is not None:
            self._push(now + event.for_seconds, event.undoing())

    def _obstacle(self, event: Event) -> str | None:
        """Why this makes no sense as things are; None if it does."""
        name = event.target
        if event.do == "restart":
            return None if name in self._down else f"{name} is running"
        if event.do == "honest":
            return None if name in self._attacks else f"{name} is not hostile"
        if name in self._down and event.do not in MACHINE_KINDS:
            return f"{name} is down"
        if event.do in ("stop", "continue") and (name in self._stopped) != (event.do == "continue"):
            return f"{name} is {'already' if event.do == 'stop' else 'not'} stopped"
        return None

    def _do(self, event: Event) -> None:
        name = event.target
        match event.do:
            case "kill":
                self._kill(name)
            case "restart":
                self._bring_back(name)
            case "attacker" | "honest":
                self._turn(name, event.attack)
            case "stop":
                self._executor.stop(self._processes[name])
                self._stopped.add(name)
            case "continue":
                self._stopped.discard(name)
                self._executor.resume(self._processes[name])
            case "partition" | "heal":
                self._executor.partition(event.groups())
                self._cut = event.do == "partition"
            case "disk_full" | "disk_free":
                full = event.do == "disk_full"
                self._executor.limit_disk(self._processes[name], full)
                (self._full.add if full else self._full.discard)(name)
            case "clock_skew" | "clock_right":
                self._executor.set_clock(self._processes[name], event.skew_seconds or 0.0)
                (self._skewed.add if event.skew_seconds else self._skewed.discard)(name)
            case "delay" | "loss" | "bandwidth" | "clear":
                self._shape(event)

    def _turn(self, name: str, attack: str | None) -> None:
        """Another process in place of a peer's, from now on with this attack; one that is honest may stay away."""
        was_down = name in self._down
        if not was_down:
            self._kill(name)
        if attack is not None:
            self._attacks[name] = attack
        else:
            del self._attacks[name]
        if attack is not None or not was_down:
            self._bring_back(name)

    def _kill(self, name: str) -> None:
        self._forget(name)
        self._executor.kill(self._processes[name])

    def _bring_back(self, name: str) -> None:
        self._restart(name, self._attacks.get(name))
        self._down.discard(name)

    def _shape(self, event: Event) -> None:
        name, link = event.target, Link()
        if event.do != "clear":
            key = LINK_VALUES[event.do]
            link = replace(self._links.get(name, link), **{key: getattr(event, key)})
        self._executor.shape(name, link)
        self._links.pop(name, None)
        if link != Link():
            self._links[name] = link

    def _forget(self, name: str) -> None:
        """A process is gone, and with it what was done to it."""
        self._down.add(name)
        self._stopped.discard(name)
        self._full.discard(name)
