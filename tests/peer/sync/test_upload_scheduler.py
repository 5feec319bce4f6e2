"""The upload scheduler: donors give at a bounded rate and to everybody in turn, whatever askers do (design §8)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dht.identity import PeerId
from dht.statement import digest_of
from peer.net.frames import StateAsk
from peer.storage.pins import ASKERS_MAX
from peer.sync.upload_scheduler import ASKS_PER_ASKER_MAX, BURST_BYTES, UploadScheduler

DIGEST = digest_of(b"certificate")
PIECE_BYTES = 256 << 10


def ask(piece: int = 0, fragment: int = 0, certificate: bytes = DIGEST) -> StateAsk:
    return StateAsk(fragment=fragment, certificate=certificate, piece=piece)


def give_all(donations: UploadScheduler, now: float, payload_bytes: int = PIECE_BYTES) -> list[str]:
    given_to = []
    while (chosen := donations.next(now)) is not None:
        given_to.append(str(chosen[0]))
        donations.gave(payload_bytes)
    return given_to


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, PIECE_BYTES)), min_size=1, max_size=60))
def test_never_more_than_the_rate_and_one_burst(events: list[tuple[float, int]]) -> None:
    donations, now, given_bytes, rate = UploadScheduler(1e6), 0.0, 0, 1e6
    for pause_seconds, payload_bytes in events:
        now += pause_seconds
        donations.ask(PeerId("a"), ask())
        given_bytes += payload_bytes * len(give_all(donations, now, payload_bytes))
        assert given_bytes <= BURST_BYTES + rate * now + PIECE_BYTES


def test_lines_take_turns_and_each_keeps_its_order() -> None:
    donations = UploadScheduler()
    for piece in range(6):
        donations.ask(PeerId("greedy"), ask(piece))
    donations.ask(PeerId("modest"), ask(9))
    chosen = [donations.next(0.0) for _ in range(7)]
    assert [str(one[0]) for one in chosen if one] == ["greedy", "modest"] + ["greedy"] * 5
    assert [one[1].piece for one in chosen if one and one[0] == "greedy"] == list(range(6))


def test_lines_are_bounded() -> None:
    donations = UploadScheduler(1e12)
    for number in range(ASKERS_MAX + 5):
        for piece in range(ASKS_PER_ASKER_MAX + 3):
            donations.ask(PeerId(f"peer {number}"), ask(piece))
    counts = Counter(give_all(donations, 0.0, 0))
    assert len(counts) == ASKERS_MAX
    assert set(counts.values()) == {ASKS_PER_ASKER_MAX}


def test_a_waiting_asker_is_told_how_long() -> None:
    donations = UploadScheduler(1e6)
    assert donations.wait_seconds() is None
    for piece in range(2):
        donations.ask(PeerId("a"), ask(piece))
    assert donations.next(0.0) is not None
    donations.gave(BURST_BYTES + 500_000)
    assert donations.next(0.0) is None
    wait = donations.wait_seconds()
    assert wait is not None
    assert abs(wait - 0.5) < 1e-9
    assert donations.next(wait + 0.001) is not None


def test_an_asker_that_is_gone_takes_no_turn_of_another() -> None:
    donations = UploadScheduler()
    for piece in range(ASKS_PER_ASKER_MAX):
        donations.ask(PeerId("gone"), ask(piece))
    donations.ask(PeerId("here"), ask(9))
    donations.forget(PeerId("gone"))
    donations.forget(PeerId("never asked"))
    assert give_all(donations, 0.0) == ["here"]
    assert donations.wait_seconds() is None


def test_a_piece_asked_for_twice_is_given_once() -> None:
    donations = UploadScheduler()
    for piece in (1, 2, 1):
        donations.ask(PeerId("impatient"), ask(piece))
    donations.ask(PeerId("another"), ask(1))
    assert Counter(give_all(donations, 0.0)) == {"impatient": 2, "another": 1}


def test_an_asker_for_a_newer_state_gets_no_more_of_the_older_one() -> None:
    donations = UploadScheduler()
    for piece in range(3):
        donations.ask(PeerId("a"), ask(piece))
    donations.ask(PeerId("a"), ask(0, fragment=1))
    donations.ask(PeerId("b"), ask(7))
    donations.ask(PeerId("a"), ask(5, certificate=digest_of(b"newer")))
    left = [donations.next(0.0) for _ in range(4)]
    assert [(peer, one.fragment, one.piece) for peer, one in filter(None, left)] == [
        ("a", 1, 0),
        ("b", 0, 7),
        ("a", 0, 5),
    ]
