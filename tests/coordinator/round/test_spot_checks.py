"""One member that inspects results: the peers it asks, when it passes them over, and when it relies on others."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from coordinator.cells.cell_group import CellGroup
from coordinator.chain.certificate import Vote
from coordinator.core.actions import Action, Apply, Inspect, Open, RecordVote, Send, Tell
from coordinator.core.events import Applied, Finding, Inspected, Opened
from coordinator.core.lateness import LEADING
from coordinator.core.timeline import CHECK_SHARE, OPEN_SHARE, SECOND_PROPOSE_SHARE
from coordinator.round.opening_server import OpeningServer
from coordinator.round.outcome import partitions_to_redo
from coordinator.round.refutations import inspection_of
from coordinator.wire.messages import Check, NeedNote, Proposal, Redo, Result
from coordinator.wire.openings import OpenedInput, OpeningNote, OpenNote, Refutation, leaves_per_voter, seed_of
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.coordinator.rigs import NONCES, PEERS, check, say
from tests.coordinator.round.test_attempt import Member, sent

OPEN_SECONDS = OPEN_SHARE * 8.0
SHOWN = OpenedInput(member=0, pieces=(b"piece",), siblings=())


def asked(actions: list[Action]) -> list[tuple[PeerId, OpenNote]]:
    sends = [action for action in actions if isinstance(action, Send)]
    return [(send.to, send.message) for send in sends if isinstance(send.message, OpenNote)]


def told(actions: list[Action]) -> list[str]:
    return [action.event for action in actions if isinstance(action, Tell)]


def refutation(member: Member, partition: int) -> Refutation:
    digest = member.results[partition].digest
    return Refutation(partition=partition, turn=0, result=digest, leaf=3, inputs=(SHOWN,), piece=b"leaf", siblings=())


def refuted(member: Member, partition: int, sender: PeerId) -> Statement:
    return say(sender, "refutation", member.chain, member.inputs.digest, refutation(member, partition))


def others(member: Member) -> list[int]:
    return [partition for partition in range(5) if partition != member.partition]


def ready(place: int = 2) -> tuple[Member, list[Action]]:
    member = Member(place)
    member.hear_bundle()
    return member, member.hear_results()


def answer(member: Member, inspect: Inspect, finding: Finding, now: float = 1.0) -> list[Action]:
    shown = None if finding is not Finding.REFUTED else refutation(member, inspect.partition)
    event = Inspected(
        member.group.key, inspect.accuser, inspect.partition, inspect.turn, inspect.result, finding, shown
    )
    return member.attempt.on_inspected(event, now)


def test_a_member_asks_every_other_reducer_with_a_seed_of_its_own() -> None:
    member, actions = ready()
    expected = {(member.group.reducer(p), p, seed_of(2 * NONCES[0], p, 0)) for p in others(member)}
    assert {(to, note.partition, note.seed) for to, note in asked(actions)} == expected
    assert not any(note.own for _, note in asked(actions))


def test_a_reducer_that_does_not_open_is_passed_over_and_then_doubted() -> None:
    member, actions = ready()
    silent = others(member)[0]
    member.look_into([one for one in actions if not (isinstance(one, Send) and _is_about(one, silent))])
    assert sent(member.attempt.tick(1.0), "check") == []
    again = asked(member.attempt.tick(1.0 + OPEN_SECONDS))
    owners = {to for to, note in again if note.own and note.partition == silent}
    assert owners == set(member.inputs.peers) - {member.me}
    [(_, statement), *_] = sent(member.attempt.tick(1.0 + 2 * OPEN_SECONDS), "check")
    assert statement.read(Check).doubts == (silent,)
    assert statement.read(Check).complaints == ()


def _is_about(send: Send, partition: int) -> bool:
    return isinstance(send.message, OpenNote) and send.message.partition == partition


def test_leaves_of_the_owners_are_recomputed_once_all_have_opened() -> None:
    member, actions = ready()
    [(reducer, note), *_] = asked(actions)
    place = note.model_dump(exclude={"own"})
    empty = OpeningNote(**place, inputs=())
    [inspect] = member.attempt.on_opening(reducer, empty, 1.0)
    assert isinstance(inspect, Inspect)
    owners = [to for to, one in asked(answer(member, inspect, Finding.UNOPENED)) if one.own]
    for peer in owners:
        index = member.inputs.peers.index(peer)
        stolen = OpenedInput(member=(index + 1) % 5, pieces=(), siblings=())  # it may only open its own
        own = OpenedInput(member=index, pieces=(), siblings=())
        found = member.attempt.on_opening(peer, OpeningNote(**place, inputs=(stolen, own)), 1.0)
        assert [type(one) for one in found] == ([Inspect] if peer == owners[-1] else [])
    assert {one.member for one in found[0].opened} == {member.inputs.peers.index(peer) for peer in owners}
    assert asked(answer(member, found[0], Finding.UNOPENED)) == []
    assert member.attempt.inspection.doubts == (note.partition,)


def passed_over() -> tuple[Member, int, OpenNote, list[PeerId]]:
    """Return our member, a partition whose reducer has not opened, our request, and the owners that got it."""
    member, actions = ready()
    late = others(member)[0]
    member.look_into([one for one in actions if not (isinstance(one, Send) and _is_about(one, late))])
    [note, *_] = [one for _, one in asked(actions) if one.partition == late]
    return member, late, note, [to for to, one in asked(member.attempt.tick(1.0 + OPEN_SECONDS)) if one.own]


def shown(member: Member, note: OpenNote, peers: list[PeerId]) -> OpeningNote:
    indices = [member.inputs.peers.index(peer) for peer in peers]
    inputs = tuple(OpenedInput(member=index, pieces=(), siblings=()) for index in indices)
    return OpeningNote(**note.model_dump(exclude={"own"}), inputs=inputs)


def test_a_reducer_that_opens_late_is_believed_all_the_same() -> None:
    """On slow links an answer takes longer than the wait for it."""
    member, late, note, owners = passed_over()
    member.attempt.tick(1.0 + 2 * OPEN_SECONDS)
    assert member.attempt.inspection.doubts == (late,)
    [inspect] = member.attempt.on_opening(member.group.reducer(late), shown(member, note, owners), 3.0)
    assert isinstance(inspect, Inspect)
    assert len(inspect.opened) == 4
    answer(member, inspect, Finding.CONFIRMED)
    assert member.attempt.inspection.doubts == ()


def test_a_false_opening_of_a_reducer_does_not_end_what_the_owners_show() -> None:
    member, late, note, owners = passed_over()
    reducer = member.group.reducer(late)
    [first] = member.attempt.on_opening(reducer, shown(member, note, owners), 3.0)
    assert isinstance(first, Inspect)
    for peer in owners:
        assert member.attempt.on_opening(peer, shown(member, note, [peer]), 3.0) == []  # the reducer's is recomputed
    [second] = [one for one in answer(member, first, Finding.UNOPENED) if isinstance(one, Inspect)]
    assert len(second.opened) == 4
    assert member.attempt.on_opening(reducer, shown(member, note, owners), 3.0) == []  # only once
    assert told(answer(member, second, Finding.REFUTED)) == ["result_refuted"]


def test_an_opening_too_long_for_an_owner_is_not_kept() -> None:
    """Leaves are kept until all owners have opened: thirty that send a megabyte each would fill the memory."""
    member, _, note, owners = passed_over()
    index = member.inputs.peers.index(owners[0])
    long = OpenedInput(member=index, pieces=(bytes(1024),) * 257, siblings=())
    member.attempt.on_opening(owners[0], OpeningNote(**note.model_dump(exclude={"own"}), inputs=(long,)), 3.0)
    case = member.attempt.inspection.cases[note.partition, 0]
    assert case.opened == {}
    member.attempt.on_opening(owners[0], shown(member, note, owners[:1]), 3.0)
    assert set(case.opened) == {index}


def due(late: int) -> tuple[Member, list[Action], Check]:
    """Return a member that signs its check when it is due, though `late` of four results have only just come."""
    member = Member(2)
    member.hear_bundle()
    first, last = others(member)[late:], others(member)[:late]
    for partition in (member.partition, *first):
        member.look_into(member.hear_results(range(partition, partition + 1)))
    questions = [one for p in last for one in member.hear_results(range(p, p + 1), 4.1)]
    [(_, statement), *_] = sent(member.attempt.tick(CHECK_SHARE * 8.0), "check")
    return member, questions, statement.read(Check)


def test_a_late_result_that_is_not_inspected_yet_is_doubted() -> None:
    member, _, signed = due(late=1)
    assert signed.doubts == (others(member)[0],)


def test_results_that_are_all_late_are_inspected_before_the_vote() -> None:
    """On slow links a doubt would cost every version, but an unchecked result may be false."""
    member, questions, signed = due(late=3)
    assert signed.doubts == ()
    assert not votes(propose(member))
    first, second, third = questions
    assert not votes(member.look_into([first, second]))
    assert votes(member.look_into([third]))


@pytest.mark.parametrize("finding", [Finding.DOUBTFUL, Finding.REFUTED])
def test_a_late_result_that_proves_wrong_gets_no_vote(finding: Finding) -> None:
    member, questions, _ = due(late=3)
    propose(member)
    shown = refutation(member, others(member)[0]) if finding is Finding.REFUTED else None
    found = member.look_into(questions[:1], finding, shown) + member.look_into(questions[1:])
    assert not votes(found)


def propose(member: Member, doubters: tuple[PeerId, ...] = ()) -> list[Action]:
    """Send the leader's proposal, in which these doubt every result, and the state that it leads to."""
    whole, checks = member.proposal(), []
    for checked in member.checks():
        doubts = tuple(range(5)) if checked.sender in doubters else ()
        body = checked.check.model_copy(update={"doubts": doubts})
        checks.append(say(checked.sender, "check", member.chain, member.inputs.digest, body))
    body = whole.read(Proposal).model_copy(update={"checks": tuple(checks)})
    statement = say(member.group.leader, "proposal", member.chain, member.inputs.digest, body)
    [apply] = [one for one in member.hear(statement, 4.3) if isinstance(one, Apply)]
    return member.attempt.on_applied(Applied(apply.key, digest_of(b"state")))


