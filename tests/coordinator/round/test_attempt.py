"""One member in one group: early and late messages, a lost leader, and after it has given up."""

from __future__ import annotations

import math

import pytest

from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Apply, Encode, Inspect, RecordVote, Reduce, Send
from coordinator.core.context import Core
from coordinator.core.events import Applied, Encoded, Finding, Inspected, Reduced, VoteRecorded
from coordinator.core.lateness import RESULT
from coordinator.core.timeline import PROPOSE_SHARES, QUIET_SHARE, Timeline
from coordinator.group.group import Group, InputSet
from coordinator.round.attempt import Attempt
from coordinator.round.early_messages import EARLY_BYTES_OF_ONE_MAX, EARLY_MESSAGES_MAX, EARLY_OF_ONE_MAX, EarlyMessages
from coordinator.round.outcome import Checked, nonce_hash
from coordinator.wire.messages import Bundle, Check, Commit, NeedNote, PartNote, Proposal, Redo, Result
from coordinator.wire.openings import OpeningNote, OpenNote, Refutation
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.coordinator.rigs import NONCES, PEERS, chain_of, check, commit, core, group_of, inputs_of, presence, say

FIVE = PEERS[:5]


class Member:
    """The attempt of one of five members, with the others' statements at hand."""

    def __init__(self, place: int) -> None:
        self.chain: Chain = chain_of(core())
        self.group: Group = group_of(self.chain, FIVE)
        self.me: PeerId = self.order[place]
        self.core: Core = core(PEERS.index(self.me))
        self.core.random_bytes = lambda count: NONCES[0][:count]
        self.attempt = Attempt(self.core, self.chain, self.group, Timeline(0.0, 8.0))
        self.inputs: InputSet = inputs_of(self.chain, self.group)
        self.results = [self._result(partition, 0) for partition in range(5)]

    @property
    def order(self) -> tuple[PeerId, ...]:
        """Members: the leader first, then the others in beacon order."""
        rest = tuple(member for member in self.group.members if member != self.group.leader)
        return (self.group.leader, *rest)

    @property
    def partition(self) -> int:
        """The partition that this member reduces."""
        return self.group.reducers.index(self.me)

    def _result(self, partition: int, turn: int) -> Statement:
        body = Result(
            partition=partition,
            turn=turn,
            root=digest_of(b"bytes", bytes([partition])),
            included=tuple(range(5)),
            coefficients=(),
            squared_norms=(1.0,),
            encoding_error=0.0,
        )
        return say(
            self.group.reducer(partition, {partition} if turn else ()), "result", self.chain, self.inputs.digest, body
        )

    def hear(self, statement: Statement, now: float = 1.0, root: bytes | None = None) -> list[Action]:
        return self.attempt.receive(PeerId(statement.sender), statement, root, now)

    def hear_bundle(self, now: float = 1.0) -> list[Action]:
        return self.hear(self.inputs.statement, now)

    def hear_results(self, partitions: range = range(5), now: float = 1.0) -> list[Action]:
        actions: list[Action] = []
        for partition in partitions:
            root = self.results[partition].read(Result).root
            actions += self.hear(self.results[partition], now, root)
        return actions

    def look_into(
        self, asked: list[Action], finding: Finding = Finding.CONFIRMED, refutation: Refutation | None = None
    ) -> list[Action]:
        """Let every reducer open the requested leaves, and every recomputation give this finding."""
        actions: list[Action] = []
        for send in [one for one in asked if isinstance(one, Send)]:
            if isinstance(send.message, OpenNote):
                place = send.message.model_dump(exclude={"own"})
                inspect = self.attempt.on_opening(send.to, OpeningNote(**place, inputs=()), 1.0)
                actions += [one for one in inspect if not isinstance(one, Inspect)]
                for action in [one for one in inspect if isinstance(one, Inspect)]:
                    answer = Inspected(
                        self.group.key, self.me, action.partition, action.turn, action.result, finding, refutation
                    )
                    actions += self.attempt.on_inspected(answer, 1.0)
        return actions

    def checks(self, phase: int = 0) -> tuple[Checked, ...]:
        digests = [result.digest for result in self.results]
        return tuple(check(self.chain, self.inputs, peer, digests, phase) for peer in self.group.members)

    def proposal(self, sender: PeerId | None = None) -> Statement:
        body = Proposal(
            results=tuple(result.digest for result in self.results),
            checks=tuple(checked.statement for checked in self.checks()),
        )
        return say(sender or self.group.leader, "proposal", self.chain, self.inputs.digest, body)

    def encoded(self) -> Encoded:
        own = commit(self.chain, self.group, self.me)
        roots = tuple(digest_of(self.me.encode(), bytes([j])) for j in range(5))
        assert own.sender == self.me
        return Encoded(self.group.key, 100, 1, 0, 1, roots, (1.0,) * 5)


