"""Checking a machine's clock against what other peers report, and what its owner is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dht.identity import Identity, PeerId
from dht.validation import CLOCK_TOLERANCE_SECONDS
from peer.net.frames import ProbeAnswer, ProbeAsk
from peer.net.probe import ProbeResponder
from peer.node.clock_check import (
    ANSWER_SECONDS,
    ASKED_MAX,
    LOOK_SECONDS,
    ClockCheck,
    clock_words,
    is_wrong,
    watch_clock,
)
from peer.node.status import advice_of
from tests.peer.rounds.test_driver import Swarm, config_of
from tests.peer.virtual_loop import run_virtual

ME, *OTHERS = sorted(Identity(bytes([number]) * 32).peer_id for number in range(1, 9))
UNIX_SECONDS = 1_800_000_000.0


class Town:
    """Peers whose clocks show the right time, and one whose clock may not."""

    def __init__(self, others: list[PeerId], ahead_seconds: float = 0.0) -> None:
        self.others = others
        self.right = UNIX_SECONDS
        self.asked: list[tuple[PeerId, int]] = []
        self.watch = ClockCheck(ME, lambda: self.others, self._post, lambda: self.right + ahead_seconds)

    def _post(self, peer: PeerId, ask: ProbeAsk, payload: bytes) -> None:
        assert (ask.port, payload) == (None, b"")
        self.asked.append((peer, ask.ticket))

    def answer(self, peer: PeerId, ticket: int, ahead_seconds: float = 0.0) -> None:
        told = int(1000 * (self.right + ahead_seconds))
        self.watch.hear(peer, ProbeAnswer(ticket=ticket, unix_milliseconds=told))

    def look(self, *ahead_seconds: float) -> float | None:
        """Take one look, in which the peers asked answer within a second with clocks ahead by the given seconds."""
        self.asked.clear()
        self.watch.ask()
        for (peer, ticket), ahead in zip(self.asked, ahead_seconds, strict=False):
            self.right += 0.5  # the answer is on its way
            self.answer(peer, ticket, ahead)
        return self.watch.ahead_seconds()


@pytest.mark.parametrize("ahead_seconds", [0.0, 120.0, -3600.0])
def test_a_clock_is_as_wrong_as_most_others_find_it(ahead_seconds: float) -> None:
    town = Town(OTHERS, ahead_seconds)
    found = town.look(0.0, 0.0, 9999.0)  # one liar
    assert found is not None
    assert abs(found - ahead_seconds) < 1.0
    assert is_wrong(found) == (ahead_seconds != 0.0)


def test_the_tolerance_is_that_of_records() -> None:
    assert not is_wrong(CLOCK_TOLERANCE_SECONDS)
    assert is_wrong(-CLOCK_TOLERANCE_SECONDS - 0.001)
    assert clock_words(120.0) == "120.0 s ahead of other peers"
    assert clock_words(-3600.0) == "3600.0 s behind other peers"


def test_an_unasked_answer_counts_for_nothing() -> None:
    town = Town(OTHERS[:1])
    assert town.look() is None
    (peer, ticket) = town.asked[0]
    town.answer(OTHERS[1], ticket, 500.0)  # was not asked
    town.answer(peer, ticket + 1, 500.0)  # another question
    town.watch.ask()
    town.answer(peer, ticket, 500.0)  # a question of the previous look
    assert town.watch.ahead_seconds() is None
    town.answer(peer, ticket + 1, 0.0)
    town.answer(peer, ticket + 1, 500.0)  # once is enough
    assert town.watch.ahead_seconds() == 0.0


def test_two_who_differ_make_no_clock_wrong_but_one_who_is_alone_is_believed() -> None:
    town = Town(OTHERS[:2])
    assert abs(town.look(0.0, 3600.0) or 0.0) < 1.0
    town.others = OTHERS[:1]
    assert is_wrong(town.look(3600.0) or 0.0)


def test_the_same_few_are_asked_as_long_as_they_answer_and_others_if_not() -> None:
    town = Town([*OTHERS, ME])
    town.look(0.0, 0.0, 0.0)
    first = {peer for peer, _ in town.asked}
    assert len(first) == ASKED_MAX
    town.look(0.0, 0.0)
    assert {peer for peer, _ in town.asked} == first
    town.look(0.0)
    assert {peer for peer, _ in town.asked} == first, "most have answered"
    seen = set(first)
    for _ in range(2):
        town.look()
        seen |= {peer for peer, _ in town.asked}
    assert seen == set(OTHERS)
    town.others = []
    assert town.look() is None
    assert town.asked == []


def test_an_owner_is_told_as_long_as_the_clock_is_wrong(tmp_path: Path) -> None:
    """Told over the wire by the peer that invited us: a peer whose clock is wrong from the start met nobody else."""

    async def main() -> tuple[list[str], dict[str, int]]:
        swarm = Swarm(config_of(), 3, tmp_path)
        await swarm.start()
        loop = asyncio.get_running_loop()
        skew = {"seconds": 0.0}

        def right() -> float:
            return UNIX_SECONDS + loop.time()

        async def host_of(_: PeerId) -> str:
            return ""

        ours, *others = (peer.driver for peer in swarm.peers)
        for other in others:
            other.requests.answer_probes(ProbeResponder(host_of, other.post, right))
        whom = [peer.identity.peer_id for peer in swarm.peers[1:]]
        watching = loop.create_task(watch_clock(lambda: right() + skew["seconds"], ours, whom))
        advice = []
        for skew["seconds"] in (0.0, 120.0, -3600.0, 0.0):
            await asyncio.sleep(2 * (ANSWER_SECONDS + LOOK_SECONDS))
            advice.append(advice_of(ours))
        watching.cancel()
        events = dict(ours.counters.events)
        for peer in swarm.peers:
            await peer.driver.close()
        return advice, events

    advice, events = run_virtual(main())
    assert [text.partition(",")[0] for text in (advice[0], advice[3])] == ["", ""]
    assert advice[1].startswith("this machine's clock is 120.")
    assert "ahead of other peers; set the clock" in advice[1]
    assert "behind other peers; set the clock" in advice[2]
    assert (events["clock_wrong"], events["clock_right"]) == (1, 1)


@pytest.mark.parametrize("ahead_seconds", [7200.0, -7200.0])
def test_joins_are_dated_by_a_clock_that_was_set_or_has_slept(tmp_path: Path, ahead_seconds: float) -> None:
    """Monotonic time stands still while a machine sleeps; dated by it, a join would have expired on arrival."""

    async def main() -> float:
        swarm, loop = Swarm(config_of(), 1, tmp_path), asyncio.get_running_loop()
        await swarm.start()
        driver, jump = swarm.peers[0].driver, {"seconds": 0.0}

        def clock() -> float:
            return UNIX_SECONDS + loop.time() + jump["seconds"]

        watching = loop.create_task(watch_clock(clock, driver, ()))
        await asyncio.sleep(1.0)
        jump["seconds"] = ahead_seconds
        await asyncio.sleep(ANSWER_SECONDS + LOOK_SECONDS)
        watching.cancel()
        off = clock() - driver.engine.core.unix_seconds(driver.now)
        await swarm.close()
        return off

    assert abs(run_virtual(main())) < 1.0