def votes(actions: list[Action]) -> list[RecordVote]:
    return [one for one in actions if isinstance(one, RecordVote)]


def vote_of(member: Member, sender: PeerId) -> Statement:
    outcome = member.attempt.verdict.outcome
    assert outcome is not None
    body = Vote(outcome=outcome.digest, state=digest_of(b"state"))
    return say(sender, "vote", member.chain, member.group.key.roster_id, body)


def test_a_member_without_a_result_to_check_inspects_it_before_it_votes() -> None:
    """Else a leader could hide a false result from some members and get their votes."""
    member = Member(2)
    member.hear_bundle()
    member.attempt.tick(CHECK_SHARE * 8.0)
    questions = member.hear_results(now=4.2)
    assert not votes(propose(member))
    assert votes(member.look_into(questions))


def test_a_member_said_to_doubt_a_result_follows_more_than_a_third() -> None:
    """It never votes alone: else a leader that shows each third checks in which it doubts would get all votes."""
    member, _, _ = due(late=3)
    first, second, *_ = [peer for peer in member.group.members if peer != member.me]
    assert not votes(propose(member, doubters=(member.me,)))
    assert not votes(member.hear(vote_of(member, first), 4.4))
    assert votes(member.hear(vote_of(member, second), 4.4))


def test_a_member_that_cannot_find_out_follows_more_than_a_third() -> None:
    """One of them is honest and knows: else a reducer that opens to all but one could lock all the others."""
    member, _, _ = due(late=3)
    first, second, *_ = [peer for peer in member.group.members if peer != member.me]
    found = propose(member) + member.hear(vote_of(member, first), 4.4)
    found += member.attempt.tick(4.1 + 2 * OPEN_SECONDS + 0.1) + member.attempt.tick(4.1 + 3 * OPEN_SECONDS + 0.2)
    assert not votes(found)
    assert votes(member.hear(vote_of(member, second), 6.2))


