"""The status that a peer gives to anybody: it is bounded and rate-limited, and nonsense only raises PeerError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import PHASES, SAMPLE_CHARACTERS_MAX, PhaseSpan, RoundView
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import PeerError
from dht.identity import Identity, PeerId
from dht.statement import digest_of
from peer.net.frames import STATUS_BYTES_MAX, ManifestAnswer, ManifestAsk, StatusAnswer, StatusAsk
from peer.rounds.public_status import (
    ANSWERS_PER_SECOND_MAX,
    ASKERS_KEPT,
    EVALUATIONS_TOLD_MAX,
    ROUNDS_TOLD_MAX,
    PublicStatus,
    StatusResponder,
    decode_status,
    encode_status,
    public_status,
    thinned,
)
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors

IDS = [Identity(digest_of(b"member", bytes([number]))).peer_id for number in range(32)]


def round_of(number: int, members: int) -> RoundView:
    """Return a round whose view is as long as one can be."""
    return RoundView(
        fragment=number % 4,
        version=number + 1,
        attempt=1,
        leader=IDS[0],
        reporter=IDS[1],
        members=tuple(IDS[:members]),
        late=tuple(IDS[:members]),
        phases=tuple(
            PhaseSpan(name=name, start_unix_seconds=1.1e9 + number, end_unix_seconds=1.2e9 + number) for name in PHASES
        ),
        outcome="void",
        reason="x" * 240,
    )


def snapshot(**changes: Any) -> PeerSnapshot:
    values: dict[str, Any] = {
        "peer_id": IDS[0],
        "run_id": "ab",
        "name": "me",
        "role": "host",
        "state": "hosting",
        "note": "hosting",
        "pid": 77,
        "wall_seconds": 9.0,
    }
    return PeerSnapshot(**{**values, **changes})


def evaluations(count: int) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(versions=number, tokens_certified=number, wall_seconds=0.5 * number, loss=3.0)
        for number in range(count)
    )


def test_a_public_status_is_read_back() -> None:
    rounds = [round_of(number, 3) for number in range(4)]
    status = public_status(snapshot(evaluations=evaluations(10)), rounds)
    assert decode_status(encode_status(status)) == status
    assert status.rounds == tuple(rounds)
    told = json.loads(encode_status(status).status)
    assert told.keys() == {"role", "note", "wall_seconds", "evaluations", "rounds"}  # no pid, no settings


@pytest.mark.parametrize("members", [1, 8, 32])
@pytest.mark.parametrize("count", [0, 10_000])
def test_a_status_fits_with_its_newest_rounds(members: int, count: int) -> None:
    rounds = [round_of(number, members) for number in range(200)]
    answer = encode_status(public_status(snapshot(note="ä" * 1000, evaluations=evaluations(count)), rounds))
    assert len(answer.status) <= STATUS_BYTES_MAX
    status = decode_status(answer)
    assert 4 <= len(status.rounds) <= ROUNDS_TOLD_MAX
    assert status.rounds == tuple(rounds[-len(status.rounds) :])
    assert len(status.evaluations) == min(count, EVALUATIONS_TOLD_MAX)


def test_a_host_tells_what_the_model_writes_and_where_it_goes() -> None:
    status = decode_status(encode_status(public_status(snapshot(sample="ä" * 1000, exports="the folder models"), [])))
    assert (status.sample, status.exports) == ("ä" * SAMPLE_CHARACTERS_MAX, "the folder models")


def test_a_loss_that_is_no_number_is_left_out() -> None:
    bad = Evaluation(versions=2, tokens_certified=0, wall_seconds=1.0, loss=float("nan"))
    assert public_status(snapshot(evaluations=(*evaluations(2), bad)), []).evaluations == evaluations(2)


@given(st.lists(st.integers(), max_size=300), st.integers(2, 50))
def test_thinned_keeps_order_and_both_ends(items: list[int], count_max: int) -> None:
    kept = thinned(list(enumerate(items)), count_max)
    assert len(kept) == min(len(items), count_max)
    assert list(kept) == sorted(set(kept))
    if items:
        assert (kept[0][0], kept[-1][0]) == (0, len(items) - 1)


@given(st.binary(max_size=400) | st.text(max_size=100).map(lambda text: json.dumps({"role": text}).encode()))
def test_nonsense_is_a_fault_of_the_peer(data: bytes) -> None:
    try:
        status = decode_status(StatusAnswer(status=data))
    except PeerError:
        return
    assert isinstance(status, PublicStatus)


@pytest.mark.parametrize(
    "text", [b"[" * 60_000, b'{"role":"host","wall_seconds":NaN}', b'{"role":"host","wall_seconds":-1}', b"{}", b""]
)
def test_known_nonsense_is_refused(text: bytes) -> None:
    with pytest.raises(PeerError):
        decode_status(StatusAnswer(status=text))


class Desk(StatusResponder):
    """A status responder that counts how often the status was made."""

    def __init__(self) -> None:
        self.made = 0
        super().__init__(self._make)

    def _make(self) -> PublicStatus:
        self.made += 1
        return public_status(snapshot(wall_seconds=float(self.made)), [])


def test_one_asker_is_answered_once_a_second() -> None:
    desk = Desk()
    answered = [at for at in range(100) if desk.answer(PeerId("a"), at / 10) is not None]
    assert answered == list(range(0, 100, 10))
    assert desk.made == 10


def test_a_crowd_is_answered_from_one_status_and_not_without_end() -> None:
    desk = Desk()
    answers = [desk.answer(PeerId(f"stranger {number}"), 5.0) for number in range(10 * ASKERS_KEPT)]
    given = [answer for answer in answers if answer is not None]
    assert len(given) == ANSWERS_PER_SECOND_MAX
    assert desk.made == 1
    assert desk.answer(PeerId("later"), 6.0) is not None


def test_a_peer_answers_who_asks_and_ignores_answers() -> None:
    sent: list[tuple[PeerId, object]] = []
    requests = PeerRequests(Anchors((), ()), b"manifest", list, lambda to, message, _: sent.append((to, message)))
    asker = PeerId("asker")
    requests.handle(asker, StatusAsk(), b"", 0.0)
    assert sent == []  # not ready to answer yet
    requests.tell_status(lambda: public_status(snapshot(), []))
    for message in (StatusAsk(), StatusAsk(), ManifestAsk(), StatusAnswer(status=b"{}"), ManifestAnswer(manifest=b"")):
        requests.handle(asker, message, b"", 0.0)
    assert [type(message) for _, message in sent] == [StatusAnswer, ManifestAnswer]
    assert {to for to, _ in sent} == {asker}
