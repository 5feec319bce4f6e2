"""States that the core asks for: one under way is finished if newer versions can be reached from it by their steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from coordinator.core.events import Event, FetchFailed, StateFetched
from dht.errors import NetworkError
from peer.rounds.catch_up import CatchUp
from peer.storage.anchors import HeldState


def certificate_of(digest: bytes, fragment: int = 0, parent: bytes = b"") -> Any:
    return SimpleNamespace(fragment=fragment, digest=digest, outcome=SimpleNamespace(parent=parent))


class Stand:
    """A fake of work, transfer and core: states arrive when the test says so, and steps are told or not."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.offered: list[bytes] = []
        self.forgotten: list[int] = []
        self.arrived = asyncio.Event()
        self.given_up = False
        self.begun = True
        self.near: list[bytes] = []  # versions that can be reached, the newest last
        self.told_steps: set[bytes] = set()
        self.told: list[Event] = []
        self.taken: list[Any] = []
        loop = asyncio.get_running_loop()
        self.chains: dict[int, Any] = {}
        self.catch_up = CatchUp(self, self, lambda: self.chains, loop.create_task, self.feed)  # type: ignore[arg-type]

    # -- as the work

    def step_bytes(self, certificate: Any) -> int:
        return 1

    def follow(self, certificate: Any, step: bytes, held: HeldState) -> HeldState:
        return HeldState(certificate.digest, held.state + certificate.digest)  # type: ignore[operator]

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()

    # -- as the transfer

    @property
    def steps(self) -> Any:
        return SimpleNamespace(has_stalled=lambda holder: False, fetch=self._step)

    @property
    def anchors(self) -> Stand:
        """The peer's anchors, which hold nothing; a state is as long as a hundred steps."""
        return self

    def held(self, fragment: int) -> None:
        """Hold no state."""

    def state_bytes(self, fragment: int) -> int:
        return 100

    async def _step(self, certificate: Any, holder: str, length_bytes: int) -> bytes | None:
        return b"step" if certificate.digest in self.told_steps else None

    def forget(self, fragment: int) -> None:
        self.forgotten.append(fragment)

    def offer(self, fragment: int, holders: Any) -> None:
        self.offered += holders

    def has_begun(self, fragment: int) -> bool:
        return self.begun

    def give_up(self, fragment: int) -> None:
        self.given_up = True
        self.arrived.set()

    async def fetch(self, certificate: Any, holders: Any) -> Any:
        self.asked.append(certificate.digest)
        await self.arrived.wait()
        if holders == () or self.given_up:
            self.given_up = False
            self.arrived.clear()
            raise NetworkError("nobody has it")
        return certificate.digest * 2

    # -- as the core

    def feed(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, StateFetched):
            self.taken.append(self.catch_up.take(certificate_of(event.digest, event.fragment)))

    def want(self, digest: bytes, fragment: int = 0, holders: tuple[str, ...] = ("a",)) -> None:
        known = self.near[: self.near.index(digest) + 1] if digest in self.near else [digest]
        certificates = [certificate_of(new, fragment, old) for old, new in itertools.pairwise([b"", *known])]
        self.chains[fragment] = SimpleNamespace(fragment=fragment, certificates=certificates)
        self.catch_up.start(SimpleNamespace(certificate=certificates[-1], holders=holders))  # type: ignore[arg-type]