def test_a_result_that_comes_when_both_nonces_are_known_convinces_no_member() -> None:
    """A leader that sends different redos to two sets of members learns first which leaves they will draw."""
    member = Member(2)
    member.hear_bundle()
    member.attempt.tick(CHECK_SHARE * 8.0)
    for phase in (0, 1):
        member.attempt.exchange.nonces.show(phase)
    questions = member.hear_results(now=4.2)
    first, second, *_ = [peer for peer in member.group.members if peer != member.me]
    assert not votes(propose(member) + member.look_into(questions) + member.hear(vote_of(member, first), 4.4))
    assert votes(member.hear(vote_of(member, second), 4.4))


def test_a_member_that_still_inspects_at_the_end_follows_more_than_a_third() -> None:
    """Once it withheld its vote, so a result that it got late locked all members that had voted."""
    member = Member(2)
    member.hear_bundle()
    member.attempt.tick(CHECK_SHARE * 8.0)
    member.hear_results(now=6.9)
    found = propose(member)
    for peer in member.group.members:
        found += [] if peer == member.me else member.hear(vote_of(member, peer), 6.95)
    assert not votes(found)
    assert votes(member.attempt.tick(SECOND_PROPOSE_SHARE * 8.0))


def test_a_member_that_may_still_find_out_follows_no_other() -> None:
    member, questions, _ = due(late=3)
    found = propose(member)
    for peer in member.group.members:
        found += [] if peer == member.me else member.hear(vote_of(member, peer), 4.4)
    assert not votes(found)
    assert votes(member.look_into(questions))


