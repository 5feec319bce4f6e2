"""The rendezvous of elastic data-parallel: decides which workers train together next, on a machine that never fails.

`Rendezvous` decides, sans-IO. A process around it answers datagrams, for which workers wait only a moment. It also
holds torch's store, through which the members of a generation find each other.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

PORT, STORE_PORT = 7600, 7601
ASK_EVERY_SECONDS = 0.05
FORGOTTEN_SECONDS = 1.0  # a worker that has not asked for so long no longer waits
GRACE_SECONDS = 0.5  # for other members to notice that their generation is over
ABANDONED_SECONDS = 20.0  # much longer than a step: a generation silent for so long has no member left
DATAGRAM_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A state that a worker holds: the generation that made its last step, and its number of steps."""

    generation: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """Workers that train together, in order of rank; the first holds the newest state, and gives it to the others."""

    number: int
    members: tuple[str, ...]


class Rendezvous:
    """Forms one generation after the other. The first waits for all workers, a later one for the survivors."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._current: Generation | None = None
        self._waiting: dict[str, tuple[Held, float]] = {}
        self._over_since = math.inf  # when the first member asked for another generation
        self._heard_at = 0.0  # of the current generation

    def ask(self, name: str, held: Held, tried: int, now: float) -> Generation | None:
        """Return a generation later than the one that this worker `tried`; None means to ask again."""
        if self._current is not None and name in self._current.members and self._current.number > tried:
            return self._current
        self._waiting[name] = (held, now)
        self._waiting = {one: asked for one, asked in self._waiting.items() if now - asked[1] <= FORGOTTEN_SECONDS}
        if self._is_member(name):
            self._over_since = min(self._over_since, now)
        if not self._is_due(now):
            return None
        newest_first = sorted(self._waiting, reverse=True, key=lambda one: self._waiting[one][0])
        self._current = Generation(1 + (self._current.number if self._current else 0), tuple(newest_first))
        self._waiting.clear()
        self._over_since, self._heard_at = math.inf, now
        return self._current if self._is_member(name) else None

    def goes_on(self, number: int, now: float) -> bool:
        """Note that a generation is at work; returns whether it should go on, as no other worker waits."""
        if self._current is None or number != self._current.number:
            return False
        self._heard_at = now
        return not any(now - asked_at <= FORGOTTEN_SECONDS for _, asked_at in self._waiting.values())

    def _is_member(self, name: str) -> bool:
        return self._current is not None and name in self._current.members

    def _is_due(self, now: float) -> bool:
        if self._current is None:
            return len(self._waiting) == self._workers
        everybody = all(name in self._waiting for name in self._current.members)
        return everybody or now - self._over_since >= GRACE_SECONDS or now - self._heard_at >= ABANDONED_SECONDS


class Desk:
    """A worker's client of the rendezvous."""

    def __init__(self, address: str) -> None:
        self._address = (address, PORT)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(ASK_EVERY_SECONDS)
        self._count = 0

    def join(self, name: str, held: Held, tried: int) -> Generation:
        """Ask until there is a generation, as long as it takes."""
        while True:
            began = time.monotonic()
            found = self._ask({"name": name, "held": asdict(held), "tried": tried})
            if found.get("members"):
                return Generation(found["number"], tuple(found["members"]))
            time.sleep(max(0.0, began + ASK_EVERY_SECONDS - time.monotonic()))

    def goes_on(self, number: int) -> bool:
        """Whether this generation should go on; true if there is no answer at once."""
        return bool(self._ask({"number": number}).get("goes_on", True))

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer; empty if none comes soon."""
        self._count += 1
        try:
            self._socket.sendto(json.dumps({**question, "count": self._count}).encode(), self._address)
            while True:
                answer: dict[str, Any] = json.loads(self._socket.recv(DATAGRAM_BYTES_MAX))
                if answer["count"] == self._count:  # else it is a late one
                    return answer
        except OSError:  # too late, or the network is cut
            return {}


def answer(rendezvous: Rendezvous, question: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the answer to a question."""
    if "name" not in question:
        return {"goes_on": rendezvous.goes_on(question["number"], now)}
    formed = rendezvous.ask(question["name"], Held(**question["held"]), question["tried"], now)
    return {} if formed is None else asdict(formed)


def main(workers: int, address: str) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(address, STORE_PORT, is_master=True, wait_for_workers=False)
    rendezvous = Rendezvous(workers)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as desk:
        desk.bind((address, PORT))
        print("ready", flush=True)
        while store is not None:
            text, asker = desk.recvfrom(DATAGRAM_BYTES_MAX)
            question = json.loads(text)
            found = answer(rendezvous, question, time.monotonic())
            desk.sendto(json.dumps({**found, "count": question["count"]}).encode(), asker)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
