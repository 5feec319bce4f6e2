"""A state from several holders at once, of whom any may lie, stall or know nothing (design §8)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.merkle import leaf_count
from dht.identity import PeerId
from peer.download import ASKERS_MAX, HOLDERS_ASKED_MAX, PIECES_IN_FLIGHT, STALL_SECONDS, TURN_SECONDS, Ask, Download
from peer.outer_optimizer import STATE_PIECE_BYTES, OuterState, state_bytes, state_digest, state_tree

ELEMENTS = 3 * STATE_PIECE_BYTES // 4 + 17  # four pieces per half, the last one short
PER_HALF = leaf_count(4 * ELEMENTS, STATE_PIECE_BYTES)
Manner = Literal["honest", "slow", "silent", "liar", "half", "ignorant", "false leaves", "dies"]


def state_of(seed: int) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    return OuterState(torch.randn(ELEMENTS, generator=generator), torch.randn(ELEMENTS, generator=generator))


STATE, OTHER = state_of(1), state_of(2)
DIGEST = state_digest(STATE.anchor, STATE.momentum)


@cache
def answer_of(seed: int, piece: int | None) -> bytes:
    state = {1: STATE, 2: OTHER}[seed]
    if piece is None:
        return b"".join(state_tree(state.anchor).leaves + state_tree(state.momentum).leaves)
    half, index = divmod(piece, PER_HALF)
    return bytes(state_bytes((state.anchor, state.momentum)[half])[index * STATE_PIECE_BYTES :][:STATE_PIECE_BYTES])


@dataclass
class Holders:
    """Answers in random order, each holder after its manner; virtual time."""

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

    def run(self, download: Download) -> None:
        pending: list[tuple[Ask, bytes]] = []
        while not (download.done or download.hopeless):
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
                download.receive(chosen[0].holder, chosen[0].piece, chosen[1], self.now)
            elif not (download.done or download.hopeless):
                self.now = max(self.now, min(download.next_deadline(), self.now + 10 * STALL_SECONDS))


def fetch(*manners: Manner, seed: int = 0) -> tuple[Download, Holders]:
    holders = Holders({f"peer {n}": manner for n, manner in enumerate(manners)}, random.Random(seed))
    download = Download(DIGEST, ELEMENTS)
    download.offer([PeerId(name) for name in holders.manners])
    holders.run(download)
    return download, holders


def assert_whole(download: Download) -> None:
    got = download.state()
    assert torch.equal(got.anchor, STATE.anchor)
    assert torch.equal(got.momentum, STATE.momentum)
    assert download.bytes_done == download.bytes_total == 8 * ELEMENTS


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
    assert download.hopeless
    assert download.bytes_done == 0


def test_no_piece_is_asked_for_twice_without_need() -> None:
    download, holders = fetch("honest", "honest", "honest")
    assert_whole(download)
    pieces = [ask.piece for ask in holders.asked if ask.piece is not None]
    assert len(set(pieces)) == 2 * PER_HALF
    assert len(pieces) <= ASKERS_MAX * 2 * PER_HALF


def test_a_slow_holder_does_not_hold_up_the_end() -> None:
    download, holders = fetch("slow", "honest")
    assert_whole(download)
    assert holders.now < STALL_SECONDS


def test_holders_that_are_slow_on_purpose_keep_no_place_for_good() -> None:
    """One answer just before it would be left, and a holder was asked again, while others waited in reserve."""
    download, now = Download(DIGEST, ELEMENTS), 0.0
    slow = [PeerId(f"slow {number}") for number in range(HOLDERS_ASKED_MAX)]
    owed: dict[PeerId, list[Ask]] = {peer: [] for peer in slow}
    given = 0
    download.offer([*slow, PeerId("honest")])
    while not download.done:
        for ask in download.asks(now):
            if ask.holder not in owed:
                given += 1
                download.receive(ask.holder, ask.piece, answer_of(1, ask.piece), now)
            else:
                owed[ask.holder].append(ask)
        now += STALL_SECONDS - 0.1
        for ask in [asks.pop(0) for asks in owed.values() if asks]:
            download.receive(ask.holder, ask.piece, answer_of(1, ask.piece), now)
        assert now < 2 * TURN_SECONDS
    assert_whole(download)
    assert given


def test_only_some_holders_are_asked_at_once_each_for_few_pieces() -> None:
    download = Download(DIGEST, 100 * STATE_PIECE_BYTES)
    download.offer([PeerId(f"peer {number}") for number in range(9)])
    asks = download.asks(0.0)
    assert len(asks) == HOLDERS_ASKED_MAX
    assert {ask.piece for ask in asks} == {None}
    assert download.asks(STALL_SECONDS - 0.1) == []
    assert len({ask.holder for ask in download.asks(STALL_SECONDS)}) == HOLDERS_ASKED_MAX
    download = Download(DIGEST, ELEMENTS)
    download.offer([PeerId("one")])
    download.asks(0.0)
    download.receive(PeerId("one"), None, answer_of(1, None), 0.0)
    assert len(download.asks(0.0)) == PIECES_IN_FLIGHT == 2 * PER_HALF


def test_what_nobody_asked_for_is_ignored() -> None:
    download = Download(DIGEST, ELEMENTS)
    download.receive(PeerId("stranger"), 0, answer_of(1, 0), 0.0)
    download.offer([PeerId("one")])
    download.receive(PeerId("one"), None, b"unasked", 0.0)
    assert download.bytes_done == 0
    assert not download.hopeless