def test_a_leader_whose_proposal_comes_to_nothing_has_not_led() -> None:
    member, _, _ = due(late=3)
    propose(member)
    member.attempt.give_up()
    assert member.core.lateness.hurried({member.group.leader}, LEADING, 1)


def test_a_reducer_that_the_transport_lost_is_not_waited_for() -> None:
    member, _ = ready()
    lost = others(member)[0]
    again = asked(member.attempt.lose(member.group.reducer(lost), 1.0))
    assert [(note.partition, note.own) for _, note in again] == [(lost, True)] * 4


def test_openings_that_nobody_asked_for_change_nothing() -> None:
    member, actions = ready()
    [(reducer, note), *_] = asked(actions)
    place = note.model_dump(exclude={"own"})
    for sender, changes in (
        (member.order[3] if member.order[3] != reducer else member.order[4], {}),
        (reducer, {"seed": bytes(32)}),
        (reducer, {"turn": 1}),
    ):
        assert member.attempt.on_opening(sender, OpeningNote(**{**place, **changes}, inputs=()), 1.0) == []


def test_a_refuted_result_is_shown_to_everybody_and_named_in_the_check() -> None:
    member, actions = ready()
    wrong, *fine = others(member)
    found = member.look_into([one for one in actions if isinstance(one, Send) and _is_about(one, wrong)])
    assert found == []
    member, actions = ready()
    spread = member.look_into(
        [one for one in actions if isinstance(one, Send) and _is_about(one, wrong)],
        Finding.REFUTED,
        refutation(member, wrong),
    )
    assert {to for to, _ in sent(spread, "refutation")} == set(member.group.members) - {member.me}
    rest = [one for one in actions if isinstance(one, Send) and not _is_about(one, wrong)]
    [(_, statement), *_] = sent(member.look_into(rest), "check")
    assert statement.read(Check).accused == (wrong,)
    assert len(fine) == 3


def test_a_refutation_is_believed_once_it_has_been_repeated() -> None:
    member, _ = ready()
    wrong = others(member)[0]
    [inspect] = member.hear(refuted(member, wrong, member.order[4]))
    assert isinstance(inspect, Inspect)
    assert (inspect.accuser, inspect.leaf, inspect.opened) == (member.order[4], 3, (SHOWN,))
    assert member.attempt.refutations.partitions == frozenset()
    assert told(answer(member, inspect, Finding.REFUTED)) == ["result_refuted"]
    assert member.attempt.refutations.partitions == {wrong}
    assert member.hear(refuted(member, wrong, member.order[3])) == []  # known already


