"""The plan of a chaos run: its faults and their times, read from a TOML file and checked, with readable errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinator.run.toml_file import parse_toml, read_text
from coordinator.run.validation_errors import describe_error, shown
from dht.errors import UsageError
from dht.units import DAY_SECONDS
from peer.machine.clock import SKEW_SECONDS_MAX
from peer.machine.fault_points import Fault

Kind = Literal[
    "kill", "stop", "partition", "delay", "loss", "bandwidth", "disk_full", "clock_skew", "attacker",
    "restart", "continue", "heal", "clear", "disk_free", "clock_right", "honest",
]  # fmt: skip
MENDING: frozenset[Kind] = frozenset({"restart", "continue", "heal", "clear", "disk_free", "clock_right", "honest"})
"""Kinds that repair; all others are faults."""
UNDONE_BY: dict[Kind, Kind] = {
    "kill": "restart",
    "stop": "continue",
    "partition": "heal",
    "delay": "clear",
    "loss": "clear",
    "bandwidth": "clear",
    "disk_full": "disk_free",
    "clock_skew": "clock_right",
    "attacker": "honest",
}
LINK_VALUES: dict[Kind, str] = {"delay": "delay_seconds", "loss": "loss_share", "bandwidth": "bits_per_second"}
VALUES: dict[Kind, str] = {**LINK_VALUES, "clock_skew": "skew_seconds", "attacker": "attack"}
"""The key with the strength or kind of the fault, for kinds that have one."""
OF_LEARNERS: frozenset[Kind] = frozenset({"clock_skew", "clock_right", "attacker", "honest"})
"""Kinds that are never done to the host."""
HOST: Literal["host"] = "host"
EVENTS_MAX = 10_000
PEERS_MAX = 64
SECONDS_MAX = 7 * DAY_SECONDS
REPEATED_SECONDS_MIN = 0.5  # times are accurate to about this
MINUTES_DEFAULT = 5.0
PEERS_DEFAULT = 4

PeerNumber = int | Literal["host"]
Side = Annotated[tuple[PeerNumber, ...], Field(strict=False)]  # TOML has lists only


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Event(_Strict):
    """One event: at a time since measuring began, or when a peer reaches a point of the protocol.

    With `for_seconds`, it is undone that long after it really happened.
    """

    do: Kind
    at_seconds: float | None = Field(None, ge=0, le=SECONDS_MAX)
    at_point: str | None = Field(None, description="POINT or POINT:N, the N-th time a peer comes there")
    at_peer: PeerNumber | None = Field(None, description="who has to come to the point; default: whom it is done to")
    peer: PeerNumber | None = Field(None, description="number of a peer, or host")
    for_seconds: float | None = Field(None, gt=0, le=SECONDS_MAX)
    sides: tuple[Side, ...] = Field((), strict=False, max_length=PEERS_MAX)
    delay_seconds: float | None = Field(None, gt=0, le=10, description="added each way")
    loss_share: float | None = Field(None, gt=0, lt=1, description="of packets, each way")
    bits_per_second: float | None = Field(None, ge=1e3, le=1e12, description="each way")
    skew_seconds: float | None = Field(None, ge=-SKEW_SECONDS_MAX, le=SKEW_SECONDS_MAX, description="ahead, or behind")
    attack: str | None = Field(None, max_length=256, description="NAME[:PARAMETER=VALUE], as `muster lab --list` says")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.at_seconds is None) == (self.at_point is None):
            raise ValueError(f"{self.do} needs either at_seconds or at_point")
        of_all = self.do in ("partition", "heal")
        if of_all != (self.peer is None):
            raise ValueError(f"{self.do} {'takes no' if of_all else 'needs a'} peer")
        if self.do in OF_LEARNERS and self.peer == HOST:
            raise ValueError(f"{self.do} is for peers that train, not for the host")
        if (self.do == "partition") != bool(self.sides):
            raise ValueError("a partition, and nothing else, has sides")
        for kind, key in VALUES.items():
            if (self.do == kind) != (getattr(self, key) is not None):
                raise ValueError(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}, and nothing else, has {key}")
        if self.attack is not None:
            _check_attack(self.attack)
        if self.for_seconds is not None and self.do not in UNDONE_BY:
            raise ValueError(f"{self.do} is not undone by anything, so it takes no for_seconds")
        self._check_point()
        return self

    def _check_point(self) -> None:
        if self.at_point is None:
            if self.at_peer is not None:
                raise ValueError("at_peer says who comes to a point, so it needs at_point")
            return
        if self.waits_for in ("", HOST):
            raise ValueError("only a peer that trains comes to a point; say with at_peer which one")
        try:
            Fault.parse(f"kill:{self.at_point}")
        except UsageError as error:
            raise ValueError(str(error)) from None

    @property
    def target(self) -> str:
        """Name of the process that it is done to; empty for an event that concerns all."""
        return "" if self.peer is None else name_of(self.peer)

    @property
    def waits_for(self) -> str:
        """Name of the process that has to reach the point; empty for an event at a time."""
        who = self.peer if self.at_peer is None else self.at_peer
        return "" if self.at_point is None or who is None else name_of(who)

    @property
    def dies_there(self) -> bool:
        """Whether the process that reaches the point dies there by itself, between two instructions."""
        return self.do in ("kill", "attacker") and self.waits_for == self.target

    @property
    def name(self) -> str:
        """Name under which reports count it."""
        return "host_kill" if (self.do, self.peer) == ("kill", HOST) else self.do

    def groups(self) -> tuple[frozenset[str], ...]:
        """Return the sides of a partition, by process; processes on none of them stay on the first."""
        return tuple(frozenset(map(name_of, side)) for side in self.sides)

    def undoing(self) -> Event:
        """Return the event that undoes it after `for_seconds`, as planned."""
        at_seconds = (self.at_seconds or 0.0) + (self.for_seconds or 0.0)
        return Event(do=UNDONE_BY[self.do], at_seconds=at_seconds, peer=self.peer)

    def detail(self) -> str:
        """Return the detail for a timeline, in addition to kind and peer."""
        sides = " | ".join(" ".join(sorted(group)) for group in self.groups())
        value = getattr(self, VALUES[self.do]) if self.do in VALUES else ""
        words = sides or (value if isinstance(value, str) else f"{value:g}")
        whose = f"of {self.waits_for}" if self.waits_for not in ("", self.target) else ""
        return " ".join(filter(None, (words, self.at_point and f"at {self.at_point}", whose)))


class Repeated(_Strict):
    """A fault that recurs for peers drawn at random."""

    every_seconds: float = Field(ge=REPEATED_SECONDS_MIN, le=SECONDS_MAX, description="on average, between two of them")
    for_seconds: float = Field(ge=REPEATED_SECONDS_MIN, le=SECONDS_MAX)


class ChaosPlanFile(_Strict):
    """A plan as its author writes it. The command line may set other numbers of peers and minutes."""

    peers: int | None = Field(None, ge=1, le=PEERS_MAX)
    minutes: float | None = Field(None, gt=0, le=SECONDS_MAX / 60)
    seed: int = Field(0, ge=0, description="of what is drawn")
    kills: Repeated | None = None
    stops: Repeated | None = None
    event: tuple[Event, ...] = Field((), strict=False, max_length=EVENTS_MAX)

    @classmethod
    def load(cls, path: Path) -> ChaosPlanFile:
        """Read a plan; raises UsageError with one sentence that names the mistake."""
        return cls.parse(read_text(path, "plan"), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> ChaosPlanFile:
        """Read TOML text; `source` names it in errors."""
        try:
            return cls.model_validate(parse_toml(text, source))
        except ValidationError as error:
            raise UsageError(f"{source}: {_fault(error)}; see docs/how-to/chaos.md") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """The events of a run with `peers` peers and `seconds` seconds; events at a time come first, in order of time."""

    peers: int
    seconds: float
    events: tuple[Event, ...] = ()

    @classmethod
    def of(cls, peers: int, seconds: float, events: tuple[Event, ...]) -> Plan:
        """Sort and check; raises UsageError if an event names a peer or a time outside the run."""
        for event in events:
            _check(event, peers, seconds)
        waiting = [event.waits_for for event in events if event.at_point is not None]
        if twice := next((name for name in waiting if waiting.count(name) > 1), None):
            raise UsageError(f"{twice} is to wait at two points; a peer can wait for one only")
        hostile = {event.target for event in events if event.do == "attacker"}
        if len(hostile) >= peers:
            raise UsageError(f"somebody must be honest: of {peers} peers {peers - 1} can attack, not {len(hostile)}")
        endless = float("inf")
        by_time = sorted(events, key=lambda event: endless if event.at_seconds is None else event.at_seconds)
        return cls(peers, seconds, tuple(by_time))

    @property
    def point_faults(self) -> dict[int, str]:
        """The `--fault` of each peer that is to die at a point, or to wait there for its event."""
        waiting = (event for event in self.events if event.at_point is not None)
        return {
            int(number_of(event.waits_for)): f"{'kill' if event.dies_there else 'wait'}:{event.at_point}"
            for event in waiting
        }


def _check_attack(text: str) -> None:
    """Raise ValueError if no peer can attack like that."""
    from peer.attacks.protocol import is_process_attack

    name, colon, _ = text.partition(":")
    try:
        if not is_process_attack(name):
            from peer.attacks.zoo import AttackChoice  # imports torch, which most plans do not need

            AttackChoice.parse(text)
        elif colon:
            raise UsageError(f"the attack {name} has no parameter; leave out what follows its name")
    except UsageError as error:
        raise ValueError(str(error)) from None


def name_of(peer: PeerNumber) -> str:
    """Return the process's name in the swarm."""
    return peer if isinstance(peer, str) else f"peer-{peer}"


