"""Downloading a state from several holders at once, any of which may lie, stall or have nothing (design §8)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.merkle import leaf_count
from dht.identity import PeerId
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState, state_bytes, state_digest, state_tree
from peer.sync.download import Wanted
from peer.sync.download_scheduler import HOLDERS_ASKED_MAX, TURN_SECONDS, Ask, DownloadScheduler
from peer.sync.source import ANSWER_SECONDS, PATIENCE_SECONDS, PIECES_IN_FLIGHT, STALL_SECONDS

ELEMENTS = 3 * STATE_PIECE_BYTES // 4 + 17  # four pieces per half, the last one short
PER_HALF = leaf_count(4 * ELEMENTS, STATE_PIECE_BYTES)
Manner = Literal["honest", "slow", "silent", "liar", "half", "ignorant", "false leaves", "dies"]


def state_of(seed: int) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    return OuterState(torch.randn(ELEMENTS, generator=generator), torch.randn(ELEMENTS, generator=generator))


STATE, OTHER = state_of(1), state_of(2)
DIGEST = state_digest(STATE.anchor, STATE.momentum)
NAME = b"certificate"


def ended() -> None:
    """Do nothing at the end, because nobody waits here."""


def begun(holders: Sequence[str], state: bytes = DIGEST, elements: int = ELEMENTS) -> DownloadScheduler:
    """Return a scheduler that has begun to download one state of fragment 0 from these holders."""
    downloads = DownloadScheduler()
    downloads.begin(Wanted(0, 3, NAME, state), elements, [PeerId(holder) for holder in holders], ended)
    return downloads


def receive(downloads: DownloadScheduler, peer: PeerId, piece: int | None, payload: bytes, now: float) -> int:
    return downloads.receive(peer, 0, (NAME, piece), payload, now)


@cache
def answer_of(seed: int, piece: int | None) -> bytes:
    state = {1: STATE, 2: OTHER}[seed]
    if piece is None:
        return b"".join(state_tree(state.anchor).leaves + state_tree(state.momentum).leaves)
    half, index = divmod(piece, PER_HALF)
    return bytes(state_bytes((state.anchor, state.momentum)[half])[index * STATE_PIECE_BYTES :][:STATE_PIECE_BYTES])


@dataclass
class Holders:
    """Holders that answer in random order and virtual time, each in its own manner."""

    manners: dict[str, Manner]
    random: random.Random
    now: float = 0.0
    asked: list[Ask] = field(default_factory=list)

    def answer(self, ask: Ask) -> bytes | None:
        manner = self.manners[ask.holder]
        answers = sum(one.holder == ask.holder for one in self.asked)
        if manner == "silent" or (manner == "dies" and answers > 3):
            return None
        if manner == "ignorant":
            return b""
        if manner == "false leaves" or (ask.piece is not None and manner == "liar"):
            return answer_of(2, ask.piece)
        if ask.piece is not None and manner == "half":
            return answer_of(1, ask.piece)[:-1]
        return answer_of(1, ask.piece)

    def run(self, download: DownloadScheduler) -> None:
        pending: list[tuple[Ask, bytes]] = []
        while not download.is_over(0):
            for ask in download.asks(self.now):
                self.asked.append(ask)
                payload = self.answer(ask)
                if payload is not None:
                    pending.append((ask, payload))
            if pending:
                quick = [one for one in pending if self.manners[one[0].holder] != "slow"] or pending
                chosen = self.random.choice(quick)
                pending.remove(chosen)
                self.now += 0.01
                receive(download, chosen[0].holder, chosen[0].piece, chosen[1], self.now)
            elif not download.is_over(0):
                self.now = max(self.now, min(download.next_deadline(self.now), self.now + 10 * STALL_SECONDS))


def fetch(*manners: Manner, seed: int = 0) -> tuple[DownloadScheduler, Holders]:
    holders = Holders({f"peer {n}": manner for n, manner in enumerate(manners)}, random.Random(seed))
    download = begun(list(holders.manners))
    holders.run(download)
    return download, holders


def assert_whole(download: DownloadScheduler) -> None:
    assert download.progress([0])[:2] == (8 * ELEMENTS, 8 * ELEMENTS)
    got = download.take(0)
    assert got is not None
    assert torch.equal(got.anchor, STATE.anchor)
    assert torch.equal(got.momentum, STATE.momentum)


manner = st.sampled_from(["honest", "slow", "silent", "liar", "half", "ignorant", "false leaves", "dies"])


@given(st.lists(manner, max_size=7), st.integers(0, 2**32), st.integers(0, 7))
def test_one_honest_holder_is_enough(others: list[Manner], seed: int, place: int) -> None:
    download, _ = fetch(*others[:place], "honest", *others[place:], seed=seed)
    assert_whole(download)


@given(
    st.lists(st.sampled_from(["liar", "half", "ignorant", "false leaves", "silent"]), min_size=1), st.integers(0, 99)
)
def test_without_one_nothing_false_is_taken(manners: list[Manner], seed: int) -> None:
    download, _ = fetch(*manners, seed=seed)
    assert download.take(0) is None
    assert download.progress([0])[0] == 0


def test_no_piece_is_asked_for_twice_without_need() -> None:
    download, holders = fetch("honest", "honest", "honest")
    assert_whole(download)
    pieces = [ask.piece for ask in holders.asked if ask.piece is not None]
    assert len(set(pieces)) == 2 * PER_HALF
    assert len(pieces) <= 2 * 2 * PER_HALF


def test_a_slow_holder_does_not_hold_up_the_end() -> None:
    download, holders = fetch("slow", "honest")
    assert_whole(download)
    assert holders.now < STALL_SECONDS


def test_holders_that_are_slow_on_purpose_keep_no_place_for_good() -> None:
    """Before, a holder that answered just before its time was up was asked again, while others waited in reserve."""
    slow = [PeerId(f"slow {number}") for number in range(HOLDERS_ASKED_MAX)]
    state = OuterState(STATE.anchor.repeat(4), STATE.momentum.repeat(4))  # more than the slow ones give in two turns
    answers = [b"".join(state_tree(half).leaves) for half in (state.anchor, state.momentum)]
    pieces = [bytes(state_bytes(half)) for half in (state.anchor, state.momentum)]
    per_half = leaf_count(len(pieces[0]), STATE_PIECE_BYTES)

    def answer(piece: int | None) -> bytes:
        if piece is None:
            return b"".join(answers)
        half, index = divmod(piece, per_half)
        return pieces[half][index * STATE_PIECE_BYTES :][:STATE_PIECE_BYTES]

    download, now = begun([*slow, "honest"], state_digest(*_halves(state)), len(state.anchor)), 0.0
    owed: dict[PeerId, list[Ask]] = {peer: [] for peer in slow}
    given = 0
    while not download.is_over(0):
        asks = download.asks(now)
        while asks:
            ask = asks.pop(0)
            if ask.holder in owed:
                owed[ask.holder].append(ask)
                continue
            given += receive(download, ask.holder, ask.piece, answer(ask.piece), now)
            asks += download.asks(now)
        now += STALL_SECONDS - 0.1
        for ask in [waiting.pop(0) for waiting in owed.values() if waiting]:
            receive(download, ask.holder, ask.piece, answer(ask.piece), now)
        assert now < 2 * TURN_SECONDS
    assert download.take(0) is not None
    assert given > download.progress([0])[1] / 2


def test_a_holder_that_repeats_known_digests_is_waited_for_no_longer() -> None:
    """Before, what such a holder still owed was asked of nobody else for as long as it repeated answers."""
    download, repeater, now, answers = begun(["repeater", "honest"]), PeerId("repeater"), 0.0, 0
    owed: dict[PeerId, list[Ask]] = {PeerId("honest"): [], repeater: []}
    while not download.is_over(0):
        for ask in download.asks(now):
            owed[ask.holder].append(ask)
        answers += 1
        speaking = [repeater] if answers <= 4 else [PeerId("honest")] if answers % 4 == 0 else []
        for ask in [owed[peer].pop(0) for peer in speaking if owed[peer]]:
            receive(download, ask.holder, ask.piece, answer_of(1, ask.piece), now)
        receive(download, repeater, None, answer_of(1, None), now)
        now += 0.1
        assert now < 2 * PATIENCE_SECONDS
    assert owed[repeater]
    assert_whole(download)


def _halves(state: OuterState) -> tuple[torch.Tensor, torch.Tensor]:
    return state.anchor, state.momentum


def test_only_some_holders_are_asked_at_once_each_for_few_pieces() -> None:
    download = begun([f"peer {number}" for number in range(9)], elements=100 * STATE_PIECE_BYTES)
    asks = download.asks(0.0)
    assert len(asks) == HOLDERS_ASKED_MAX
    assert {ask.piece for ask in asks} == {None}
    assert download.asks(STALL_SECONDS - 0.1) == []
    assert len({ask.holder for ask in download.asks(STALL_SECONDS)}) == HOLDERS_ASKED_MAX


def proven(*holders: str, now: float = 0.0) -> tuple[DownloadScheduler, list[Ask]]:
    """Return a download whose holders have given the leaf digests, and the pieces that they are asked for."""
    download = begun(holders)
    for ask in download.asks(now):
        receive(download, ask.holder, None, answer_of(1, None), now)
    return download, download.asks(now)


def test_a_holder_is_asked_for_as_much_as_it_gives_in_a_while() -> None:
    """The pieces in flight grow from few to many if answers are quick, and shrink to one if they are not."""
    quick, asks = proven("one")
    first = len(asks)
    assert 1 < first < PIECES_IN_FLIGHT
    for number in range(1, 4):
        receive(quick, PeerId("one"), asks.pop(0).piece, answer_of(1, number - 1), 0.01 * number)
        asks += quick.asks(0.01 * number)
        assert first <= len(asks) <= PIECES_IN_FLIGHT
    assert len(asks) > first
    slow, asks = proven("one")
    receive(slow, PeerId("one"), asks.pop(0).piece, answer_of(1, 0), STALL_SECONDS - 0.1)
    assert slow.asks(STALL_SECONDS - 0.1) == []
    assert len(asks) > 1, "what it owes it still owes"


def test_how_long_a_piece_takes_is_told_by_neither_the_slowest_nor_the_quickest() -> None:
    assert begun("abc").answer_seconds() == ANSWER_SECONDS
    download, asks = proven("slow", "slower", "slowest", "quick")
    assert download.answer_seconds() == ANSWER_SECONDS
    for holder, seconds in (("quick", 0.1), ("slow", 2.0), ("slower", 3.0), ("slowest", 40.0)):
        piece = next(ask.piece for ask in asks if ask.holder == holder)
        receive(download, PeerId(holder), piece, answer_of(1, piece), seconds)
    assert download.answer_seconds() == 2.0
    download.gone(PeerId("quick"))
    assert download.answer_seconds() == 3.0


def test_a_piece_that_is_owed_for_long_is_asked_of_others() -> None:
    download, asks = proven("silent", "quick")
    owed = {ask.piece for ask in asks if ask.holder == "silent"}
    holders = Holders({"quick": "honest"}, random.Random(1), now=STALL_SECONDS - 0.1)
    for ask in [ask for ask in asks if ask.holder == "quick"]:
        receive(download, ask.holder, ask.piece, answer_of(1, ask.piece), holders.now)
    holders.run(download)
    assert owed <= {ask.piece for ask in holders.asked}
    assert holders.now < STALL_SECONDS + 1.0
    assert_whole(download)


def test_a_holder_that_has_given_something_is_waited_for_longer_than_a_stranger() -> None:
    download, asks = proven("one")
    now = PATIENCE_SECONDS - 1.0
    assert download.asks(now) == []
    assert not download.is_over(0)
    assert receive(download, PeerId("one"), asks[0].piece, answer_of(1, asks[0].piece), now) > 0
    assert download.asks(now + PATIENCE_SECONDS) == []
    assert download.is_over(0)


def test_a_piece_that_comes_late_counts_and_is_asked_of_nobody_else() -> None:
    download, asks = proven("one")
    late = asks[0]
    download.asks(PATIENCE_SECONDS)
    assert download.is_over(0)
    download.pause(0, ended)
    assert receive(download, PeerId("one"), late.piece, answer_of(1, late.piece), PATIENCE_SECONDS) > 0
    download.begin(Wanted(0, 3, NAME, DIGEST), ELEMENTS, [PeerId("two")])
    holders = Holders({"two": "honest"}, random.Random(1), now=PATIENCE_SECONDS)
    holders.run(download)
    assert_whole(download)
    assert late.piece not in {ask.piece for ask in holders.asked}


def test_a_holder_that_sends_a_false_piece_unasked_is_heard_no_more() -> None:
    download, _ = proven("one", "liar")
    receive(download, PeerId("liar"), 7, answer_of(2, 7), 0.0)
    assert receive(download, PeerId("liar"), 6, answer_of(1, 6), 0.0) == 0
    assert {ask.holder for ask in download.asks(0.0)} <= {"one"}


def test_a_later_try_does_not_begin_with_the_patience_of_the_one_before() -> None:
    """Before, questions from before a pause made every holder look as if it had stalled."""
    download, _ = proven("one", "two")
    download.pause(0, ended)
    download.begin(Wanted(0, 3, NAME, DIGEST), ELEMENTS, [PeerId("one"), PeerId("two")])
    assert {ask.holder for ask in download.asks(2 * PATIENCE_SECONDS)} == {"one", "two"}
    assert not download.is_over(0)


def test_states_come_one_after_the_other_and_share_what_is_in_flight() -> None:
    download = begun(["one"])
    for fragment in range(1, 8):
        download.begin(Wanted(fragment, 3, bytes([fragment]), DIGEST), ELEMENTS, [PeerId("one")])
    holder, now, finished = PeerId("one"), 0.0, list[int]()
    waiting = download.asks(now)
    while waiting:
        assert len(waiting) <= PIECES_IN_FLIGHT
        ask, now = waiting.pop(0), now + 0.1
        download.receive(holder, ask.fragment, (ask.name, ask.piece), answer_of(1, ask.piece), now)
        over = [fragment for fragment in range(8) if fragment not in finished and download.is_over(fragment)]
        finished += [fragment for fragment in over if download.take(fragment) is not None]
        waiting += download.asks(now)
    assert finished == list(range(8))


def test_a_newer_state_takes_the_place_of_the_older_one() -> None:
    download, asks = proven("one")
    download.begin(Wanted(0, 4, b"newer", DIGEST), ELEMENTS, [PeerId("one")])
    assert {ask.name for ask in download.asks(0.0)} == {b"newer"}
    assert receive(download, PeerId("one"), asks[0].piece, answer_of(1, asks[0].piece), 0.0) == 0
    assert download.progress([0])[1] == 8 * ELEMENTS


def test_a_holder_that_is_gone_owes_nothing() -> None:
    download, asks = proven("gone", "here")
    owed = {ask.piece for ask in asks if ask.holder == "gone"}
    assert owed
    download.gone(PeerId("gone"))
    holders = Holders({"here": "honest"}, random.Random(1))
    for ask in [ask for ask in asks if ask.holder == "here"]:
        receive(download, ask.holder, ask.piece, answer_of(1, ask.piece), 0.0)
    holders.run(download)
    assert_whole(download)
    assert owed <= {ask.piece for ask in holders.asked}


def test_an_unasked_piece_is_ignored() -> None:
    download = begun([])
    receive(download, PeerId("stranger"), 0, answer_of(1, 0), 0.0)
    download.offer(0, [PeerId("one")])
    receive(download, PeerId("stranger"), None, answer_of(1, None), 0.0)
    receive(download, PeerId("one"), 0, answer_of(1, 0), 0.0)
    assert download.progress([0])[0] == 0
    assert not download.is_over(0)
    receive(download, PeerId("one"), None, b"unasked", 0.0)
    assert download.is_over(0), "a false answer"
