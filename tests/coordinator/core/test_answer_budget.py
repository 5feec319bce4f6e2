"""The limit on the bytes of answers to one peer, whatever it asks."""

from __future__ import annotations

import pytest

from coordinator.chain.certificate import PartitionOutcome
from coordinator.chain.lineage import CHAIN_PAGE_MAX
from coordinator.core.actions import Send
from coordinator.core.answer_budget import ASKERS_KEPT, BYTES_PER_SECOND, FRAGMENT_BYTES_AT_ONCE, AnswerBudget
from coordinator.core.events import Received
from coordinator.engine.engine import Engine
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import AskChainNote, Message
from dht.allowance import StrangersShare
from dht.identity import PeerId
from dht.statement import Context, Statement
from tests.coordinator.builders import NOW, Club, digest, forged

CLUB = Club.of(6, founders=4)
EVERYONE = (0, 1, 2, 3)
VERSIONS = CHAIN_PAGE_MAX + 2
CHAIN = CLUB.grow(CLUB.chain(), *[EVERYONE] * VERSIONS)
OLD_JOIN = CLUB.join(1, CLUB.grow(CLUB.chain(), EVERYONE))
ASK = AskChainNote(fragment=0, version=1, known=(CHAIN.digest_at(1) or b"",))
FRIEND, STRANGER = CLUB.ids[1], CLUB.ids[5]


def engine_with(answering: AnswerBudget | None = None) -> Engine:
    core = CLUB.core(0)
    core.answering = answering or core.answering
    return Engine(core, [CHAIN.truncated(VERSIONS), CLUB.chain(1)], [VERSIONS, 0], NOW)


def given(engine: Engine, asker: PeerId, message: Message, now: float = NOW) -> int:
    """Return how many bytes this peer gets in answer."""
    actions = engine.handle(Received(asker, message), now)
    return sum(len(one.message.to_wire()) for one in actions if isinstance(one, Send) and one.to == asker)


def test_an_asker_gets_so_much_at_once_and_then_so_much_a_second() -> None:
    answering, asker = AnswerBudget(100.0, 1000), PeerId("asker")
    assert answering.admits(asker, NOW)
    answering.gave(asker, 1500, NOW)
    assert not answering.admits(asker, NOW + 4.9)
    assert answering.admits(PeerId("another"), NOW)
    assert answering.admits(asker, NOW + 5.1)


def test_the_askers_remembered_are_bounded() -> None:
    answering = AnswerBudget()
    for number in range(ASKERS_KEPT + 10):
        answering.gave(PeerId(str(number)), 1, NOW)
    assert len(answering._allowances) == ASKERS_KEPT


@pytest.mark.parametrize("question", [ASK, OLD_JOIN], ids=["chain", "old version"])
def test_an_endless_asker_gets_its_common_share_and_keeps_no_other_waiting(question: Message) -> None:
    """It asks 50 questions a second for two minutes, after it has used up its allowance at once."""
    engine, seconds = engine_with(), 120
    page = given(engine, FRIEND, question)
    assert page > 1000
    engine.core.answering.gave(STRANGER, 2 * FRAGMENT_BYTES_AT_ONCE, NOW)
    taken = sum(given(engine, STRANGER, question, NOW + beat / 50) for beat in range(seconds * 50))
    assert 0.5 * BYTES_PER_SECOND * seconds < taken <= BYTES_PER_SECOND * seconds + 2 * page
    assert given(engine, FRIEND, question, NOW + seconds) == page
    assert given(engine, STRANGER, question, NOW + seconds + 2 * page / BYTES_PER_SECOND) == page


def test_questions_of_all_kinds_count_together() -> None:
    engine = engine_with(AnswerBudget(1.0, 1000))
    assert given(engine, STRANGER, ASK) > 1000
    assert given(engine, STRANGER, OLD_JOIN) == 0
    engine = engine_with(AnswerBudget(1.0, 1000))
    assert given(engine, STRANGER, OLD_JOIN) > 1000
    assert given(engine, STRANGER, ASK) == 0


@pytest.mark.parametrize("kind", ["join", "vote"])
def test_an_old_statement_that_its_sender_has_not_signed_is_answered_with_nothing(kind: str) -> None:
    context = Context(run_id=CLUB.manifest.run_id, kind=kind, fragment=0, version=1, group=b"")
    for statement in (Statement(context=context, sender=STRANGER, body=b"", signature=b""), forged(OLD_JOIN)):
        assert given(engine_with(), STRANGER, statement) == 0


def test_the_largest_groups_can_show_each_other_a_page_of_every_fragment_twice_at_once() -> None:
    club, members = Club.of(PEERS_PER_GROUP_MAX, founders=PEERS_PER_GROUP_MAX), range(PEERS_PER_GROUP_MAX)
    chain = club.chain()
    parts = tuple(PartitionOutcome(reducer=one, root=digest(one), included=tuple(members)) for one in club.ids)
    chain.append(club.certify(chain, members, partitions=parts))
    page = CHAIN_PAGE_MAX * len(chain.certificates[-1].to_wire())
    assert 2 * page < FRAGMENT_BYTES_AT_ONCE < 3 * page
    core = club.core(0)
    for _ in range(2 * core.pace.fragments):
        assert core.answering.admits(STRANGER, NOW)
        core.answering.gave(STRANGER, page, NOW)


def test_askers_together_have_no_more_than_the_share_of_strangers() -> None:
    answering = AnswerBudget()
    answering.strangers = StrangersShare(per_second=0.0001, at_once=100.0)
    answering.strangers.is_member = lambda peer: peer == "member"
    for number in range(3):
        answering.gave(PeerId(str(number)), 50, NOW)
    assert not answering.admits(PeerId("another"), NOW)
    assert answering.admits(PeerId("member"), NOW)
    answering.strangers.closed = True
    assert not answering.admits(PeerId("member"), NOW)
