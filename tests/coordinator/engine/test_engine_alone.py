"""A peer that is alone certifies versions with itself: the protocol of design §6.2, step by step, in one place.

With one member every threshold is one, so each step follows from a single answer of the shell. The tests of larger
swarms check by simulation what can be read here line by line.
"""

from __future__ import annotations

import pytest

from coordinator.core.actions import (
    Action,
    Adopt,
    Apply,
    Discard,
    Encode,
    Included,
    RecordVote,
    Reduce,
    RoundVoided,
    Send,
    Tell,
    VersionCertified,
)
from coordinator.core.context import UNABLE_DEADLINES
from coordinator.core.events import Applied, Encoded, Progress, Reduced, Tick, VoteRecorded
from coordinator.engine.engine import Engine
from coordinator.run.manifest import PaceSpec
from tests.coordinator.builders import NOW, Club, digest

PACE = PaceSpec(fragments=2, steps_per_version=8, quorum=1, min_group=1, round_seconds=8.0)
CLUB = Club.of(1, pace=PACE)
ME = CLUB.ids[0]


def alone() -> Engine:
    return Engine(CLUB.core(0), [CLUB.chain(0), CLUB.chain(1)], [0, 0], NOW)


def only(actions: list[Action], kind: type[Action]) -> Action:
    """Return the only action of this kind; as the engine delivers its messages to itself, it sends nothing here."""
    assert not [action for action in actions if isinstance(action, Send)]
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def encoded(action: Encode, tokens: int = 800, steps: int = 4) -> Encoded:
    roots = tuple(digest(("part", partition)) for partition in range(action.partitions))
    return Encoded(action.key, tokens, steps, 0, steps, roots, (1.0,))


def make_version(engine: Engine, begun: list[Action], now: float, state: bytes) -> list[Action]:
    """Answer all actions from `Encode` to the vote; return the actions after the vote."""
    reduce = only(engine.handle(encoded(only(begun, Encode)), now), Reduce)
    merged = Reduced(reduce.key, reduce.partition, reduce.turn, digest("merged"), (0,))
    apply = only(engine.handle(merged, now), Apply)
    record = only(engine.handle(Applied(apply.key, state), now), RecordVote)
    assert record.record.state == state
    return engine.handle(VoteRecorded(apply.key), now)


def test_a_version_step_by_step():
    engine = alone()

    # 1. Due. Fragment 0 is due at H/P = 4 steps; before that nothing happens.
    assert engine.handle(Progress(3, 1.0), NOW) == []
    assert engine.next_deadline(NOW) == NOW + 1.0
    # 2.–3. Join, quorum: we lead, everyone live has joined, the roster is closed at once. Step 4 begins.
    encode = only(engine.handle(Progress(4, 1.0), NOW + 1.0), Encode)
    assert (encode.key.fragment, encode.key.version, encode.partitions) == (0, 0, 1)
    assert engine.in_flight == 1

    # 4.–6. Commit, scatter: the input set is our commitment, our part is sent to ourselves; we are the reducer.
    reduce = only(engine.handle(encoded(encode), NOW + 1.1), Reduce)
    assert (reduce.key, reduce.partition, reduce.partitions, reduce.turn) == (encode.key, 0, 1, 0)
    assert [(one.member, one.root, one.weight) for one in reduce.inputs] == [(0, digest(("part", 0)), 800 * 800 / 4)]

    # 7.–9. Return, check, propose: the result is complete, so the outer step is taken on the side.
    apply = only(engine.handle(Reduced(reduce.key, 0, 0, digest("merged"), (0,)), NOW + 1.2), Apply)
    assert [one.root for one in apply.results if one is not None] == [digest("merged")]
    # 9. Vote: on disk before it is sent.
    record = only(engine.handle(Applied(apply.key, digest("state")), NOW + 1.3), RecordVote).record
    assert (record.fragment, record.version, record.parent) == (0, 0, CLUB.manifest.genesis[0])
    assert engine.machines[0].chain.version == 0

    # 10. Adopt: one vote of one voter is a certificate.
    actions = engine.handle(VoteRecorded(apply.key), NOW + 1.4)
    adopt = only(actions, Adopt)
    assert (adopt.applied, adopt.ours, adopt.frozen) == (apply.key, Included(apply.key, (True,)), (False,))
    assert only(actions, VersionCertified).certificate is adopt.certificate
    told = only(actions, Tell).details
    assert told.items() >= {"group": 1, "roster": 1, "tokens": 800, "minor": False, "steps": 4}.items()
    assert told.keys() - {"group", "roster", "tokens", "minor", "steps"} == {
        "grace_seconds",
        "quorum_seconds",
        "sync_seconds",
    }
    assert only(actions, Discard).key == apply.key
    assert actions.index(adopt) < actions.index(only(actions, Discard))

    certificate = adopt.certificate
    assert CLUB.chain().refusal(certificate) is None
    assert (certificate.version, certificate.state) == (1, digest("state"))
    assert certificate.voters == {ME}
    assert engine.heads()[0] == (1, 0)


