"""Which holders a fetcher asks for the steps that it missed, and for how long (design §8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dht.identity import PeerId
from peer.rounds.replay_steps import TRIES_MAX, follow_steps
from peer.storage.anchors import HeldState
from tests.peer.virtual_loop import run_virtual

MISSED: list[Any] = [SimpleNamespace(digest=digest) for digest in (b"v1", b"v2", b"v3")]


class Holders:
    """Holders that behave by their first letter: silent, empty-handed, liar, honest; also the fetcher's tensor work."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stalled: set[str] = set()

    async def fetch(self, certificate: Any, holder: PeerId, length_bytes: int) -> bytes | None:
        self.asked.append(holder)
        self.stalled.discard(holder)
        if holder[0] == "s":
            self.stalled.add(holder)
        return {"h": certificate.digest, "l": b"a lie"}.get(holder[0])

    def has_stalled(self, holder: str) -> bool:
        return holder in self.stalled

    def step_bytes(self, certificate: Any) -> int:
        return 2

    def follow(self, certificate: Any, step: bytes, held: HeldState) -> HeldState | None:
        return HeldState(certificate.digest, held.state) if step == certificate.digest else None

    async def run(self, work: Any) -> Any:
        return work()


def follow(names: list[str]) -> tuple[bytes, list[str]]:
    """Follow the steps with these holders; return the version reached, and who was asked."""
    holders, begun = Holders(), HeldState(b"v0", None)  # type: ignore[arg-type]
    asked = [PeerId(name) for name in names]
    reached = run_virtual(follow_steps(begun, MISSED, asked, holders, holders))  # type: ignore[arg-type]
    return reached.digest, holders.asked


def test_a_stalled_holder_is_asked_last_for_the_next_step() -> None:
    reached, asked = follow(["silent", "honest"])
    assert reached == b"v3"
    assert asked == ["silent", "honest", "honest", "honest"]


def test_a_holder_without_a_step_does_not_keep_others_from_being_asked() -> None:
    reached, _ = follow([*(f"empty {number}" for number in range(15)), "honest"])
    assert reached == b"v3"


def test_only_so_many_may_waste_our_time() -> None:
    for wasting in ("silent", "liar"):
        reached, asked = follow([*(f"{wasting} {number}" for number in range(TRIES_MAX)), "honest"])
        assert reached == b"v0"
        assert len(asked) == TRIES_MAX


def test_a_version_reached_before_no_holder_knew_more_counts() -> None:
    missed, holders, begun = [*MISSED, SimpleNamespace(digest=b"v4")], Holders(), HeldState(b"v0", None)  # type: ignore[arg-type]
    tell = holders.fetch

    async def knows_three(certificate: Any, holder: PeerId, length_bytes: int) -> bytes | None:
        return None if certificate.digest == b"v4" else await tell(certificate, holder, length_bytes)

    holders.fetch = knows_three  # type: ignore[method-assign]
    assert run_virtual(follow_steps(begun, missed, [PeerId("honest")], holders, holders)).digest == b"v3"  # type: ignore[arg-type]