def run(course: Callable[[Stand], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await course(Stand())

    asyncio.run(main())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_state_under_way_comes_to_its_end_and_newer_versions_are_followed_from_it() -> None:
    async def course(stand: Stand) -> None:
        stand.near, stand.told_steps = [b"v1", b"v2", b"v3"], {b"v2", b"v3"}
        for digest in stand.near:
            stand.want(digest, holders=(f"holder of {digest.decode()}",))
            await settle()
        assert stand.told == []
        assert stand.catch_up.following == [], "a state is"
        assert stand.offered == ["holder of v2", "holder of v3"], "who has a newer one may have this one"
        stand.arrived.set()
        await settle()
        assert stand.asked == [b"v1"]
        assert stand.told == [StateFetched(0, b"v3")]
        assert stand.taken == [b"v1v1v2v3"]
        assert stand.forgotten == [0], "what an earlier try had left"
        assert stand.catch_up.take(certificate_of(b"v3")) is None

    run(course)


def test_a_version_from_which_no_step_leads_on_is_not_waited_for() -> None:
    async def course(stand: Stand) -> None:
        for digest in (b"old", b"new"):
            stand.want(digest)
            await settle()
        assert stand.asked == [b"old", b"new"]
        stand.arrived.set()
        await settle()
        assert stand.told == [StateFetched(0, b"new")]

    run(course)


def test_a_download_that_has_not_begun_makes_place_for_a_newer_one() -> None:
    async def course(stand: Stand) -> None:
        stand.near, stand.begun = [b"v1", b"v2"], False
        for digest in stand.near:
            stand.want(digest)
            await settle()
        assert stand.asked == [b"v1", b"v2"]
        assert not stand.catch_up.outrun

    run(course)


def test_a_state_that_is_not_served_any_more_makes_place_at_once() -> None:
    async def course(stand: Stand) -> None:
        stand.near = [b"v1", b"v2"]
        stand.want(b"v1")
        await settle()
        stand.want(b"v2")
        stand.give_up(0)  # as if all holders had said that they do not hold it
        await settle()
        assert stand.asked == [b"v1", b"v2"]
        assert stand.told == []

    run(course)


def test_a_step_that_nobody_tells_is_asked_for_again_when_there_is_a_newer_version_and_then_the_state_is() -> None:
    async def course(stand: Stand) -> None:
        stand.near, stand.told_steps = [b"v1", b"v2", b"v3"], {b"v2"}
        stand.want(b"v1")
        assert stand.catch_up.following == [0]
        await settle()
        stand.want(b"v3")
        stand.arrived.set()
        await settle()
        assert stand.catch_up.following == []
        assert stand.asked == [b"v1", b"v3"]
        assert stand.taken == [b"v3v3"]

    run(course)


def test_a_version_reached_before_the_core_wanted_it_counts() -> None:
    """The core may learn of a newer version and ask for it only a little later."""

    async def course(stand: Stand) -> None:
        stand.near, stand.told_steps = [b"v1", b"v2"], {b"v2"}
        stand.arrived.set()
        stand.feed = stand.told.append  # type: ignore[method-assign]
        stand.catch_up._feed = stand.told.append
        stand.want(b"v1")
        await settle()
        stand.want(b"v2")
        await settle()
        assert stand.asked == [b"v1"]
        assert stand.told == [StateFetched(0, b"v1"), StateFetched(0, b"v2")]

    run(course)


def test_a_peer_that_is_always_too_late_says_so_until_it_is_not() -> None:
    async def course(stand: Stand) -> None:
        for digest in (b"v1", b"v2", b"v3"):
            assert not stand.catch_up.outrun
            stand.want(digest)
            await settle()
        assert stand.catch_up.outrun
        stand.arrived.set()
        await settle()
        assert stand.taken == [b"v3v3"]
        assert not stand.catch_up.outrun

    run(course)


def test_nothing_is_fetched_while_held_and_the_newest_afterwards() -> None:
    async def course(stand: Stand) -> None:
        stand.arrived.set()
        stand.catch_up.hold(True)
        for fragment, digest in ((0, b"old"), (1, b"one"), (0, b"new")):
            stand.want(digest, fragment)
        stand.catch_up.hold(True)
        await settle()
        assert stand.asked == []
        stand.catch_up.hold(False)
        await settle()
        assert stand.asked == [b"new", b"one"]

    run(course)


def test_a_state_that_nobody_gives_is_told() -> None:
    async def course(stand: Stand) -> None:
        stand.arrived.set()
        stand.want(b"x", 3, ())
        await settle()
        assert stand.told == [FetchFailed(3, b"x")]

    run(course)
