"""Joins, rosters, commitments and bundles (design §6.2 steps 2–4): every reason to refuse one, one at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.certificate import is_minor, votes_needed
from coordinator.chain import beacon_order
from coordinator.group import (
    JOIN_TOLERANCE_SECONDS,
    OtherBaseError,
    leader_of,
    read_commit,
    read_group,
    read_input_set,
    read_join,
)
from coordinator.manifest import PEERS_PER_GROUP_MAX
from coordinator.messages import Abstain, Bundle, Roster
from dht.errors import PeerError
from tests.coordinator.builders import CODEC, NOW, Club, boot, digest, forged

CLUB = Club.of(6, founders=4)
CHAIN = CLUB.grow(CLUB.chain(), (0, 1, 2, 3))
EVERYONE = (0, 1, 2, 3)
LEADER = CLUB.number(leader_of(CHAIN, 0))
OTHER = next(number for number in EVERYONE if number != LEADER)
GROUP = CLUB.group(CHAIN, EVERYONE)
COMMITS = [CLUB.commit(number, GROUP) for number in EVERYONE]


def joins(*numbers, **changes):
    return [CLUB.join(number, CHAIN, **changes) for number in numbers]


# -- joins


def test_a_join_of_this_base_counts():
    join = read_join(CLUB.join(5, CHAIN), CHAIN, NOW)
    assert (join.boot, join.leader) == (boot(5), CLUB.ids[LEADER])  # anybody may ask, not only the active set


PLACE = CLUB.at(CHAIN)
JOIN = CLUB.join(1, CHAIN)
BODY = read_join(JOIN, CHAIN, NOW)


@pytest.mark.parametrize(
    ("statement", "error", "reason"),
    [
        (CLUB.say(1, "join", BODY, **PLACE, run_id=digest("run")), PeerError, "is no join of this run"),
        (CLUB.say(1, "roster", BODY, **PLACE), PeerError, "is no join of this run"),
        (CLUB.say(1, "join", BODY, **{**PLACE, "version": 2}), PeerError, "joins another version"),
        (CLUB.say(1, "join", BODY, **{**PLACE, "fragment": 1}), PeerError, "joins another version"),
        (CLUB.say(1, "join", BODY, **{**PLACE, "group": digest("x")}), OtherBaseError, "joins another base"),
        (CLUB.join(1, CHAIN, leader=CLUB.ids[OTHER]), PeerError, "names the wrong leader"),
        (CLUB.join(1, CHAIN, leader=CLUB.ids[5]), PeerError, "names the wrong leader"),
        (forged(JOIN), PeerError, "is not signed by its sender"),
        (JOIN.model_copy(update={"sender": CLUB.ids[2]}), PeerError, "is not signed by its sender"),
        (CLUB.say(1, "join", Abstain(attempt=0), **PLACE), PeerError, "Join."),
    ],
)
def test_a_join_that_is_wrong_in_one_thing_is_refused(statement, error, reason):
    with pytest.raises(error, match=reason) as caught:
        read_join(statement, CHAIN, NOW)
    assert type(caught.value) is error


def test_a_join_expires_but_clocks_may_differ():
    join = CLUB.join(1, CHAIN, expires_unix_seconds=int(NOW))
    assert read_join(join, CHAIN, NOW + JOIN_TOLERANCE_SECONDS)
    with pytest.raises(PeerError, match="has expired"):
        read_join(join, CHAIN, NOW + JOIN_TOLERANCE_SECONDS + 1)


@given(st.integers(0, 1000))
def test_attempts_go_round_the_active_set(attempt):
    order = CHAIN.leaders()
    assert leader_of(CHAIN, attempt) == order[attempt % len(order)]
    assert {leader_of(CHAIN, attempt + turn) for turn in range(len(order))} == CHAIN.active_set()


# -- rosters


@pytest.mark.parametrize(
    ("statement", "error", "reason"),
    [
        (CLUB.roster(CHAIN, joins(0, 1), attempt=0), None, ""),
        (CLUB.roster(CHAIN, joins(0, 1, 0)), PeerError, "lists a member twice"),
        (CLUB.roster(CHAIN, joins(0, attempt=1)), PeerError, "holds a join for another attempt"),
        (CLUB.roster(CHAIN, [*joins(0), forged(JOIN)]), PeerError, "is not signed by its sender"),
        (CLUB.roster(CHAIN, joins(0, 1, dialable=False)), PeerError, "has nobody who could reduce"),
        (CLUB.roster(CHAIN, joins(0, 1, contributes=False)), PeerError, "has nobody who could reduce"),
        (CLUB.roster(CHAIN, joins(0, 1, expires_unix_seconds=0)), PeerError, "has expired"),
        (forged(CLUB.roster(CHAIN, joins(0, 1))), PeerError, "is not signed by the leader"),
    ],
)
def test_a_roster_is_read_or_refused_for_one_reason(statement, error, reason):
    if error is None:
        assert read_group(statement, CHAIN, NOW).members
        return
    with pytest.raises(error, match=reason):
        read_group(statement, CHAIN, NOW)


@pytest.mark.parametrize(
    ("number", "kind", "context", "error", "reason"),
    [
        (LEADER, "roster", {"run_id": digest("run")}, PeerError, "is no roster of this run"),
        (LEADER, "bundle", {}, PeerError, "is no roster of this run"),
        (LEADER, "roster", {"version": 0}, PeerError, "is for another version"),
        (LEADER, "roster", {"fragment": 1}, PeerError, "is for another version"),
        (LEADER, "roster", {"group": digest("x")}, OtherBaseError, "is for another base"),
        (OTHER, "roster", {}, PeerError, "comes from the wrong leader"),
        (5, "roster", {}, PeerError, "comes from the wrong leader"),
    ],
)
def test_a_roster_in_the_wrong_place_is_refused(number, kind, context, error, reason):
    body = Roster(attempt=0, revision=0, joins=tuple(joins(*EVERYONE)))
    with pytest.raises(error, match=reason) as caught:
        read_group(CLUB.say(number, kind, body, **{**PLACE, **context}), CHAIN, NOW)
    assert type(caught.value) is error


def test_a_group_has_at_most_32_members():
    club = Club.of(PEERS_PER_GROUP_MAX + 1)
    asked = [club.join(number, club.chain()) for number in range(PEERS_PER_GROUP_MAX + 1)]
    with pytest.raises(ValueError, match="at most 32 items"):
        Roster(attempt=0, revision=0, joins=tuple(asked))
    longer = Roster.model_construct(attempt=0, revision=0, joins=tuple(asked))
    leader = club.number(leader_of(club.chain(), 0))
    with pytest.raises(PeerError, match=r"Roster\.joins"):
        read_group(club.say(leader, "roster", longer, **club.at(club.chain())), club.chain(), NOW)
    full = read_group(club.roster(club.chain(), asked[:PEERS_PER_GROUP_MAX]), club.chain(), NOW)
    assert len(full.members) == PEERS_PER_GROUP_MAX


def test_members_are_in_beacon_order_whatever_the_leader_wrote():
    backwards = read_group(CLUB.roster(CHAIN, joins(3, 2, 1, 0)), CHAIN, NOW)
    assert backwards.members == GROUP.members == beacon_order(CHAIN.beacon(), CLUB.peers(EVERYONE))
    assert backwards.key != GROUP.key  # yet another group, with another name


def test_whoever_cannot_be_dialled_or_brings_nothing_does_not_reduce():
    asked = [*joins(0), *joins(1, dialable=False), *joins(2, contributes=False), *joins(3)]
    group = read_group(CLUB.roster(CHAIN, asked), CHAIN, NOW)
    assert set(group.reducers) == CLUB.peers((0, 3))
    assert group.contributors == CLUB.peers((0, 1, 3))
    assert group.voters == CLUB.peers(EVERYONE)


def test_partitions_are_reduced_in_turn():
    for partition in range(GROUP.partitions):
        assert GROUP.reducer(partition, 0) == GROUP.members[partition]
        assert GROUP.reducer(partition, 1) == GROUP.members[(partition + 1) % 4]


def test_after_the_leader_the_next_in_order_may_propose():
    assert GROUP.proposers() == (GROUP.members[0], GROUP.members[1])
    assert GROUP.leader == GROUP.members[0]
    alone = CLUB.group(CHAIN, [LEADER])
    assert alone.proposers() == (alone.leader,)


@given(st.sets(st.sampled_from(EVERYONE), min_size=1), st.sets(st.sampled_from(range(6))))
def test_shares_of_a_group_are_counted_over_its_voters(members, numbers):
    group, peers = CLUB.group(CHAIN, sorted(members)), CLUB.peers(numbers)
    inside = len(members & numbers)
    assert group.more_than_a_third(peers) == (3 * inside > len(members))
    assert group.more_than_two_thirds(peers) == (3 * inside > 2 * len(members))
    assert group.votes_needed == votes_needed(len(members))
    assert group.minor == is_minor(group.voters, CHAIN.active_set(), 0.5) == (len(members) <= 2)


# -- commitments


def test_a_members_commitment_counts():
    assert read_commit(COMMITS[1], GROUP, CODEC, verifier_ok=True).tokens == 100


@pytest.mark.parametrize(
    ("statement", "signed", "reason"),
    [
        (COMMITS[1], False, "is not signed by its sender"),
        (CLUB.commit(5, GROUP), True, "does not belong to this group"),
        (CLUB.commit(1, CLUB.group(CHAIN, (0, 1, 2))), True, "does not belong to this group"),
        (CLUB.commit(1, GROUP, codec="int4"), True, "commits in the wrong form"),
        (CLUB.commit(1, GROUP, part_roots=(digest(0),)), True, "commits in the wrong form"),
        (CLUB.say(1, "commit", Abstain(attempt=0), **CLUB.in_group(GROUP)), True, "Commit."),
        (CLUB.say(1, "bundle", Abstain(attempt=0), **CLUB.in_group(GROUP)), True, "is no commitment to this round"),
        (CLUB.commit(1, CLUB.group(CLUB.chain(), EVERYONE)), True, "is no commitment to this round"),
    ],
)
def test_a_commitment_that_is_wrong_in_one_thing_is_refused(statement, signed, reason):
    with pytest.raises(PeerError, match=reason):
        read_commit(statement, GROUP, CODEC, signed)


def test_a_witness_commits_to_nothing():
    group = CLUB.group(CHAIN, EVERYONE, witnesses=[1])
    with pytest.raises(PeerError, match="does not belong to this group"):
        read_commit(CLUB.commit(1, group), group, CODEC, verifier_ok=True)


# -- input sets


def test_a_bundle_fixes_the_input_set():
    inputs = read_input_set(CLUB.bundle(GROUP, COMMITS), GROUP, CODEC, CHAIN)
    assert inputs.peers == tuple(CLUB.ids[number] for number in EVERYONE)
    assert [inputs.index(CLUB.ids[number]) for number in (*EVERYONE, 5)] == [0, 1, 2, 3, None]
    part = read_input_set(CLUB.bundle(GROUP, COMMITS[:3]), GROUP, CODEC, CHAIN)
    assert part.digest != inputs.digest
    assert (inputs.inputs_needed_of, part.inputs_needed_of) == (2, 2)


IN_GROUP = CLUB.in_group(GROUP)
BUNDLE = Bundle(commits=tuple(COMMITS))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (CLUB.say(LEADER, "bundle", BUNDLE, **IN_GROUP, run_id=digest("run")), "is no bundle of this group"),
        (CLUB.say(LEADER, "roster", BUNDLE, **IN_GROUP), "is no bundle of this group"),
        (CLUB.say(LEADER, "bundle", BUNDLE, **{**IN_GROUP, "group": digest("x")}), "is no bundle of this group"),
        (CLUB.say(OTHER, "bundle", BUNDLE, **IN_GROUP), "is not signed by the leader"),
        (forged(CLUB.bundle(GROUP, COMMITS)), "is not signed by the leader"),
        (CLUB.bundle(GROUP, [*COMMITS, COMMITS[0]]), "holds two commitments of one member"),
        (CLUB.bundle(GROUP, [*COMMITS, CLUB.commit(0, GROUP, tokens=7)]), "holds two commitments of one member"),
        (CLUB.bundle(GROUP, [*COMMITS[1:], forged(COMMITS[0])]), "is not signed by its sender"),
        (CLUB.bundle(GROUP, [*COMMITS, CLUB.commit(5, GROUP)]), "does not belong to this group"),
        (CLUB.bundle(GROUP, [CLUB.commit(1, GROUP, codec="fp32")]), "commits in the wrong form"),
    ],
)
def test_a_bundle_that_is_wrong_in_one_thing_is_refused(statement, reason):
    with pytest.raises(PeerError, match=reason):
        read_input_set(statement, GROUP, CODEC, CHAIN)


def test_a_commitment_from_another_run_does_not_enter_a_bundle():
    body = read_commit(COMMITS[1], GROUP, CODEC, verifier_ok=True)
    foreign = CLUB.say(1, "commit", body, **IN_GROUP, run_id=digest("run"))
    with pytest.raises(PeerError, match="is not signed by its sender"):
        read_input_set(CLUB.bundle(GROUP, [foreign]), GROUP, CODEC, CHAIN)