def test_fragments_take_turns_and_later_versions_need_h_steps():
    engine = alone()
    make_version(engine, engine.handle(Progress(4, 1.0), NOW), NOW, digest("0.1"))
    second = engine.handle(Progress(8, 1.0), NOW + 4.0)
    assert only(second, Encode).key.fragment == 1
    make_version(engine, second, NOW + 4.0, digest("1.1"))
    assert engine.handle(Progress(11, 1.0), NOW + 7.0) == []
    third = engine.handle(Progress(12, 1.0), NOW + 8.0)  # 8 steps after the first version's round began
    assert (only(third, Encode).key.fragment, only(third, Encode).key.version) == (0, 1)
    make_version(engine, third, NOW + 8.0, digest("0.2"))
    assert engine.heads()[0] == (2, 1)


def test_without_an_answer_the_round_is_void_and_another_attempt_follows():
    engine = alone()
    first = only(engine.handle(Progress(4, 1.0), NOW), Encode)
    actions = engine.handle(Tick(), NOW + PACE.round_seconds)
    told = only(actions, Tell)
    assert (told.event, told.details["reason"]) == ("round_void", "no certificate in time")
    assert only(actions, RoundVoided) == RoundVoided(told.fragment, told.version, "no certificate in time")
    assert engine.machines[0].chain.version == 0
    later, again = NOW + PACE.round_seconds, []
    while not again:  # after a moment in which other fragments go first
        assert later < NOW + 2 * PACE.round_seconds
        later = engine.next_deadline(later)
        again = [one for one in engine.handle(Tick(), later) if isinstance(one, Encode) and one.key.fragment == 0]
    assert again[0].key != first.key
    make_version(engine, [*again], later, digest("0.1"))
    assert engine.machines[0].chain.certificates[-1].outcome.attempt == 1


def test_a_peer_that_has_voted_does_not_abstain():
    """The vote may be on disk already: for three deadlines there is no other attempt, and no abstention."""
    engine = alone()
    begun = engine.handle(Progress(4, 1.0), NOW)
    reduce = only(engine.handle(encoded(only(begun, Encode)), NOW), Reduce)
    apply = only(engine.handle(Reduced(reduce.key, 0, 0, digest("merged"), (0,)), NOW), Apply)
    only(engine.handle(Applied(apply.key, digest("state")), NOW), RecordVote)
    engine.handle(Tick(), NOW + PACE.round_seconds)
    assert engine.machines[0].bound(NOW + PACE.round_seconds)
    actions = engine.handle(VoteRecorded(apply.key), NOW + PACE.round_seconds + 1.0)  # the disk was slow
    assert only(actions, Adopt).certificate.state == digest("state")


