"""Chaos events for tests, and an executor that only records what it is asked to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from peer.chaos.executor import LinkFault
from peer.chaos.plan import Event, Kind
from peer.chaos.record import EventOutcome, Life
from peer.swarm.processes import PeerProcess

HOW: dict[Kind, dict[str, object]] = {
    "partition": {"sides": ((1,), (2,))},
    "delay": {"delay_seconds": 0.1},
    "loss": {"loss_share": 0.1},
    "bandwidth": {"bits_per_second": 1e6},
    "clock_skew": {"skew_seconds": 90.0},
    "attacker": {"attack": "two_votes"},
}


def event(do: Kind, at_seconds: float | None = 0.0, peer: int | str | None = None, **more: object) -> Event:
    return Event.model_validate({"do": do, "at_seconds": at_seconds, "peer": peer, **more})


def some(do: Kind, **when: object) -> Event:
    """Return one event of this kind, with the fields that it needs."""
    peer = None if do in ("partition", "heal") else 1
    return event(do, None if when else 0.0, peer, **HOW.get(do, {}), **when)


def happened(do: Kind, seconds: float, peer: int | str | None = None, refusal: str | None = None) -> EventOutcome:
    return EventOutcome(event(do, 0.0, peer, **HOW.get(do, {})), seconds, refusal)


def life(stepped_at: Sequence[float], contributed_at: float | None = None, pid: int = 1) -> Life:
    return Life(pid, list(stepped_at), contributed_at)


class Recorder:
    """An executor that records events, and refuses those of the kinds in `cannot`."""

    def __init__(self, cannot: Collection[Kind] = ()) -> None:
        self.cannot = cannot
        self.done: list[tuple[object, ...]] = []
        self.standing: set[object] = set()

    def open(self, names: Sequence[str]) -> None: ...
    def close(self) -> None: ...

    def refusal(self, event: Event) -> str | None:
        return f"no {event.do} here" if event.do in self.cannot else None

    def start(self, name: str, data_directory: Path, arguments: Sequence[str], temporary: bool) -> PeerProcess:
        raise AssertionError("a conductor restarts through its swarm")

    def kill(self, peer: PeerProcess) -> None:
        self.done.append(("kill", peer))

    def stop(self, peer: PeerProcess) -> None:
        self.done.append(("stop", peer))

    def resume(self, peer: PeerProcess) -> None:
        self.done.append(("resume", peer))

    def limit_disk(self, peer: PeerProcess, full: bool) -> None:
        self.done.append(("disk", peer, full))

    def set_clock(self, peer: PeerProcess, skew_seconds: float) -> None:
        self.done.append(("clock", peer, skew_seconds))

    def is_waiting(self, peer: PeerProcess) -> bool:
        return peer in self.standing

    def release(self, peer: PeerProcess) -> None:
        self.standing.discard(peer)
        self.done.append(("release", peer))

    def partition(self, sides: Sequence[Collection[str]]) -> None:
        self.done.append(("partition", *map(frozenset, sides)))

    def shape(self, name: str, link: LinkFault) -> None:
        self.done.append(("shape", name, link))
