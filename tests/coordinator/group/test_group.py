"""Joins, rosters, commitments: the accepted ones, and the reasons why others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.chain.chain import Chain, beacon_order
from coordinator.core.actions import Send
from coordinator.group.group import (
    JOIN_TOLERANCE_SECONDS,
    OtherBaseError,
    leader_of,
    read_commit,
    read_group,
    read_input_set,
    read_join,
)
from coordinator.group.roster_building import JOINS_MAX, REVISIONS_MAX, RosterBuilder
from coordinator.simulator.simulation import make_signers
from coordinator.wire.messages import Bundle, Join, Roster
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Context, Statement, make_statement
from tests.coordinator.rigs import (
    PACE,
    PEERS,
    UNIX_SECONDS,
    certificate,
    chain_of,
    commit,
    core,
    group_of,
    join,
    roster,
    say,
)

FIVE = PEERS[:5]


@pytest.fixture
def chain() -> Chain:
    return chain_of(core())


def unsigned(statement: Statement) -> Statement:
    return Statement(context=statement.context, sender=statement.sender, body=statement.body, signature=bytes(32))


# -- joins


def test_a_join_is_read(chain: Chain) -> None:
    assert read_join(join(chain, PEERS[7]), chain, UNIX_SECONDS).attempt == 0


def test_joins_that_do_not_count(chain: Chain) -> None:
    good = join(chain, PEERS[1])
    late = UNIX_SECONDS + 60 + JOIN_TOLERANCE_SECONDS
    assert read_join(good, chain, late)
    refused = {
        "has expired": (good, late + 1),
        "is not signed": (unsigned(good), UNIX_SECONDS),
        "names the wrong leader": (join(chain, PEERS[1], leader=PEERS[9]), UNIX_SECONDS),
        "joins another version": (
            say(PEERS[1], "join", chain, chain.digest, good.read(Join), version=1),
            UNIX_SECONDS,
        ),
        "is no join": (say(PEERS[1], "vote", chain, chain.digest, good.read(Join)), UNIX_SECONDS),
    }
    for reason, (statement, now) in refused.items():
        with pytest.raises(PeerError, match=reason):
            read_join(statement, chain, now)
    with pytest.raises(OtherBaseError):
        read_join(say(PEERS[1], "join", chain, bytes(32), good.read(Join)), chain, UNIX_SECONDS)


def test_the_leaders_take_turns(chain: Chain) -> None:
    assert [leader_of(chain, attempt) for attempt in range(5)] == list(chain.leaders())
    assert leader_of(chain, 5) == leader_of(chain, 0)


# -- rosters


def test_a_roster_makes_a_group(chain: Chain) -> None:
    group = group_of(chain, PEERS[:6])
    assert group.members == beacon_order(chain.beacon(), PEERS[:6])
    assert group.leader == leader_of(chain, 0)
    assert group.voters == group.contributors == frozenset(PEERS[:6])
    assert group.reducers == group.members
    assert [group.reducer(partition) for partition in range(6)] == list(group.reducers)
    assert group.proposers()[0] == group.leader
    assert len(set(group.proposers())) == 2
    assert not group.minor


@pytest.mark.parametrize(
    ("redone", "by"),
    [
        ({0}, [1]),
        ({5}, [0]),
        ({0, 1}, [2, 3]),
        ({1, 3, 5}, [2, 4, 0]),
        ({0, 1, 2, 4, 5}, [3, 3, 3, 3, 3]),
        (set(range(6)), [1, 2, 3, 4, 5, 0]),
    ],
)
def test_redone_partitions_go_round_reducers_whose_own_partition_stands(
    chain: Chain, redone: set[int], by: list[int]
) -> None:
    """They take turns from the next in order: if it were always the next, two silent ones in a row would void it."""
    group = group_of(chain, PEERS[:6])
    assert [group.reducer(partition, redone) for partition in sorted(redone)] == [group.reducers[one] for one in by]
    stands = set(range(6)) - redone
    assert all(group.reducer(partition, redone) == group.reducers[partition] for partition in stands)


def test_witnesses_and_peers_that_nobody_can_dial_reduce_nothing(chain: Chain) -> None:
    joins = (
        join(chain, PEERS[0], contributes=False),
        join(chain, PEERS[1], dialable=False),
        join(chain, PEERS[2]),
    )
    body = Roster(attempt=0, revision=0, joins=joins)
    group = read_group(say(leader_of(chain, 0), "roster", chain, chain.digest, body), chain, UNIX_SECONDS)
    assert group.reducers == (PEERS[2],)
    assert group.contributors == frozenset(PEERS[1:3])
    body = Roster(attempt=0, revision=0, joins=joins[:1])
    with pytest.raises(PeerError, match="nobody who could reduce"):
        read_group(say(leader_of(chain, 0), "roster", chain, chain.digest, body), chain, UNIX_SECONDS)


def test_where_nobody_can_be_dialled_everybody_who_contributes_reduces(chain: Chain) -> None:
    joins = (join(chain, PEERS[0], contributes=False), *(join(chain, one, dialable=False) for one in PEERS[1:3]))
    body = Roster(attempt=0, revision=0, joins=joins)
    group = read_group(say(leader_of(chain, 0), "roster", chain, chain.digest, body), chain, UNIX_SECONDS)
    assert set(group.reducers) == set(PEERS[1:3])


def test_rosters_that_are_refused(chain: Chain) -> None:
    good = roster(chain, FIVE)
    body = good.read(Roster)
    leader, other = leader_of(chain, 0), leader_of(chain, 1)
    twice = Roster(attempt=0, revision=0, joins=(body.joins[0], body.joins[0]))
    mixed = Roster(attempt=0, revision=0, joins=(body.joins[0], join(chain, PEERS[1], attempt=1)))
    refused = {
        "is no roster": say(leader, "bundle", chain, chain.digest, body),
        "is for another version": say(leader, "roster", chain, chain.digest, body, version=4),
        "comes from the wrong leader": say(other, "roster", chain, chain.digest, body),
        "is not signed by the leader": unsigned(good),
        "lists a member twice": say(leader, "roster", chain, chain.digest, twice),
        "holds a join for another attempt": say(leader, "roster", chain, chain.digest, mixed),
    }
    for reason, statement in refused.items():
        with pytest.raises(PeerError, match=reason):
            read_group(statement, chain, UNIX_SECONDS)
    with pytest.raises(OtherBaseError):
        read_group(say(leader, "roster", chain, bytes(32), body), chain, UNIX_SECONDS)


# -- commitments


def test_a_bundle_fixes_the_input_set(chain: Chain) -> None:
    group = group_of(chain, FIVE)
    commits = tuple(commit(chain, group, member) for member in FIVE[:3])
    bundle = say(
        group.leader, "bundle", chain, group.key.roster_id, Bundle(commits=commits, members=len(group.members))
    )
    inputs = read_input_set(bundle, group, "int8", chain)
    assert inputs.peers == FIVE[:3]
    assert inputs.digest == bundle.digest
    assert (inputs.index(FIVE[2]), inputs.index(FIVE[3])) == (2, None)


def test_a_hostile_leader_needs_the_work_of_more_honest_members_than_there_are_hostile(chain: Chain) -> None:
    """Fewer than a third of the askers never make half of an input set, or of a partition's inputs."""
    for asked in range(1, len(PEERS) + 1):
        for seated in range(1, asked + 1):
            group = group_of(chain, PEERS[:seated])
            hostile = -(-asked // 3) - 1
            assert group.inputs_needed(asked - seated) > 2 * hostile
            assert group.merged_needed(seated, asked - seated) > 2 * hostile
            if seated == asked:
                assert group.merged_needed(seated, 0) <= group.inputs_needed(0) <= asked - hostile


def test_a_peer_on_probation_does_not_count_towards_an_input_set(chain: Chain) -> None:
    group = replace(group_of(chain, FIVE), probation=frozenset(FIVE[3:]))
    assert group.counted(FIVE) == 3
    assert group.counted(FIVE[2:]) == 1
    assert group.inputs_needed(0) == 2
    assert group.inputs_needed(1) == 3


def test_commitments_that_do_not_count(chain: Chain) -> None:
    group, other = group_of(chain, FIVE), group_of(chain, PEERS[:4])
    good = commit(chain, group, FIVE[1])
    refused = {
        "does not belong": (commit(chain, other, FIVE[1]), "int8"),
        "wrong form": (good, "int4"),
        "is not signed": (unsigned(good), "int8"),
        "no commitment": (say(FIVE[1], "check", chain, group.key.roster_id, Bundle(commits=(good,))), "int8"),
    }
    for reason, (statement, codec) in refused.items():
        with pytest.raises(PeerError, match=reason):
            read_commit(statement, group, codec, chain.rules)


@pytest.mark.parametrize(
    ("tokens", "steps", "windows"), [(101, 1, 1), (2**53, 1, 1), (0, 1, 1), (100, 0, 0), (200, 2, 1), (200, 2, 3)]
)
def test_a_peer_cannot_claim_more_work_than_its_steps_can_hold(
    chain: Chain, tokens: int, steps: int, windows: int
) -> None:
    """Weights are tokens²/steps: a lie about either would count squared."""
    group = group_of(chain, FIVE)
    rules = replace(chain.rules, tokens_per_step=100)
    read_commit(commit(chain, group, FIVE[1], tokens=200, steps=2), group, "int8", rules)
    statement = commit(chain, group, FIVE[1], tokens=tokens, steps=steps, windows=windows)
    with pytest.raises(PeerError, match="nobody can have done"):
        read_commit(statement, group, "int8", rules)


def test_bundles_that_are_refused(chain: Chain) -> None:
    group = group_of(chain, FIVE)
    commits = (commit(chain, group, FIVE[0]), commit(chain, group, FIVE[1]))
    stranger = next(peer for peer in FIVE if peer != group.leader)
    body = Bundle(commits=commits, members=len(group.members))
    refused = {
        "is not signed by the leader": say(stranger, "bundle", chain, group.key.roster_id, body),
        "two commitments": say(
            group.leader,
            "bundle",
            chain,
            group.key.roster_id,
            Bundle(commits=(*commits, commits[0]), members=len(group.members)),
        ),
        "no bundle of this group": say(group.leader, "bundle", chain, bytes(32), body),
    }
    for reason, statement in refused.items():
        with pytest.raises(PeerError, match=reason):
            read_input_set(statement, group, "int8", chain)


# -- gathering


def gathering(chain: Chain, me: PeerId) -> RosterBuilder:
    return RosterBuilder(core(PEERS.index(me)), chain, 0)


def add(gathered: RosterBuilder, *peers: PeerId, now: float = 0.0, **changes: object) -> bool:
    news = False
    for peer in peers:
        statement = join(gathered.chain, peer, **changes)
        news = gathered.add(statement, statement.read(Join), now)
    return news


def issued(actions: list[object]) -> Roster | None:
    sends = [action for action in actions if isinstance(action, Send)]
    statements = [send.message for send in sends if isinstance(send.message, Statement)]
    return statements[0].read(Roster) if statements else None


def members(found: Roster | None) -> set[str]:
    assert found is not None
    return {one.sender for one in found.joins}


NOBODY = frozenset[PeerId]()


def test_the_roster_comes_when_everyone_live_has_joined(chain: Chain) -> None:
    gathered = gathering(chain, leader_of(chain, 0))
    add(gathered, *FIVE[:4])
    assert gathered.close(frozenset(FIVE), NOBODY, False, 0.1) == []
    assert gathered.reason.endswith("1 missing")
    add(gathered, FIVE[4], now=0.2)
    assert members(issued(list(gathered.close(frozenset(FIVE), NOBODY, False, 0.2)))) == set(FIVE)


def test_without_a_quorum_the_grace_window_starts_all_the_same(chain: Chain) -> None:
    """A live peer that does not join must not stop a swarm that cannot reach K without it."""
    gathered = gathering(chain, leader_of(chain, 0))
    pace = PACE.model_copy(update={"quorum": 5})
    gathered.core.manifest = core(0, pace=pace).manifest
    add(gathered, *FIVE[:4])
    assert gathered.quorum_at is None
    end = gathered.due_at()
    assert end <= PACE.round_seconds / 2
    assert gathered.close(frozenset(FIVE), NOBODY, False, end - 0.01) == []
    assert issued(list(gathered.close(frozenset(FIVE), NOBODY, False, end + 0.01))) is not None


def test_late_joins_revise_the_roster_a_few_times(chain: Chain) -> None:
    gathered = gathering(chain, leader_of(chain, 0))
    add(gathered, *FIVE[:3])
    revisions = [issued(list(gathered.close(frozenset(FIVE[:3]), NOBODY, False, 0.1)))]
    for peer in (*FIVE[3:], *PEERS[5:8]):
        add(gathered, peer)
        revisions.append(issued(list(gathered.close(frozenset(FIVE[:3]), NOBODY, False, 0.2))))
    assert [found.revision for found in revisions if found is not None] == list(range(REVISIONS_MAX + 1))
    assert members(revisions[2]) == set(FIVE)


def test_nothing_is_issued_twice(chain: Chain) -> None:
    gathered = gathering(chain, leader_of(chain, 0))
    add(gathered, *FIVE)
    assert gathered.close(frozenset(FIVE), NOBODY, False, 0.1)
    assert gathered.close(frozenset(FIVE), NOBODY, False, 0.2) == []


def test_a_silent_peer_is_left_out_if_the_others_are_enough(chain: Chain) -> None:
    gathered = gathering(chain, leader_of(chain, 0))
    add(gathered, *FIVE)
    silent = frozenset(FIVE[:1])
    found = issued(list(gathered.close(frozenset(FIVE), silent, False, 0.1)))
    assert members(found) == set(FIVE[1:])
    assert gathered.lacking(frozenset(FIVE[1:]), silent) == []
    assert [one.sender for one in gathered.lacking(frozenset(FIVE[1:]), NOBODY)] == [FIVE[0]]


def test_a_silent_peer_is_taken_where_there_are_too_few_without_it(chain: Chain) -> None:
    gathered = gathering(chain, leader_of(chain, 0))
    add(gathered, *FIVE[:3])
    found = issued(list(gathered.close(frozenset(FIVE[:3]), frozenset(FIVE[:1]), False, 3.9)))
    assert members(found) == set(FIVE[:3])


def test_a_new_life_replaces_the_older_ones_join(chain: Chain) -> None:
    leader = leader_of(chain, 0)
    gathered, other = gathering(chain, leader), next(peer for peer in FIVE if peer != leader)
    assert add(gathered, other)
    assert not add(gathered, other)
    assert add(gathered, other, boot=bytes([99]) * 16)
    assert gathered.contributors() == 1


def test_joins_are_bounded(chain: Chain) -> None:
    signers, _ = make_signers(JOINS_MAX + 5, 77, real_keys=False)
    gathered = gathering(chain, leader_of(chain, 0))
    body = join(chain, FIVE[0]).read(Join)
    for signer in signers:
        context = Context(run_id=chain.rules.run_id, kind="join", fragment=0, version=0, group=chain.digest)
        gathered.add(make_statement(signer, context, body), body, 0.0)
    assert len(gathered.joins) == JOINS_MAX


def test_a_group_below_the_share_is_minor(chain: Chain) -> None:
    chain.append(certificate(chain, FIVE))
    assert group_of(chain, FIVE[:2]).minor
    assert not group_of(chain, FIVE[:3]).minor
