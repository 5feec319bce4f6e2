"""Limits on the share of strangers, and of one network, in a group (design §9)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.newcomer_limits import NewcomerLimits
from coordinator.core.actions import Send
from coordinator.group.group import Group, leader_of, read_group, read_join
from coordinator.group.joining import Joining
from coordinator.group.roster_building import RosterBuilder
from coordinator.run.manifest import TrustSpec
from dht.errors import PeerError
from dht.identity import PeerId
from tests.coordinator.builders import NOW, Club, boot

QUARTER = TrustSpec(newcomers_share=0.25, network_share=0.25)
CLUB = Club.of(24, founders=8, trust=QUARTER)
CHAIN = CLUB.chain()
LEADER = CLUB.number(leader_of(CHAIN, 0))
HERE, THERE = b"\xcb\x00\x71", b"\xc6\x33\x64"

names = st.lists(st.sampled_from(CLUB.ids), unique=True, min_size=1)
shares = st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 1.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[NewcomerLimits, list[PeerId]]:
    order = draw(names)
    founders = frozenset(draw(st.sets(st.sampled_from(order))))
    leader = draw(st.sampled_from(order))
    known = founders | draw(st.sets(st.sampled_from(order))) | {leader}
    networks = {peer: draw(st.frozensets(st.sampled_from([HERE, THERE]))) for peer in order}
    trust = TrustSpec(newcomers_share=draw(shares), network_share=draw(shares))
    return NewcomerLimits(trust, leader, known, founders, networks), order


@given(cases())
def test_whatever_joins_the_roster_is_within_its_bounds(case: tuple[NewcomerLimits, list[PeerId]]) -> None:
    limits, order = case
    members = limits.admitted(order)
    assert limits.refusal(members) is None
    assert limits.admitted(members) == members
    assert list(members) == [peer for peer in order if peer in members]
    newcomers = [peer for peer in members if peer not in limits.known]
    assert len(newcomers) <= max(1, limits.trust.newcomers_share * len(members))
    for network in (HERE, THERE):
        own = [peer for peer in members if network in limits.networks[peer] and peer not in limits.founders]
        assert len(own) <= max(1, limits.trust.network_share * len(members))


@given(cases())
def test_the_leader_and_known_peers_of_networks_of_their_own_stay(case: tuple[NewcomerLimits, list[PeerId]]) -> None:
    limits, order = case
    members = limits.admitted(order)
    assert limits.leader in members
    unsuspected = {peer for peer in order if peer in limits.known and not limits.networks[peer]}
    assert unsuspected | (limits.founders & set(order)) <= set(members)


@given(names)
def test_without_bounds_everybody_is_admitted(order: list[PeerId]) -> None:
    networks = dict.fromkeys(order, frozenset({HERE}))
    limits = NewcomerLimits(TrustSpec(), order[0], frozenset(), frozenset(), networks)
    assert limits.admitted(order) == tuple(order)


# -- in a roster


def gathering(numbers: range, networks: Mapping[int, bytes] | None = None) -> RosterBuilder:
    """Make the leader's roster builder with the joins of these peers."""
    own = CLUB.core(LEADER)
    own.boot = boot(LEADER)
    gathered = RosterBuilder(own, CHAIN, attempt=0)
    for number in numbers:
        named = () if networks is None or number not in networks else (networks[number],)
        statement = CLUB.join(number, CHAIN, networks=named)
        assert gathered.add(statement, read_join(statement, CHAIN, NOW), NOW)
    return gathered


def issued(gathered: RosterBuilder) -> list[Send]:
    actions = gathered.close(frozenset(gathered.joins), frozenset(), minor_allowed=False, now=NOW)
    return [action for action in actions if isinstance(action, Send)]


def test_sybils_of_one_leader_take_a_quarter_of_its_roster() -> None:
    gathered = gathering(range(24))
    group = read_group(issued(gathered)[0].message, CHAIN, NOW)  # type: ignore[arg-type]
    assert len(group.members) == 10
    assert CLUB.peers(range(8)) <= set(group.members)
    assert gathered.lacking(frozenset(group.members), frozenset()) == []  # peers that have to wait are not asked for


def test_a_newcomer_that_has_to_wait_is_not_waited_for() -> None:
    gathered = gathering(range(24))
    assert gathered.due_at() > NOW
    assert issued(gathered)  # all live peers that have room have joined


def test_peers_of_one_network_take_a_quarter_at_most() -> None:
    club_networks = dict.fromkeys(range(8, 24), HERE)
    members = read_group(issued(gathering(range(24), club_networks))[0].message, CHAIN, NOW).members  # type: ignore[arg-type]
    assert len(set(members) - CLUB.peers(range(8))) == 2


def stuffed(count: int) -> tuple[Joining, Group]:
    """Return a member, and the group of a leader that admits `count` newcomers without limits."""
    member = next(number for number in range(8) if number != LEADER)
    return Joining(CLUB.core(member), CHAIN, 0), CLUB.group(CHAIN, range(8 + count))


@pytest.mark.parametrize(("newcomers", "refused"), [(2, False), (3, True), (16, True)])
def test_members_hold_the_leader_to_the_bounds(newcomers: int, refused: bool) -> None:
    joining, group = stuffed(newcomers)
    with pytest.raises(PeerError, match="too many newcomers") if refused else nullcontext():
        joining.check_limits(group)


def test_a_member_counts_a_peer_where_it_sees_it_call() -> None:
    club = Club.of(24, founders=8, trust=TrustSpec(network_share=0.25))
    core = club.core(0)
    joining = Joining(core, club.chain(), 0)
    group = club.group(club.chain(), range(12))
    joining.check_limits(group)
    core.origins = dict.fromkeys(club.ids[8:12], HERE)
    with pytest.raises(PeerError, match="too many members of one network"):
        joining.check_limits(group)
    core.origins = dict.fromkeys(club.ids[:8], HERE)  # founders are the organiser's choice
    joining.check_limits(group)


def test_a_member_asks_for_nobody_for_whom_the_roster_has_no_room() -> None:
    """It counts roster members even if it has not received their joins."""
    group = CLUB.group(CHAIN, range(10))
    joining, _ = stuffed(0)
    for number in range(10, 24):
        joining.hear(CLUB.join(number, CHAIN), NOW)
    order = [CLUB.number(peer) for peer in CLUB.group(CHAIN, range(8, 24)).members]
    wanted = [number for number in order[:2] if number >= 10]
    assert wanted
    assert [CLUB.number(one.sender) for one in joining.lacking(group, frozenset())] == wanted