def test_a_member_that_refutes_falsely_is_not_heard_again() -> None:
    member, _ = ready()
    first, second = others(member)[:2]
    [inspect] = member.hear(refuted(member, first, member.order[4]))
    assert isinstance(inspect, Inspect)
    assert told(answer(member, inspect, Finding.CONFIRMED)) == ["refutation_false"]
    assert member.hear(refuted(member, second, member.order[4])) == []
    assert member.attempt.refutations.partitions == frozenset()
    assert member.attempt.refutations.resolved(member.order[4])


def test_a_refutation_of_a_result_that_has_not_come_waits_for_it() -> None:
    member = Member(2)
    member.hear_bundle()
    wrong = others(member)[0]
    assert member.hear(refuted(member, wrong, member.order[4])) == []
    found = [one for one in member.hear_results() if isinstance(one, Inspect)]
    assert [one.leaf for one in found] == [3]


def test_refutations_of_nothing_here_are_refused() -> None:
    member, _ = ready()
    for sender, inputs in ((member.order[4], bytes(32)), (PEERS[8], member.inputs.digest)):
        with pytest.raises(PeerError, match="of no result here"):
            member.attempt.refutations.hear(say(sender, "refutation", member.chain, inputs, refutation(member, 0)))


def test_a_proven_result_gets_no_vote_and_a_redo_of_it_is_followed() -> None:
    member, _ = ready()
    wrong = others(member)[0]
    [inspect] = member.hear(refuted(member, wrong, member.order[4]))
    assert isinstance(inspect, Inspect)
    checks = tuple(checked.statement for checked in member.checks())
    redo = say(
        member.group.leader,
        "redo",
        member.chain,
        member.inputs.digest,
        Redo(partitions=(wrong,), checks=checks),
    )
    member.hear(redo)
    assert not member.attempt.exchange.redone  # not yet: it does not rely on the leader's word alone
    answer(member, inspect, Finding.REFUTED)
    assert member.attempt.exchange.redone == {wrong}
    assert not any(isinstance(one, Apply) for one in member.hear(member.proposal()))


def test_a_false_proposal_of_the_leader_makes_room_for_the_next_in_order() -> None:
    member, _ = ready()
    wrong = others(member)[0]
    [inspect] = member.hear(refuted(member, wrong, member.order[4]))
    assert isinstance(inspect, Inspect)
    answer(member, inspect, Finding.REFUTED)
    whole = member.proposal()
    assert member.hear(whole) == []
    results = list(whole.read(Proposal).results)
    results[wrong] = None
    body = Proposal(results=tuple(results), checks=whole.read(Proposal).checks)
    second = say(member.group.proposers()[1], "proposal", member.chain, member.inputs.digest, body)
    [apply] = [one for one in member.hear(second) if isinstance(one, Apply)]
    assert apply.results[wrong] is None


def test_a_proposal_may_leave_out_what_is_refuted_and_nothing_else() -> None:
    member, _ = ready()
    wrong = others(member)[0]
    whole = member.proposal().read(Proposal)
    without = tuple(None if p == wrong else digest for p, digest in enumerate(whole.results))
    body = Proposal(results=without, checks=whole.checks)
    statement = say(member.group.leader, "proposal", member.chain, member.inputs.digest, body)
    assert member.hear(statement) == []
    [inspect] = member.hear(refuted(member, wrong, member.order[4]))
    assert isinstance(inspect, Inspect)
    [apply] = [one for one in answer(member, inspect, Finding.REFUTED) if isinstance(one, Apply)]
    assert apply.results[wrong] is None