def test_a_peer_that_cannot_save_its_vote_frees_the_others_and_stays_away_for_a_while():
    engine = alone()
    begun = engine.handle(Progress(4, 1.0), NOW)
    reduce = only(engine.handle(encoded(only(begun, Encode)), NOW), Reduce)
    apply = only(engine.handle(Reduced(reduce.key, 0, 0, digest("merged"), (0,)), NOW), Apply)
    only(engine.handle(Applied(apply.key, digest("state")), NOW), RecordVote)
    told = only(engine.handle(VoteRecorded(apply.key, written=False), NOW), Tell)
    assert (told.event, told.details["reason"]) == ("round_void", "nothing can come of it")
    assert engine.in_flight == 0
    able_again = NOW + UNABLE_DEADLINES * PACE.round_seconds
    assert engine.handle(Tick(), able_again - 0.1) == []
    again = engine.handle(Tick(), able_again)
    make_version(engine, again, able_again, digest("0.1"))
    assert sum(engine.heads()[0]) == 1


def test_a_reduction_of_too_few_inputs_makes_no_version():
    engine = alone()
    encode = only(engine.handle(Progress(4, 1.0), NOW), Encode)
    reduce = only(engine.handle(encoded(encode), NOW), Reduce)
    assert engine.handle(Reduced(reduce.key, 0, 0, None, ()), NOW) == []
    engine.handle(Tick(), NOW + PACE.round_seconds)
    assert engine.heads()[0] == (0, 0)


def test_late_answers_and_answers_to_nothing_change_nothing():
    engine = alone()
    encode = only(engine.handle(Progress(4, 1.0), NOW), Encode)
    engine.handle(Tick(), NOW + PACE.round_seconds)
    now = NOW + PACE.round_seconds
    for event in (
        encoded(encode),
        Reduced(encode.key, 0, 0, digest("merged"), (0,)),
        Applied(encode.key, digest("state")),
        VoteRecorded(encode.key),
    ):
        engine.handle(event, now)
        engine.handle(event, now)
    assert engine.heads()[0] == (0, 0)


def test_a_draining_peer_finishes_its_round_and_opens_no_other():
    engine = alone()
    begun = engine.handle(Progress(4, 1.0), NOW)
    engine.drain()
    make_version(engine, begun, NOW, digest("0.1"))
    assert engine.heads()[0] == (1, 0)
    assert engine.handle(Progress(1000, 1.0), NOW + 1000.0) == []
    assert engine.in_flight == 0


def test_a_vote_from_before_a_crash_keeps_its_peer_out_for_three_deadlines():
    engine = alone()
    begun = engine.handle(Progress(4, 1.0), NOW)
    reduce = only(engine.handle(encoded(only(begun, Encode)), NOW), Reduce)
    apply = only(engine.handle(Reduced(reduce.key, 0, 0, digest("merged"), (0,)), NOW), Apply)
    record = only(engine.handle(Applied(apply.key, digest("state")), NOW), RecordVote).record

    reborn = alone()
    reborn.restore_votes([record], NOW)
    opened = {action.key.fragment for action in reborn.handle(Progress(8, 1.0), NOW) if isinstance(action, Encode)}
    assert opened == {1}  # another fragment is free
    free_at = NOW + 3 * PACE.round_seconds
    assert reborn.machines[0].bound(free_at - 0.1)
    assert not reborn.machines[0].bound(free_at)


@pytest.mark.parametrize("versions", [12])
def test_a_lonely_run_goes_on(versions):
    engine, now, steps = alone(), NOW, 0
    for number in range(versions):
        begun: list[Action] = []
        while not begun:
            steps, now = steps + 1, now + 1.0
            begun = engine.handle(Progress(steps, 1.0), now)
        make_version(engine, begun, now, digest(number))
    assert engine.heads()[0] == (versions // 2, versions // 2)
    for index in (0, 1):
        chain = CLUB.chain(index)
        for certificate in engine.machines[index].chain.certificates:
            assert chain.refusal(certificate) is None
            chain.append(certificate)