def number_of(name: str) -> PeerNumber:
    """Return the peer that `name_of` names."""
    return HOST if name == HOST else int(name.removeprefix("peer-"))


def _check(event: Event, peers: int, seconds: float) -> None:
    if event.at_seconds is not None and event.at_seconds >= seconds:
        raise UsageError(f"{event.do} at {event.at_seconds:g} s comes after the end at {seconds:g} s")
    everybody = [one for side in event.sides for one in side]
    named = [number for number in (*everybody, event.peer, event.at_peer) if number is not None]
    for number in named:
        if number != HOST and not 1 <= int(number) <= peers:
            raise UsageError(f"{event.do}: there is no peer {number}; they are numbered from 1 to {peers}")
    if len(set(everybody)) != len(everybody) or (event.do == "partition" and len(event.sides) < 2):
        raise UsageError("a partition has two sides or more, and nobody is on two of them")


def _fault(error: ValidationError) -> str:
    """Return the first mistake, in words."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "int" and not str(part).startswith("literal"))
    if first["type"] == "value_error":  # raised by our own checks
        return f"{place}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        return f"{place} is not a known key"
    if first["type"] == "int_type" and "int" in first["loc"]:
        return f'{place} has to be the number of a peer, or "host", not {shown(first["input"])}'
    return f"{place} {describe_error(first)}"
