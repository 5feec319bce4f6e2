"""States asked for while the owner wants silence are fetched afterwards, and only the newest of each fragment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from coordinator.events import Event, FetchFailed, StateFetched
from dht.errors import NetworkError
from peer.fetches import Fetches


class Stand:
    """States that arrive when the test says so; the core's ear."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.arrived = asyncio.Event()
        self.told: list[Event] = []
        self.taken: list[Any] = []
        loop = asyncio.get_running_loop()
        self.fetches = Fetches(self, self, loop.create_task, self.feed)  # type: ignore[arg-type]

    def precedes(self, certificate: Any) -> bool:
        """Too far behind for a single step."""
        return False

    async def fetch(self, certificate: Any, holders: Any) -> Any:
        self.asked.append(certificate.digest)
        await self.arrived.wait()
        if holders == ():
            raise NetworkError("nobody has it")
        return certificate.digest * 2

    def feed(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, StateFetched):
            self.taken.append(self.fetches.take(event.digest))


def action(fragment: int, digest: bytes, holders: tuple[str, ...] = ("a",)) -> Any:
    return SimpleNamespace(certificate=SimpleNamespace(fragment=fragment, digest=digest), holders=holders)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_newer_version_replaces_an_older_one_under_way() -> None:
    async def course() -> None:
        stand = Stand()
        for digest in (b"old", b"new"):
            stand.fetches.start(action(0, digest))
            await settle()
        stand.arrived.set()
        await settle()
        assert stand.asked == [b"old", b"new"]
        assert stand.taken == [b"newnew"]
        assert stand.fetches.take(b"new") is None

    asyncio.run(course())


def test_nothing_is_fetched_while_held_and_the_newest_afterwards() -> None:
    async def course() -> None:
        stand = Stand()
        stand.arrived.set()
        stand.fetches.hold(True)
        for fragment, digest in ((0, b"old"), (1, b"one"), (0, b"new")):
            stand.fetches.start(action(fragment, digest))
        stand.fetches.hold(True)
        await settle()
        assert stand.asked == []
        stand.fetches.hold(False)
        await settle()
        assert stand.asked == [b"new", b"one"]

    asyncio.run(course())


def test_a_state_that_nobody_gives_is_told() -> None:
    async def course() -> None:
        stand = Stand()
        stand.arrived.set()
        stand.fetches.start(action(3, b"x", ()))
        await settle()
        assert stand.told == [FetchFailed(3, b"x")]

    asyncio.run(course())
