"""A peer's answers to a newcomer's requests, and their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.chain.waypoint import heads_digest
from coordinator.core.admission_control import AdmissionControl
from coordinator.core.answer_budget import BYTES_PER_SECOND, FRAGMENT_BYTES_AT_ONCE, AnswerBudget
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.trust.orders import Orders
from dht.admission import AdmissionAuthority, Grant, Role, Ticket, pass_of, sign_grant
from dht.identity import Identity, KeyVerifier, PeerId
from peer.net.frames import (
    HeadsAnswer,
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    StateAsk,
    StatePiece,
    TailAnswer,
    TailAsk,
    Transfer,
)
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors
from tests.coordinator.builders import Club

CLUB = Club.of(4, founders=4)
CHAIN = CLUB.grow(CLUB.chain(), *[range(4)] * 6)
HEAD = CHAIN.digest_at(4) or b""
QUESTIONS: tuple[tuple[Transfer, type], ...] = (
    (ManifestAsk(), ManifestAnswer),
    (HeadsAsk(version=4, digest=heads_digest(CHAIN.rules.run_id, 4, [HEAD])), HeadsAnswer),
    (TailAsk(fragment=0, version=4, head=HEAD), TailAnswer),
)
ASKER, ANOTHER = PeerId("asker"), PeerId("another")
ORGANISER = Identity(b"o" * 32)


class Donor:
    """The answering peer, and what it has posted."""

    def __init__(self, answering: AnswerBudget | None = None) -> None:
        self.posted: list[tuple[PeerId, Transfer]] = []
        manifest = CLUB.manifest.to_wire()
        self.transfers = PeerRequests(Anchors((), ()), manifest, lambda: [CHAIN], self._post, answering)
        self.ask: Callable[[PeerId, Transfer, float], None] = lambda asker, question, now: self.transfers.handle(
            asker, question, b"", now
        )

    def _post(self, to: PeerId, message: Transfer, _: bytes | memoryview) -> None:
        self.posted.append((to, message))

    @property
    def given(self) -> int:
        return sum(len(message.to_wire()) for to, message in self.posted if to == ASKER)


def test_a_newcomer_is_told_what_it_asks() -> None:
    donor = Donor()
    for question, _ in QUESTIONS:
        donor.ask(ASKER, question, 0.0)
    assert [type(message) for _, message in donor.posted] == [answer for _, answer in QUESTIONS]


@pytest.mark.parametrize("question", [one for one, _ in QUESTIONS], ids=["manifest", "heads", "tail"])
def test_an_endless_asker_gets_so_much_a_second_and_keeps_no_other_waiting(question: Transfer) -> None:
    answering, seconds = AnswerBudget(), 10
    donor = Donor(answering)
    answering.gave(ASKER, FRAGMENT_BYTES_AT_ONCE, 0.0)
    for beat in range(1000 * seconds):
        donor.ask(ASKER, question, beat / 1000)
    answers = len(donor.posted)
    size = donor.given / answers
    assert donor.given <= min(BYTES_PER_SECOND, 1000 * size) * seconds + 2 * size
    donor.ask(ANOTHER, question, float(seconds))
    assert donor.posted[-1][0] == ANOTHER


@pytest.mark.parametrize("flag", [False, True])
def test_an_observer_gets_a_state_where_the_run_says_so(flag: bool) -> None:
    donor, key = Donor(), Identity(b"k" * 32)
    admission = AdmissionControl(
        AdmissionSpec(observers_get_states=flag),
        AdmissionAuthority(CLUB.rules.run_id, ORGANISER.peer_id, KeyVerifier()),
        frozenset({ORGANISER.peer_id}),
        Orders(),
    )
    asked: list[PeerId] = []
    donor.transfers.may_have_states = admission.may_have_states
    donor.transfers.server.serve = lambda sender, _: asked.append(sender)  # type: ignore[method-assign]
    comers: dict[Role, PeerId] = {"observer": PeerId("looks"), "trainer": PeerId("trains")}
    for role, peer in comers.items():
        word = sign_grant(ORGANISER, CLUB.rules.run_id, Grant(key=key.peer_id, role=role))
        shown = pass_of(Ticket(word=word, seed=b"k" * 32), CLUB.rules.run_id, peer).to_wire()
        assert admission.refusal(peer, shown, 0.0) is None
    stranger = PeerId("nobody")
    for peer in (*comers.values(), stranger, ORGANISER.peer_id):
        donor.ask(peer, StateAsk(fragment=0, certificate=HEAD, piece=0), 0.0)
    let_in = list(comers.values()) if flag else [comers["trainer"]]
    assert asked[: len(let_in)] == let_in
    assert asked[-1] == ORGANISER.peer_id
    if not flag:
        refused = {peer for peer, message in donor.posted if isinstance(message, StatePiece)}
        assert refused == {comers["observer"], stranger}


def test_answers_of_the_core_count() -> None:
    answering = AnswerBudget()
    donor = Donor(answering)
    answering.gave(ASKER, 2 * FRAGMENT_BYTES_AT_ONCE, 0.0)
    for question, _ in QUESTIONS:
        donor.ask(ASKER, question, 0.0)
    assert donor.posted == []
    donor.ask(ASKER, ManifestAsk(), 1.0 + FRAGMENT_BYTES_AT_ONCE / BYTES_PER_SECOND)
    assert len(donor.posted) == 1
