"""The execution of a plan: it fires due events, undoes temporary faults, and records what really happened."""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Generic, TypeVar

from dht.errors import LocalError
from peer.chaos.executor import MACHINE_KINDS, FaultInjector, LinkFault
from peer.chaos.plan import LINK_VALUES, UNDONE_BY, Event, Kind, Plan, number_of
from peer.chaos.record import EventOutcome

END_OF_PLAN = "the run ended first"
REPAIRED: tuple[Kind, ...] = ("continue", "clear", "disk_free", "clock_right", "heal")  # at the end of a plan

Target = TypeVar("Target")


class Conductor(Generic[Target]):
    """The executor of a plan, driven by the time and by deaths; `tell` is called for every event.

    `restart` starts a peer's process again, with the name of an attack if it is hostile.
    """

    def __init__(
        self,
        plan: Plan,
        executor: FaultInjector[Target],
        processes: Mapping[str, Target],
        restart: Callable[[str, str | None], None],
        tell: Callable[[EventOutcome], None],
    ) -> None:
        self._executor = executor
        self._processes = processes
        self._restart = restart
        self._tell = tell
        self._order = count()
        self._due: list[tuple[float, int, Event, Event | None]] = []  # the last is the fault to undo; None: all
        self._timed = [event for event in plan.events if event.at_seconds is not None]
        self._at_points = {event.waits_for: event for event in plan.events if event.at_point is not None}
        self._down: set[str] = set()
        self._faults: dict[tuple[Kind, str], list[Event]] = {}  # in force, by undoing kind and target

    def begin(self, now: float) -> None:
        """Start the clock of the plan."""
        for event in self._timed:
            self._push(now + (event.at_seconds or 0.0), event)

    def advance(self, now: float) -> None:
        """Fire all due events, and those for which a peer waits at a point."""
        for name, event in list(self._at_points.items()):
            if not event.dies_there and self._executor.is_waiting(process := self._processes[name]):
                del self._at_points[name]
                self._fire(event, now)
                self._executor.release(process)
        while self._due and self._due[0][0] <= now:
            _, _, event, fault = heapq.heappop(self._due)
            self._fire(event, now, fault)

    def note_death(self, name: str, exit_code: int | None, now: float) -> bool:
        """Record that a process has ended by itself; returns whether that was planned."""
        if name in self._down:
            return True
        self._forget(name)
        event = self._at_points.get(name)
        if event is None or not event.dies_there or exit_code != -signal.SIGKILL:
            return False
        del self._at_points[name]
        if event.do == "kill":
            self._begin(event)
        self._note(event, now, self._tried(event) if event.do == "attacker" else None)
        return True

    @property
    def restarts_pending(self) -> bool:
        """Whether a restart is still due."""
        return any(event.do == "restart" for _, _, event, _ in self._due)

    def end(self, now: float) -> None:
        """Repair everything except deaths and hostility, and record the events that never fired."""
        left = [event for _, _, event, _ in sorted(self._due)] + list(self._at_points.values())
        self._due.clear()
        for event in left:
            refusal = self._executor.refusal(event)
            if refusal is not None or event.do not in UNDONE_BY.values():
                self._tell(EventOutcome(event, now, refusal or END_OF_PLAN))
        hurt = {key for key, faults in self._faults.items() if faults}
        for kind in REPAIRED:
            for name in sorted(name for undoing, name in hurt if undoing == kind):
                self._fire(Event(do=kind, at_seconds=0, peer=number_of(name) if name else None), now)

    def _push(self, seconds: float, event: Event, fault: Event | None = None) -> None:
        heapq.heappush(self._due, (seconds, next(self._order), event, fault))

    def _fire(self, event: Event, now: float, fault: Event | None = None) -> None:
        refusal = self._executor.refusal(event) or self._obstacle(event, fault) or self._tried(event, fault)
        self._note(event, now, refusal)

    def _tried(self, event: Event, fault: Event | None = None) -> str | None:
        """Carry out an event; returns the reason if it fails, else None."""
        try:
            self._do(event, fault)
        except LocalError as error:
            return str(error)
        return None

    def _note(self, event: Event, now: float, refusal: str | None = None) -> None:
        self._tell(EventOutcome(event, now, refusal))
        if refusal is None and event.for_seconds is not None:
            self._push(now + event.for_seconds, event.undoing(), event)

    def _obstacle(self, event: Event, fault: Event | None) -> str | None:
        """Return why this event is impossible in the present state; None if it is possible."""
        name = event.target
        if event.do == "restart" and name not in self._down:
            return f"{name} is running"
        if event.do == "honest" and not self._in_force(event):
            return f"{name} is not hostile"
        if name in self._down and event.do not in MACHINE_KINDS | {"restart", "honest"}:
            return f"{name} is down"
        if event.do in ("stop", "continue") and bool(self._in_force(event)) != (event.do == "continue"):
            return f"{name} is {'already' if event.do == 'stop' else 'not'} stopped"
        if fault is not None and not any(one is fault for one in self._in_force(event)):
            return f"that {fault.do} is over already"
        return None

    def _in_force(self, event: Event) -> list[Event]:
        """Return the target's faults of this kind, in the order in which they began."""
        return self._faults.get(_place_of(event), [])

    def _begin(self, event: Event) -> None:
        self._faults[_place_of(event)] = [*self._in_force(event), event]

    def _do(self, event: Event, fault: Event | None) -> None:
        """Begin a fault, or end `fault`, or all of its kind if that is None; other faults stay in force."""
        before = self._in_force(event)
        if event.do in UNDONE_BY:
            self._begin(event)
        else:
            self._faults[_place_of(event)] = [one for one in before if fault is not None and one is not fault]
        try:
            self._bring_about(_place_of(event)[0], event.target, before, self._in_force(event))
        except LocalError:
            self._faults[_place_of(event)] = before
            raise

    def _bring_about(self, undoing: Kind, name: str, before: Sequence[Event], faults: Sequence[Event]) -> None:
        match undoing:
            case "restart":
                (self._kill if faults else self._bring_back)(name)
            case "honest":
                begins = len(faults) > len(before)
                if begins or [one.attack for one in before[-1:]] != [one.attack for one in faults[-1:]]:
                    self._turn(name, begins)
            case "continue":
                (self._executor.stop if faults else self._executor.resume)(self._processes[name])
            case "heal":
                self._executor.partition(cut(faults, self._processes))
            case "disk_free":
                self._executor.limit_disk(self._processes[name], bool(faults))
            case "clock_right":
                skews = [one.skew_seconds or 0.0 for one in faults]
                self._executor.set_clock(self._processes[name], skews[-1] if skews else 0.0)
            case "clear":
                self._executor.shape(name, link(faults))

    def _turn(self, name: str, begins: bool) -> None:
        """Replace a peer's process by one with the attack in force; a peer that is down and turns honest stays down."""
        was_down = name in self._down
        if not was_down:
            self._kill(name)
        if begins or not was_down:
            self._bring_back(name)

    def _kill(self, name: str) -> None:
        self._forget(name)
        self._executor.kill(self._processes[name])

    def _bring_back(self, name: str) -> None:
        attacks = self._faults.get(("honest", name))
        self._restart(name, attacks[-1].attack if attacks else None)
        self._down.discard(name)
        self._faults.pop(("restart", name), None)

    def _forget(self, name: str) -> None:
        """Record that a process is gone, and with it its faults."""
        self._down.add(name)
        self._faults.pop(("continue", name), None)
        self._faults.pop(("disk_free", name), None)


def _place_of(event: Event) -> tuple[Kind, str]:
    """Return the key of a fault: the kind that undoes the event, or its own kind, and the target."""
    return UNDONE_BY.get(event.do, event.do), event.target


def link(faults: Iterable[Event]) -> LinkFault:
    """Return the link that these faults together cause; of two of one kind the later one counts."""
    values = {LINK_VALUES[one.do]: getattr(one, LINK_VALUES[one.do]) for one in faults}
    return LinkFault(**values)


def cut(partitions: Sequence[Event], names: Iterable[str]) -> tuple[frozenset[str], ...]:
    """Return the sides into which partitions together divide these processes; the first is on each one's first side."""
    if len(partitions) < 2:
        return partitions[0].groups() if partitions else ()
    together: dict[tuple[int, ...], set[str]] = {(0,) * len(partitions): set()}
    for name in names:
        sides = (one.groups() for one in partitions)
        place = tuple(next((index for index, side in enumerate(groups) if name in side), 0) for groups in sides)
        together.setdefault(place, set()).add(name)
    return tuple(map(frozenset, together.values()))