@pytest.mark.parametrize(
    ("claimed", "left_out", "counts"), [((1,), (1,), True), ((1,), (), False), ((1, 3), (1, 3), False)]
)
def test_a_member_left_out_has_a_partition_reduced_again(
    claimed: tuple[int, ...], left_out: tuple[int, ...], counts: bool
) -> None:
    """Only if it was really left out, and not everywhere: then it was slow itself."""
    member = Member(0)
    index = member.inputs.peers.index(member.order[4])
    results = {}
    for partition, statement in enumerate(member.results):
        body = statement.read(Result)
        without = tuple(one for one in body.included if one != index)
        results[statement.digest] = body.model_copy(update={"included": without}) if partition in left_out else body
    checked = check(member.chain, member.inputs, member.order[4], [one.digest for one in member.results])
    claim = type(checked)(checked.sender, checked.check.model_copy(update={"dropped": claimed}), checked.statement)
    found = partitions_to_redo(member.group, member.inputs, [claim], results)
    assert found == (set(claimed) if counts else set())


def test_a_member_is_answered_for_one_seed_and_not_for_ever() -> None:
    member, _ = ready()
    group = member.group.key.roster_id
    note = OpenNote(group=group, partition=member.partition, turn=0, seed=bytes(32), own=False)
    answers = [member.attempt.answer(member.order[4], note) for _ in range(6)]
    assert [len(one) for one in answers] == [1, 1, 1, 1, 0, 0]
    [opened] = answers[0]
    assert isinstance(opened, Open)
    assert member.inputs.index(member.order[4]) not in {one.member for one in opened.inputs}
    other = note.model_copy(update={"seed": bytes([1]) * 32})
    assert member.attempt.answer(member.order[4], other) == []
    for refused in ({"partition": (member.partition + 1) % 5}, {"turn": 1}, {"partition": 31}):
        assert member.attempt.answer(member.order[3], note.model_copy(update=refused)) == []
    [own] = member.attempt.answer(member.order[3], note.model_copy(update={"own": True, "partition": 0}))
    assert isinstance(own, Open)
    assert [one.member for one in own.inputs] == [member.inputs.index(member.me)]
    answered = OpeningNote(group=group, partition=0, turn=0, seed=bytes(32), inputs=())
    assert member.attempt.on_opened(Opened(member.group.key, member.order[3], answered)) == [
        Send(member.order[3], answered)
    ]


def test_an_outsider_gets_no_part_of_a_single_member() -> None:
    """Observers have no seat in any group (`AdmissionControl.seat_refusal`), so they see only merged results."""
    member, _ = ready()
    group, looks_on = member.group.key.roster_id, PEERS[9]
    parts = [NeedNote(what="part", group=group, partition=partition, turn=0) for partition in range(5)]
    inputs = OpenNote(group=group, partition=member.partition, turn=0, seed=bytes(32), own=False)
    notes = [*parts, inputs, inputs.model_copy(update={"partition": 0, "own": True})]
    assert [member.attempt.answer(looks_on, note) for note in notes] == [[]] * 7
    assert [bool(member.attempt.answer(member.order[4], note)) for note in notes[5:]] == [True, True]


def test_both_sides_know_that_the_only_voter_of_a_cell_is_shown_inputs_of_all_members() -> None:
    member, _ = ready()
    cell = CellGroup(**{one.name: getattr(member.group, one.name) for one in fields(member.group)})
    exchange = replace(member.attempt.exchange, group=cell)
    note = OpenNote(group=cell.key.roster_id, partition=member.partition, turn=0, seed=bytes(32), own=False)
    [opened] = OpeningServer(member.attempt.core, cell, exchange).answer(cell.leader, note)
    assert isinstance(opened, Open)
    inspected = inspection_of(exchange, next(iter(exchange.results.values())), member.me)
    assert (opened.voters, opened.members) == (inspected.voters, inspected.members) == (1, 5)


@pytest.mark.parametrize(
    ("voters", "butterfly_bytes", "leaves"),
    [
        (2, 10**9, 92),
        (4, 10**9, 31),
        (8, 10**9, 16),
        (16, 10**9, 9),
        (8, 0, 16),
        (16, 9_375_000, 4),
        (32, 0, 1),
    ],
)
def test_enough_leaves_are_opened_and_not_more_than_traffic_allows(
    voters: int, butterfly_bytes: int, leaves: int
) -> None:
    assert leaves_per_voter(voters, voters, voters, 1200, butterfly_bytes) == leaves