def sent(actions: list[Action], kind: str) -> list[tuple[PeerId, Statement]]:
    sends = [action for action in actions if isinstance(action, Send)]
    return [
        (send.to, send.message)
        for send in sends
        if isinstance(send.message, Statement) and send.message.context.kind == kind
    ]


def needs(actions: list[Action]) -> set[tuple[PeerId, str, int]]:
    sends = [action for action in actions if isinstance(action, Send)]
    return {
        (send.to, send.message.what, send.message.partition) for send in sends if isinstance(send.message, NeedNote)
    }


def test_a_member_encodes_commits_scatters_checks_and_votes() -> None:
    member = Member(2)
    assert member.attempt.start(0.0) == [Encode(member.group.key, 5, expected=5)]
    assert [to for to, _ in sent(member.attempt.on_encoded(member.encoded(), 0.5), "commit")] == [member.group.leader]
    parts = [action for action in member.hear_bundle() if isinstance(action, Send)]
    assert [(send.to, send.payload) for send in parts] == [
        (member.group.reducer(j), digest_of(member.me.encode(), bytes([j]))) for j in range(5)
    ]
    asked = member.hear_results()
    assert sent(asked, "check") == []  # not before it has inspected them
    checks = sent(member.look_into(asked), "check")
    assert [to for to, _ in checks] == [member.group.leader]
    assert checks[0][1].read(Check).complaints == ()
    (apply,) = member.hear(member.proposal())
    assert isinstance(apply, Apply)
    (record,) = member.attempt.on_applied(Applied(member.group.key, bytes(32)))
    assert isinstance(record, RecordVote)
    assert member.attempt.voted
    votes = sent(member.attempt.on_vote_recorded(VoteRecorded(member.group.key)), "vote")
    assert [to for to, _ in votes] == list(member.group.members)


def test_a_member_whose_vote_cannot_be_written_abstains() -> None:
    member = Member(2)
    member.hear_bundle()
    member.look_into(member.hear_results())
    member.hear(member.proposal())
    (record,) = member.attempt.on_applied(Applied(member.group.key, bytes(32)))
    assert isinstance(record, RecordVote)
    told = sent(member.attempt.on_vote_recorded(VoteRecorded(member.group.key, written=False)), "abstain")
    assert [to for to, _ in told] == list(member.group.members)
    assert not member.attempt.voted
    assert member.attempt.on_vote_recorded(VoteRecorded(member.group.key)) == []  # never after abstaining


def test_a_reducer_returns_its_partition_to_everybody() -> None:
    member = Member(2)
    member.hear_bundle()
    reduce: list[Action] = []
    for peer, committed in zip(member.inputs.peers, member.inputs.commits, strict=True):
        note = PartNote(group=member.group.key.roster_id, partition=member.partition, turn=0)
        reduce += member.attempt.receive(peer, note, committed.part_roots[member.partition], 1.0)
    assert [type(action) for action in reduce] == [Reduce]
    answer = Reduced(member.group.key, member.partition, 0, bytes(32), (0, 1, 2, 3, 4))
    results = sent(member.attempt.on_reduced(answer, 1.5), "result")
    assert [to for to, _ in results] == list(member.group.members)


def test_messages_before_the_bundle_are_kept_for_it() -> None:
    member = Member(2)
    assert member.hear_results() == []
    assert member.hear(member.proposal()) == []
    assert any(isinstance(action, Apply) for action in member.hear_bundle())


