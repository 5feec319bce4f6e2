"""Evidence at a peer: how it gets it, acts on it, and treats peers that send false evidence."""

from __future__ import annotations

import pytest

from coordinator.chain.certificate import CONVICTIONS_MAX, Conviction, Vote, trust_digest
from coordinator.core.actions import Action, KeepEvidence, Send, Tell
from coordinator.core.events import PresenceSeen, Progress, Received
from coordinator.engine.enforcement import ASK_SECONDS, RETELL_LIFETIMES, SPREAD_MAX, STRANGERS_TOLD
from coordinator.engine.engine import Engine
from coordinator.group.group import Group
from coordinator.trust.bans import BANS_MAX, Ban, Bans
from coordinator.trust.equivocation import (
    BYTES_KEPT,
    ELSEWHERE_PART,
    SENDERS_MIN,
    STATEMENT_QUOTAS,
    STATEMENTS_KEPT,
    Equivocations,
)
from coordinator.trust.evidence import Evidence, Guilt, contradiction, order_evidence, verify
from coordinator.trust.orders import ORDERS_EACH_MAX, Order, sign_order
from coordinator.trust.statement_slots import _SLOTS
from coordinator.wire.messages import (
    AskEvidenceNote,
    AskHeardNote,
    ConvictionsNote,
    EvidenceNote,
    HeardNote,
    Message,
    Roster,
)
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.builders import Club, boot, digest, forged, presence

CLUB = Club.of(6, founders=5)
CHAIN = CLUB.chain()
GROUP = CLUB.group(CHAIN, range(5))
LEADER, STRANGER = CLUB.number(CHAIN.leaders()[0]), 5
ME, CULPRIT, OTHER, THIRD = (number for number in range(5) if number != LEADER)
NOW = 1000.0
ORGANISER = CLUB.signers[CLUB.number(CLUB.rules.organiser)]


def vote(number: int, state: object = "one") -> Statement:
    return CLUB.say(number, "vote", Vote(outcome=digest("o"), state=digest(state)), **CLUB.in_group(GROUP))


PROOF = contradiction(vote(CULPRIT), vote(CULPRIT, "another"))


def engine(number: int = ME) -> Engine:
    """Make the engine of a founder at version 0 that sees all others."""
    core = CLUB.core(number)
    made = Engine(core, [CLUB.chain(fragment) for fragment in range(2)], [0, 0], NOW)
    for other, peer in enumerate(CLUB.ids):
        if other != number:
            made.handle(PresenceSeen(peer, presence(other)), NOW)
    return made


def receive(made: Engine, sender: int, message: Message, now: float = NOW) -> list[Action]:
    return made.handle(Received(CLUB.ids[sender], message), now)