def test_early_messages_are_bounded() -> None:
    member = Member(2)
    for _ in range(2 * EARLY_OF_ONE_MAX):
        member.hear(member.proposal())
    assert len(member.attempt.early_messages) == EARLY_OF_ONE_MAX, "of one sender"
    assert member.hear_results() == []
    assert len(member.attempt.early_messages) == EARLY_OF_ONE_MAX + len(member.results) - 1, "one is by the same"
    early = EarlyMessages(member.attempt.exchange, frozenset({"proposal"}))
    senders = [PeerId(f"{number}") for number in range(EARLY_MESSAGES_MAX)]
    assert all(early.holds_back(sender, member.proposal(), None) for sender in senders for _ in range(2))
    assert len(early) == EARLY_MESSAGES_MAX
    large = member.proposal().model_copy(update={"body": bytes(EARLY_BYTES_OF_ONE_MAX // 2)})
    early = EarlyMessages(member.attempt.exchange, frozenset({"proposal"}))
    assert all(early.holds_back(FIVE[1], large, None) for _ in range(3))
    assert len(early) == 2, "of one sender"
    early.close()
    assert early.holds_back(FIVE[0], member.proposal(), None)
    assert len(early) == 0, "nothing is kept in a group that was given up"


def redo(member: Member, partitions: tuple[int, ...]) -> Statement:
    digests = [None if p in partitions else result.digest for p, result in enumerate(member.results)]
    checks = tuple(check(member.chain, member.inputs, peer, digests).statement for peer in member.group.members)
    body = Redo(partitions=partitions, checks=checks)
    return say(member.group.leader, "redo", member.chain, member.inputs.digest, body)


def test_parts_of_a_second_turn_that_overtake_its_order_are_kept() -> None:
    member = Member(2)
    member.hear_bundle()
    partition = (member.partition - 1) % 5
    for peer, committed in zip(member.inputs.peers, member.inputs.commits, strict=True):
        note = PartNote(group=member.group.key.roster_id, partition=partition, turn=1)
        assert member.attempt.receive(peer, note, committed.part_roots[partition], 1.0) == []
    actions = member.hear(redo(member, (partition,)))
    assert [action.turn for action in actions if isinstance(action, Reduce)] == [1]


def test_results_of_a_second_turn_that_overtake_its_order_are_kept() -> None:
    """Only the redo says who reduces again: here all but one have failed, and this one does all their work."""
    member = Member(2)
    member.hear_bundle()
    standing = (member.partition + 1) % 5
    redone = tuple(sorted(set(range(5)) - {standing}))
    again = member.results[redone[0]].read(Result).model_copy(update={"turn": 1})
    result = say(member.group.reducers[standing], "result", member.chain, member.inputs.digest, again)
    assert member.hear(result, 1.0, again.root) == []
    assert member.attempt.exchange.results == {}
    member.hear(redo(member, redone))
    assert member.attempt.exchange.results[redone[0], 1].reducer == member.group.reducers[standing]
    stray = again.model_copy(update={"partition": standing})
    with pytest.raises(PeerError, match="does not reduce it"):
        member.hear(say(member.group.reducers[standing], "result", member.chain, member.inputs.digest, stray))


@pytest.mark.parametrize("result_first", [True, False])
@pytest.mark.parametrize("abstained", [True, False])
def test_a_peer_that_missed_a_redo_applies_its_results_from_the_proposal(result_first: bool, abstained: bool) -> None:
    """Its leader may have died, or not have told all: members with the proposal pass it on."""
    member = Member(2)
    member.hear_bundle()
    for partition in (0, 2, 3, 4):
        member.hear_results(range(partition, partition + 1))
    if abstained:
        member.attempt.abstain()
    again = member.results[1].read(Result).model_copy(update={"turn": 1})
    result = say(member.group.reducer(1, {1}), "result", member.chain, member.inputs.digest, again)
    digests = tuple(result.digest if p == 1 else one.digest for p, one in enumerate(member.results))
    checks = tuple(check(member.chain, member.inputs, peer, digests, 1).statement for peer in member.group.members)
    body = Proposal(results=digests, checks=checks)
    proposal = say(member.group.leader, "proposal", member.chain, member.inputs.digest, body)
    other = say(member.group.reducer(3), "result", member.chain, member.inputs.digest, again)
    member.hear(other, 1.0, again.root)
    if result_first:
        assert member.hear(result, 1.0, again.root) == []
    actions = member.hear(proposal)
    if not result_first:
        assert [one for one in actions if isinstance(one, Apply)] == []
        actions = member.hear(result, 1.0, again.root)
    [apply] = [one for one in actions if isinstance(one, Apply)]
    assert apply.results[1] is not None
    assert not member.attempt.exchange.redone


def test_a_leader_orders_a_redo_once_so_many_have_checked_that_it_knows_all_that_is_missing() -> None:
    """The first two that complain may hold a result that the others lack."""
    leader = Member(0)
    leader.hear_bundle()
    lacking = {1: (1,), 2: (1,), 3: (1, 3), 4: (1, 3)}
    redos: list[Statement] = []
    for place, partitions in lacking.items():
        digests = [None if p in partitions else one.digest for p, one in enumerate(leader.results)]
        actions = leader.hear(check(leader.chain, leader.inputs, leader.order[place], digests).statement)
        redos += [statement for _, statement in sent(actions, "redo")]
        assert bool(redos) == (place == 4)
    assert {one.read(Redo).partitions for one in redos} == {(1, 3)}


def test_a_leader_does_not_propose_while_its_own_order_is_on_its_way_to_it() -> None:
    """Once it proposed old checks: reducers reduced again for nothing, and the partition was frozen."""
    leader = Member(0)
    leader.hear_bundle()
    digests = [None, *(one.digest for one in leader.results[1:])]
    for peer in leader.order[1:]:
        leader.hear(check(leader.chain, leader.inputs, peer, digests).statement)
    assert leader.attempt.leader_role.redo is not None
    assert sent(leader.attempt.tick(PROPOSE_SHARES[0] * 8.0), "proposal") == []


def test_a_redo_needs_the_complaints_that_justify_it() -> None:
    member = Member(2)
    member.hear_bundle()
    good = redo(member, (1,))
    body = Redo(partitions=(1, 2), checks=good.read(Redo).checks)
    member.hear(say(member.group.leader, "redo", member.chain, member.inputs.digest, body))
    stranger = say(member.order[4], "redo", member.chain, member.inputs.digest, good.read(Redo))
    with pytest.raises(PeerError, match="not the leader's"):
        member.hear(stranger)
    assert not member.attempt.exchange.redone
    member.hear(good)
    assert member.attempt.exchange.redone == {1}


def test_a_reducer_does_not_wait_for_the_part_of_a_member_that_is_gone() -> None:
    """It was lost before the duty began, so the duty begins without it."""
    member = Member(2)
    member.attempt.lose(member.order[4], 0.5)
    member.hear_bundle()
    actions: list[Action] = []
    for peer, committed in zip(member.inputs.peers, member.inputs.commits, strict=True):
        if peer != member.order[4]:
            note = PartNote(group=member.group.key.roster_id, partition=member.partition, turn=0)
            actions += member.attempt.receive(peer, note, committed.part_roots[member.partition], 1.0)
    assert [type(action) for action in actions] == [Reduce]


def test_a_peer_that_is_heard_of_again_is_not_gone() -> None:
    member = Member(2)
    member.attempt.lose(member.group.leader, 0.5)
    assert member.attempt.pointless(3.0)
    member.hear_bundle()
    assert not member.attempt.pointless(3.0)
    assert member.attempt.gone == {}


def test_a_member_that_was_silent_in_the_group_before_is_not_waited_for() -> None:
    """The leader fixes the input set at once, without it, or with it if it has committed by then."""
    for silent_speaks in (False, True):
        member = Member(0)
        silent = member.order[4]
        member.core.presence.see(silent, presence(), 0.0)
        member.core.presence.miss({silent})
        member.attempt = Attempt(member.core, member.chain, member.group, Timeline(0.0, 8.0))
        speakers = member.order[: 5 if silent_speaks else 4]
        actions = [
            action for peer in reversed(speakers) for action in member.hear(commit(member.chain, member.group, peer))
        ]
        (bundle,) = {one.message for one in actions if isinstance(one, Send)}
        assert isinstance(bundle, Statement)
        assert {signed.sender for signed in bundle.read(Bundle).commits} == set(speakers)


def test_a_silent_member_is_missed_once_it_had_something_to_say() -> None:
    member = Member(2)
    for peer in FIVE:
        member.core.presence.see(peer, presence(), 0.0)
    member.attempt.judge_members(void=True)
    assert member.core.presence.unheard == set()
    member.hear_bundle()
    member.hear_results(range(4))
    member.attempt.judge_members(void=True)
    spoken = {member.me, member.group.leader, *(PeerId(one.sender) for one in member.results[:4])}
    assert member.core.presence.unheard == set(FIVE) - spoken


def test_after_an_abstention_only_last_words_count() -> None:
    member = Member(2)
    member.attempt.start(0.0)
    assert [to for to, _ in sent(member.attempt.abstain(), "abstain")] == list(member.group.members)
    assert member.attempt.over
    assert member.hear_bundle() == []
    assert member.attempt.exchange.inputs is None
    assert member.attempt.on_encoded(member.encoded(), 1.0) == []
    assert member.attempt.abstain() == []


def test_a_peer_that_abstained_does_not_vote_even_if_the_state_comes() -> None:
    member = Member(2)
    member.hear_bundle()
    member.hear_results()
    member.attempt.abstain()
    assert any(isinstance(action, Apply) for action in member.hear(member.proposal()))
    assert member.attempt.on_applied(Applied(member.group.key, bytes(32))) == []
    assert not member.attempt.voted


def test_a_peer_that_voted_does_not_abstain_and_is_bound_for_three_deadlines() -> None:
    member = Member(2)
    member.hear_bundle()
    member.look_into(member.hear_results())
    member.hear(member.proposal())
    member.attempt.on_applied(Applied(member.group.key, bytes(32)))
    assert member.attempt.abstain() == []
    assert member.attempt.locked(23.9)
    assert not member.attempt.locked(24.0)


def test_reminders_end_with_the_lock() -> None:
    member = Member(2)
    member.attempt.start(0.0)
    now, ticks = 0.0, 0
    while member.attempt.next_deadline() < math.inf:
        now, ticks = member.attempt.next_deadline(), ticks + 1
        member.attempt.tick(now)
    assert 23.0 < now < 24.0
    assert ticks < 40


def test_missing_results_are_asked_of_reducers_then_of_who_proposed_and_who_voted() -> None:
    member = Member(2)
    member.attempt.on_encoded(member.encoded(), 0.5)
    member.hear_bundle()
    member.hear_results(range(4))
    missing = 4
    asked = needs(member.attempt.tick(2.0))
    assert (member.group.reducer(missing), "result", missing) in asked
    member.hear(member.proposal())
    asked = needs(member.attempt.tick(3.0))
    assert asked == {(member.group.leader, "result", missing)}


def test_a_result_that_others_show_does_not_say_that_its_reducer_comes() -> None:
    """Else members would wait to the end, again and again, for a reducer that gives its results to half of them."""
    member = Member(2)
    member.hear_bundle()
    shown, given = (member.group.reducer(partition) for partition in range(2))
    member.core.lateness.miss([shown, given], RESULT)
    member.attempt.exchange.waits.note_result_sender(given, member.results[1].digest)
    member.hear_results(range(2))
    assert member.core.lateness.hurried({shown, given}, RESULT, 1) == {shown}
    member.attempt.exchange.waits.note_result_sender(shown, member.results[0].digest)  # now it is the sender
    member.hear_results(range(1))
    assert not member.core.lateness.hurried({shown, given}, RESULT, 1)


def test_a_needed_result_is_given_with_its_bytes() -> None:
    member = Member(2)
    member.hear_bundle()
    member.hear_results(range(2))
    need = NeedNote(what="result", group=member.group.key.roster_id, partition=1, turn=0)
    assert member.attempt.answer(member.order[3], need) == [
        Send(member.order[3], member.results[1], member.results[1].read(Result).root)
    ]
    assert member.attempt.answer(PEERS[9], need) == []
    assert member.attempt.answer(member.order[3], need.model_copy(update={"partition": 3})) == []


def test_a_proposal_is_handed_on_while_its_proposer_has_not_voted() -> None:
    member = Member(2)
    member.hear_bundle()
    member.hear_results()
    member.hear(member.proposal())
    handed = sent(member.attempt.tick(2.0), "proposal")
    assert {to for to, _ in handed} == set(FIVE) - {member.me}
    assert all(statement == member.proposal() for _, statement in handed)


def test_a_peer_is_not_reminded_of_a_message_that_came_a_moment_ago() -> None:
    """All members tick at about the same time: each would send the proposal to all whose votes are on their way."""
    member = Member(2)
    member.hear_bundle()
    member.hear_results()
    member.attempt.tick(1.28)
    due_at = member.attempt.next_deadline()
    member.hear(member.proposal(), due_at - 0.01)
    assert not sent(member.attempt.tick(due_at), "proposal")
    assert sent(member.attempt.tick(due_at + QUIET_SHARE * 8.0), "proposal")


def test_a_peer_that_accepted_the_leaders_proposal_does_not_propose_as_well() -> None:
    """A second proposal would split the votes."""
    second = Member(1)
    second.hear_bundle()
    second.hear_results()
    second.hear(second.proposal())
    second.attempt.lose(second.group.leader, 2.0)
    actions: list[Action] = []
    for checked in second.checks():
        actions += second.hear(checked.statement, 7.5)
    assert sent(actions + second.attempt.tick(7.6), "proposal")[0][1].sender == second.group.leader


def test_the_second_in_order_proposes_once_the_leader_is_gone() -> None:
    second = Member(1)
    second.hear_bundle()
    second.hear_results()
    second.attempt.lose(second.group.leader, 2.0)
    actions: list[Action] = []
    for checked in second.checks():
        if checked.sender != second.group.leader:
            actions += second.hear(checked.statement, 2.0)
    proposals = sent(actions, "proposal")
    assert {to for to, _ in proposals} == set(FIVE)
    assert {statement.sender for _, statement in proposals} == {second.me}


def test_proposals_that_do_not_follow_from_their_checks_are_refused() -> None:
    member = Member(2)
    member.hear_bundle()
    good = member.proposal().read(Proposal)
    second = [checked.statement for checked in member.checks(phase=1)]
    for body, reason in (
        (Proposal(results=(bytes(32), *good.results[1:]), checks=good.checks), "does not follow"),
        (Proposal(results=(None, None, *good.results[2:]), checks=good.checks), "does not follow"),
        (Proposal(results=good.results, checks=good.checks[:3]), "too few checks"),
        (Proposal(results=good.results, checks=(*good.checks[:4], good.checks[0])), "two checks of one member"),
        (Proposal(results=good.results, checks=(*good.checks[:4], second[4])), "mixes checks"),
    ):
        with pytest.raises(PeerError, match=reason):
            member.hear(say(member.group.leader, "proposal", member.chain, member.inputs.digest, body))
    assert member.attempt.verdict.followed is None


def test_results_that_are_false_are_refused() -> None:
    member = Member(2)
    member.hear_bundle()
    good = member.results[1].read(Result)
    for changes, root, reason in (
        ({"included": (0, 1)}, good.root, "too few inputs"),
        ({"included": (0, 1, 2, 2)}, good.root, "too few inputs"),
        ({"included": (0, 1, 2, 9)}, good.root, "inputs that do not exist"),
        ({}, bytes(32), "do not match their signed root"),
        ({"partition": 2}, good.root, "does not reduce it"),
        ({"partition": 31}, good.root, "another group"),
    ):
        body = good.model_copy(update=changes)
        statement = say(member.group.reducer(1), "result", member.chain, member.inputs.digest, body)
        with pytest.raises(PeerError, match=reason):
            member.hear(statement, 1.0, root)
    assert member.attempt.exchange.results == {}


def test_a_check_from_before_the_redo_says_nothing_after_it() -> None:
    """Messages may overtake each other; the newest phase counts."""
    leader = Member(0)
    leader_role = leader.attempt.leader_role
    first, second = leader.checks()[1], leader.checks(phase=1)[1]
    for order in ((first, second), (second, first)):
        leader_role.checks.clear()
        for checked in order:
            leader_role.add_check(checked)
        assert [checked.check.phase for checked in leader_role.checks.values()] == [1]


def test_the_leader_bundles_what_came_by_its_time() -> None:
    leader = Member(0)
    leader.attempt.start(0.0)
    actions: list[Action] = []
    for peer in leader.order[1:4]:
        actions += leader.hear(commit(leader.chain, leader.group, peer), 0.5)
    assert sent(actions, "bundle") == []
    assert sent(leader.attempt.tick(2.0), "bundle") == []  # three of five are not more than two thirds
    bundles = sent(leader.hear(commit(leader.chain, leader.group, leader.order[4]), 2.1), "bundle")
    assert {to for to, _ in bundles} == set(FIVE)
    assert {one.sender for one in bundles[0][1].read(Bundle).commits} == set(leader.order[1:])


@pytest.mark.parametrize(("left_out", "enough"), [(0, 4), (1, 5)])
def test_a_group_whose_leader_leaves_too_many_out_is_given_up(left_out: int, enough: int) -> None:
    """Else a hostile leader could make the others certify only hostile contributions (docs/adr/0038)."""
    for count in (enough - 1, enough):
        member = Member(2)
        member.attempt.exchange.left_out = left_out
        commits = tuple(commit(member.chain, member.group, peer) for peer in member.order[:count])
        place = member.group.leader, "bundle", member.chain, member.group.key.roster_id
        actions = member.hear(say(*place, Bundle(commits=commits, members=len(member.group.members))))
        assert member.attempt.over == bool(sent(actions, "abstain")) == (count < enough)
        assert (member.attempt.exchange.inputs is None) == (count < enough)


def test_nonces_are_those_that_were_committed() -> None:
    member = Member(2)
    statement = sent(member.attempt.on_encoded(member.encoded(), 0.5), "commit")[0][1]
    assert statement.read(Commit).nonce_hashes == tuple(map(nonce_hash, member.attempt.exchange.nonces.by_phase))