def sent(actions: list[Action], kind: type) -> list[Send]:
    return [action for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def kept(actions: list[Action]) -> list[PeerId]:
    return [action.ban.guilt.peer for action in actions if isinstance(action, KeepEvidence)]


def convicted() -> Engine:
    made = engine()
    receive(made, OTHER, EvidenceNote(evidence=PROOF.to_wire()))
    return made


# -- noticing


def test_two_votes_that_differ_ban_their_voter_whoever_brought_them() -> None:
    made = engine()
    assert kept(receive(made, CULPRIT, vote(CULPRIT))) == []
    actions = receive(made, OTHER, vote(CULPRIT, "another"))
    assert kept(actions) == [CLUB.ids[CULPRIT]]
    (told,) = [one for one in actions if isinstance(one, Tell) and one.event == "peer_banned"]
    assert told.details["peer"] == CLUB.ids[CULPRIT]
    assert not made.core.presence.is_live(CLUB.ids[CULPRIT], NOW)
    told_to = {action.to for action in sent(actions, ConvictionsNote)}
    assert told_to == set(CLUB.ids) - {CLUB.ids[ME], CLUB.ids[CULPRIT]}


def test_a_forged_statement_neither_convicts_nor_hides_the_true_one() -> None:
    made = engine()
    receive(made, OTHER, forged(vote(CULPRIT)))
    assert kept(receive(made, CULPRIT, vote(CULPRIT, "another"))) == []
    assert kept(receive(made, CULPRIT, vote(CULPRIT))) == [CLUB.ids[CULPRIT]]


def test_statements_that_a_leader_lists_are_compared_with_those_heard() -> None:
    made = engine()
    receive(made, CULPRIT, CLUB.join(CULPRIT, CHAIN))
    joins = [CLUB.join(one, CHAIN, dialable=one != CULPRIT) for one in range(5) if one != ME]
    assert kept(receive(made, OTHER, CLUB.roster(CHAIN, joins))) == [CLUB.ids[CULPRIT]]


def test_a_restart_is_no_contradiction() -> None:
    made = engine()
    receive(made, CULPRIT, CLUB.join(CULPRIT, CHAIN))
    assert kept(receive(made, CULPRIT, CLUB.join(CULPRIT, CHAIN, boot=boot(CULPRIT, 1), dialable=False))) == []


def test_statements_that_two_peers_heard_are_compared() -> None:
    """Each got a different vote; neither knows of the other one until they compare."""
    first, second = engine(ME), engine(OTHER)
    receive(first, CULPRIT, vote(CULPRIT))
    receive(second, CULPRIT, vote(CULPRIT, "another"))
    summary = first.enforcement.equivocations[0].summary(0, 0)
    assert summary is not None
    (question,) = sent(receive(second, ME, summary), AskHeardNote)
    (answer,) = sent(receive(first, OTHER, question.message), Statement)
    assert kept(receive(second, ME, answer.message)) == [CLUB.ids[CULPRIT]]
    assert sent(receive(first, OTHER, question.message), Statement) == []  # not again at once


def test_strangers_compare_nothing_with_us() -> None:
    made = engine()
    receive(made, CULPRIT, vote(CULPRIT))
    mark = next(iter(made.enforcement.equivocations[0].summary(0, 0).heard))  # type: ignore[union-attr]
    other = HeardNote(fragment=0, version=0, heard=(mark[:16] + bytes(16),))
    assert receive(made, STRANGER, other) == []
    assert receive(made, STRANGER, AskHeardNote(fragment=0, version=0, places=(mark[:16],))) == []
    assert receive(made, OTHER, HeardNote(fragment=9, version=0, heard=())) == []


def test_memory_of_statements_is_bounded_and_kept_for_peers_that_we_know() -> None:
    count_max, _ = STATEMENT_QUOTAS["join"]
    strangers = range(5, 6 + STATEMENTS_KEPT // 2 // count_max)
    club = Club.of(strangers.stop, founders=5)
    equivocations = Equivocations(club.verifier)
    for stranger in strangers:
        for attempt in range(count_max + 1):
            equivocations.see(club.join(stranger, CHAIN, attempt=attempt), CLUB.peers(range(5)))
    assert len(equivocations.heard[0]) == STATEMENTS_KEPT // 2
    equivocations.see(vote(CULPRIT), CLUB.peers(range(5)))
    assert len(equivocations.see(vote(CULPRIT, "another"), CLUB.peers(range(5)))) == 1
    equivocations.forget(5)
    assert equivocations.heard == equivocations.known == equivocations.kept_bytes == equivocations.kept_counts == {}


@pytest.mark.parametrize("size", [0, STATEMENT_QUOTAS["bundle"][1] // 3])
@pytest.mark.parametrize("is_ours", [True, False])
def test_one_key_does_not_fill_what_is_remembered(size: int, is_ours: bool) -> None:
    """Not even a known one does: else its accomplice could contradict itself unnoticed."""
    equivocations, active = Equivocations(CLUB.verifier), CLUB.peers(range(5))
    groups = [digest(number) for number in range(2 * SENDERS_MIN)]
    for group in groups:
        place = {**CLUB.in_group(GROUP), "group": group}
        filler = CLUB.say(OTHER, "bundle", EvidenceNote(evidence=bytes(size)), **place)
        equivocations.see(filler, active, lambda _: is_ours)
    few, fitting = (
        (STATEMENT_QUOTAS["bundle"][0], 2) if is_ours else (STATEMENT_QUOTAS["bundle"][0] // ELSEWHERE_PART, 0)
    )
    assert len(equivocations.heard.get(0, {})) == (fitting if size else few)
    equivocations.see(vote(CULPRIT), active)
    assert len(equivocations.see(vote(CULPRIT, "another"), active)) == 1


def test_the_rooms_of_one_key_come_to_its_share() -> None:
    assert STATEMENT_QUOTAS.keys() == {"ballot", *_SLOTS} - {"vote", "abstain"}
    grouped = [quota for kind, quota in STATEMENT_QUOTAS.items() if kind not in ("join", "roster")]
    counts, sizes = ([quota[part] for quota in STATEMENT_QUOTAS.values()] for part in (0, 1))
    assert sum(counts) + sum(count // ELSEWHERE_PART for count, _ in grouped) <= STATEMENTS_KEPT // SENDERS_MIN
    assert sum(sizes) + sum(size // ELSEWHERE_PART for _, size in grouped) <= BYTES_KEPT // SENDERS_MIN


@pytest.mark.parametrize("filler", ["bytes", "joins", "votes elsewhere"])
@pytest.mark.parametrize("first", [True, False], ids=["before it lies", "between its lies"])
def test_a_peer_that_fills_its_own_share_is_convicted_all_the_same(filler: str, first: bool) -> None:
    made = engine()
    made.handle(Progress(1, 1.0), NOW)
    roster = roster_with_me(made, [CULPRIT, OTHER, LEADER])
    receive(made, LEADER, roster)
    entered = made.machines[0].attempt
    assert entered is not None
    said = [vote_in(entered.group, "one"), vote_in(entered.group, "another")]
    assert first or kept(receive(made, CULPRIT, said.pop(0))) == []
    for statement in fillers(filler):
        assert kept(receive(made, CULPRIT, statement)) == []
    banned = [peer for one in said for peer in kept(receive(made, OTHER, one))]
    assert banned == [CLUB.ids[CULPRIT]]


def vote_in(group: Group, state: str) -> Statement:
    return CLUB.say(CULPRIT, "vote", Vote(outcome=digest("o"), state=digest(state)), **CLUB.in_group(group))


def fillers(what: str) -> list[Statement]:
    """Make as many of the culprit's statements as one key once had room for."""
    numbers = range(STATEMENTS_KEPT // SENDERS_MIN)
    if what == "joins":
        return [CLUB.join(CULPRIT, CHAIN, attempt=one % 8, boot=boot(CULPRIT, one + 1)) for one in numbers]
    places = [{**CLUB.in_group(GROUP), "group": digest(("elsewhere", one))} for one in numbers]
    if what == "votes elsewhere":
        return [CLUB.say(CULPRIT, "vote", Vote(outcome=digest("o"), state=digest(1)), **place) for place in places]
    sizes = [BYTES_KEPT // SENDERS_MIN >> halvings for halvings in range(1, 15)]
    junk = [EvidenceNote(evidence=bytes(size)) for size in sizes]
    return [CLUB.say(CULPRIT, "bundle", body, **place) for body, place in zip(junk, places, strict=False)]


# -- spreading


def test_evidence_is_asked_for_given_and_verified() -> None:
    holder, newcomer = convicted(), engine(OTHER)
    (news,) = sent(holder.handle(PresenceSeen(CLUB.ids[OTHER], presence(OTHER, beat=2)), NOW), ConvictionsNote)
    (question,) = sent(receive(newcomer, ME, news.message), AskEvidenceNote)
    (answer,) = sent(receive(holder, OTHER, question.message), EvidenceNote)
    assert kept(receive(newcomer, ME, answer.message)) == [CLUB.ids[CULPRIT]]
    assert sent(receive(newcomer, ME, news.message), AskEvidenceNote) == []  # one piece of evidence per key is enough


def test_a_peer_is_told_once_in_each_life_and_again_after_a_while() -> None:
    made = convicted()

    def told(life: int, now: float) -> int:
        seen = presence(OTHER, beat=int(now), boot=boot(OTHER, life))
        return len(sent(made.handle(PresenceSeen(CLUB.ids[OTHER], seen), now), ConvictionsNote))

    assert [told(0, NOW), told(0, NOW + 1), told(1, NOW + 2), told(1, NOW + 3)] == [1, 0, 1, 0]
    assert told(1, NOW + 1000) == 1


def order_of(number: int) -> Ban:
    order = Order(subject=f"{number:046}".replace("0", "z"), revoked=True, serial=number + 1)
    said = sign_order(ORGANISER, CLUB.rules.run_id, order)
    return Ban(verify(order_evidence(said), CLUB.rules), order_evidence(said), 0.0)


def test_a_peer_with_more_to_tell_than_a_note_holds_tells_all_of_it_once() -> None:
    made, count = engine(), CONVICTIONS_MAX + 8
    for number in range(count):
        made.core.bans.obey(order_of(number))
    told: list[Conviction] = []
    for beat in range(1, 9):
        seen = presence(OTHER, beat=beat)
        for send in sent(made.handle(PresenceSeen(CLUB.ids[OTHER], seen), NOW + beat), ConvictionsNote):
            told += send.message.convictions  # type: ignore[union-attr]
    assert len(told) == len({one.peer for one in told}) == count
    newcomer = engine(OTHER)
    asked = sent(receive(newcomer, ME, ConvictionsNote(convictions=tuple(told[:CONVICTIONS_MAX]))), AskEvidenceNote)
    assert len(asked) == CONVICTIONS_MAX


def test_orders_take_no_room_of_faults_and_one_that_is_pushed_out_lets_its_peer_in_again() -> None:
    bans = Bans()
    orders = [order_of(number) for number in range(ORDERS_EACH_MAX)]
    for one in orders:
        assert bans.obey(one) == {one.guilt.peer}
    known = CLUB.ids[CULPRIT]
    assert bans.add(Ban(Guilt(known, "x"), PROOF, 0.0), {known})
    newer = order_of(ORDERS_EACH_MAX)
    assert bans.obey(newer) == {newer.guilt.peer, orders[0].guilt.peer}
    assert orders[0].guilt.peer not in bans
    assert orders[0].evidence not in [one.evidence for one in bans.everything()]
    assert bans.obey(orders[0]) is None
    assert len(bans.given) == len(bans.orders) == ORDERS_EACH_MAX


def test_of_many_strangers_a_few_are_told_and_of_members_all() -> None:
    made, now = convicted(), NOW + 1

    def told(peer: PeerId, now: float) -> bool:
        return bool(sent(made.handle(PresenceSeen(peer, presence(beat=int(now))), now), ConvictionsNote))

    strangers = [PeerId(f"{number:064x}") for number in range(3 * STRANGERS_TOLD)]
    assert STRANGERS_TOLD <= sum(told(peer, now) for peer in strangers) <= STRANGERS_TOLD + 1
    assert told(CLUB.ids[OTHER], now)
    assert told(strangers[-1], now + RETELL_LIFETIMES * made.core.pace.presence_lifetime_seconds)


def test_members_hear_of_a_conviction_before_strangers_do() -> None:
    made = engine()
    for number in range(2 * SPREAD_MAX):
        made.handle(PresenceSeen(PeerId(f"{number:064x}"), presence()), NOW)
    told = {send.to for send in sent(receive(made, OTHER, EvidenceNote(evidence=PROOF.to_wire())), ConvictionsNote)}
    assert len(told) == SPREAD_MAX
    assert {CLUB.ids[OTHER], CLUB.ids[THIRD]} <= told


def test_false_evidence_costs_its_sender_our_ear() -> None:
    made = engine()
    false = contradiction(vote(CULPRIT), forged(vote(CULPRIT, "another")))
    (told,) = [one for one in receive(made, OTHER, EvidenceNote(evidence=false.to_wire())) if isinstance(one, Tell)]
    assert (told.event, told.details["peer"]) == ("false_evidence", CLUB.ids[OTHER])
    assert receive(made, OTHER, EvidenceNote(evidence=PROOF.to_wire())) == []  # not even true evidence
    assert kept(receive(made, THIRD, EvidenceNote(evidence=PROOF.to_wire()))) == [CLUB.ids[CULPRIT]]


def test_evidence_that_we_cannot_judge_costs_nobody_anything() -> None:
    made = engine()
    unknown = Evidence(charge="sorcery", statements=(vote(CULPRIT),))
    assert receive(made, OTHER, EvidenceNote(evidence=unknown.to_wire())) == []
    assert kept(receive(made, OTHER, EvidenceNote(evidence=PROOF.to_wire()))) == [CLUB.ids[CULPRIT]]


def test_a_peer_does_not_ask_another_for_the_same_thing_all_the_time() -> None:
    made = engine()
    news = ConvictionsNote(convictions=(Conviction(peer=CLUB.ids[CULPRIT], evidence=PROOF.digest),))
    asked = [len(sent(receive(made, OTHER, news, NOW + after), AskEvidenceNote)) for after in (0, 0.5, ASK_SECONDS)]
    assert asked == [1, 0, 1]


def test_earlier_lives_evidence_is_verified_again() -> None:
    made = engine()
    false = contradiction(vote(THIRD), forged(vote(THIRD, "another")))
    made.enforcement.restore([(PROOF.to_wire(), 7.0), (false.to_wire(), 8.0), (b"torn", 9.0)])
    assert {peer: ban.unix_seconds for peer, ban in made.core.bans.held.items()} == {CLUB.ids[CULPRIT]: 7.0}


# -- effect


def test_a_banned_peer_gets_into_no_group() -> None:
    made = convicted()
    (told,) = [one for one in receive(made, CULPRIT, CLUB.join(CULPRIT, CHAIN)) if isinstance(one, Tell)]
    assert told.details["reason"] == "is banned"
    assert CLUB.ids[CULPRIT] not in made.machines[0].rounds.joining.announced


def roster_with_me(made: Engine, others: list[int], **changes: object) -> Statement:
    """Make a roster of the first attempt's leader for an engine that asks into it."""
    joins = [CLUB.join(ME, CHAIN, boot=made.core.boot), *(CLUB.join(one, CHAIN) for one in others)]
    body = Roster(attempt=0, revision=0, joins=tuple(joins), **changes)  # type: ignore[arg-type]
    return CLUB.say(LEADER, "roster", body, **CLUB.at(CHAIN))


def test_a_leader_that_lists_a_convicted_member_is_shown_the_evidence() -> None:
    made = convicted()
    made.handle(Progress(1, 1.0), NOW)
    actions = receive(made, LEADER, roster_with_me(made, [CULPRIT, OTHER, LEADER]))
    (shown,) = sent(actions, EvidenceNote)
    assert shown.to == CLUB.ids[LEADER]
    assert Evidence.parse(shown.message.evidence) == PROOF  # type: ignore[union-attr]
    assert made.machines[0].attempt is None


def test_a_roster_that_convicts_is_entered_by_whoever_holds_the_evidence() -> None:
    listed = (Conviction(peer=CLUB.ids[CULPRIT], evidence=PROOF.digest),)
    ignorant = engine()
    question = roster_with_me(ignorant, [OTHER, THIRD, LEADER], convictions=listed)
    (asked,) = sent(receive(ignorant, LEADER, question), AskEvidenceNote)
    assert (asked.to, ignorant.machines[0].attempt) == (CLUB.ids[LEADER], None)
    receive(ignorant, LEADER, EvidenceNote(evidence=PROOF.to_wire()))
    receive(ignorant, LEADER, question)
    entered = ignorant.machines[0].attempt
    assert entered is not None
    assert entered.group.convictions == listed


def test_a_certificate_convicts_for_as_long_as_the_key_is_in_a_roster_that_counts() -> None:
    chain = CLUB.grow(CLUB.chain(), range(5), range(5))
    listed = (Conviction(peer=CLUB.ids[CULPRIT], evidence=PROOF.digest),)
    rest = [ME, OTHER, THIRD, LEADER]
    bare = CLUB.certify(chain, rest, trust=trust_digest(listed))
    assert chain.refusal(bare) == "names another trust table"
    certificate = bare.model_copy(update={"convictions": listed})
    assert chain.refusal(certificate) is None
    chain.append(certificate)
    assert CLUB.ids[CULPRIT] in chain.convicted()
    for _ in range(5):
        assert CLUB.ids[CULPRIT] not in chain.active_set()
        chain.append(CLUB.certify(chain, rest))
    again = CLUB.grow(CLUB.chain(), range(5))
    again.append(CLUB.certify(again, rest, trust=trust_digest(listed)).model_copy(update={"convictions": listed}))
    assert again.refusal(CLUB.certify(again, range(5))) == "names a member that this chain has convicted"


def test_a_roster_convicts_no_member_and_nobody_twice() -> None:
    chain = CLUB.grow(CLUB.chain(), range(5))
    for listed in ([0], [5, 5]):
        convictions = tuple(Conviction(peer=CLUB.ids[one], evidence=PROOF.digest) for one in listed)
        made = CLUB.certify(chain, range(5), trust=trust_digest(convictions))
        refused = chain.refusal(made.model_copy(update={"convictions": convictions}))
        assert refused == "convicts a member of its own roster, or a key twice"


def test_bans_are_bounded_and_strangers_make_room() -> None:
    bans, evidence = Bans(), PROOF
    strangers = Club.of(BANS_MAX + 1, seed=3).ids
    assert [bans.add(Ban(Guilt(peer, "x"), evidence, 0.0), ()) for peer in strangers] == [True] * BANS_MAX + [False]
    known = CLUB.ids[CULPRIT]
    assert bans.add(Ban(Guilt(known, "x"), evidence, 0.0), {known})
    assert len(bans.held) == BANS_MAX
    assert strangers[0] not in bans
    assert bans.to_tell({known})[0].peer == known
    assert bans.kept_bytes == BANS_MAX * len(evidence.to_wire())
