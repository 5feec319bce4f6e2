"""The waypoint at which an invite has a newcomer begin, and its proof (design §8: the invite's heads)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Conviction
from coordinator.chain.chain import ACTIVE_CERTIFICATES, Chain
from coordinator.chain.waypoint import (
    SETTLED_VERSIONS,
    Waypoint,
    chain_of_tail,
    heads_at,
    heads_digest,
    knows,
    newest_waypoint,
    tail,
)
from coordinator.core.actions import FetchState, Tell
from coordinator.core.events import FetchFailed, PresenceSeen, Received, StateFetched, Tick
from coordinator.engine.engine import Engine
from coordinator.wire.messages import AskChainNote, ChainNote
from coordinator.wire.presence import HEAD_BYTES
from dht.errors import PeerError
from tests.coordinator.builders import NOW, Club, digest, forged, presence

CLUB = Club.of(6, founders=4)
EVERYONE = (0, 1, 2, 3)
KEPT = 12
GUIDE = CLUB.ids[1]


def empty(fragment: int = 0, kept: int = KEPT) -> Chain:
    return Chain(replace(CLUB.rules, chain_kept=kept), fragment, CLUB.manifest.genesis[fragment])


LONG = [CLUB.grow(empty(fragment), *[EVERYONE] * 40) for fragment in range(2)]
WAYPOINT = newest_waypoint(LONG)
assert WAYPOINT is not None


def chains_at(version: int) -> list[Chain]:
    """Build chains like a newcomer, from the tails that end at this version."""
    heads = heads_at(LONG, version)
    assert heads is not None
    found = zip(LONG, heads, strict=True)
    return [chain_of_tail(empty(one.fragment), version, head, tail(one, version)) for one, head in found]


# -- the version


def test_an_invite_points_before_what_few_made_however_much_that_is() -> None:
    few = CLUB.grow(CLUB.grow(empty(kept=1024), *[EVERYONE] * 20), *[(0, 1)] * 100)
    found = newest_waypoint([few])
    assert found is not None
    assert found.version == 20


def test_a_waypoint_is_a_version_that_all_hold_and_that_has_settled() -> None:
    ahead = [LONG[0], CLUB.grow(LONG[1].truncated(LONG[1].version), EVERYONE)]
    found = newest_waypoint(ahead)
    assert found == WAYPOINT
    assert found.version == 40 - SETTLED_VERSIONS
    assert knows(LONG, found)
    assert not knows(LONG, replace(found, digest=digest("other")))
    assert knows(LONG, Waypoint(41, found.digest)) is None, "too far ahead"
    assert knows(LONG, Waypoint(20, found.digest)) is None, "not kept any more"


def test_a_young_run_has_none() -> None:
    assert newest_waypoint([CLUB.grow(empty(), *[EVERYONE] * SETTLED_VERSIONS)]) is None
    assert newest_waypoint([empty(0), LONG[1]]) is None


def test_a_fragment_left_far_behind_leaves_no_common_version() -> None:
    assert newest_waypoint([LONG[0], CLUB.grow(empty(1), *[EVERYONE] * 9)]) is None


def test_a_waypoint_lies_before_a_branch_that_may_be_left() -> None:
    """The branch of a network partition's smaller side begins with a minor version."""
    chain = CLUB.grow(empty(), *[EVERYONE] * 9, (0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1))
    assert chain.certificates[-7].outcome.minor
    found = newest_waypoint([chain])
    assert found is not None
    assert found.version == 9


def test_the_digest_covers_run_version_and_every_head() -> None:
    heads = (digest(1), digest(2))
    values = {
        heads_digest(b"r" * 32, 7, heads),
        heads_digest(b"s" * 32, 7, heads),
        heads_digest(b"r" * 32, 8, heads),
        heads_digest(b"r" * 32, 7, heads[::-1]),
        heads_digest(b"r" * 32, 7, heads[:1]),
    }
    assert len(values) == 5


# -- the tail


@given(st.lists(st.sampled_from([EVERYONE, (0, 1, 2), (1, 2, 3, 4), (0, 1)]), min_size=1, max_size=14), st.data())
def test_a_tail_gives_what_the_whole_chain_gives(rosters: list[tuple[int, ...]], data: st.DataObject) -> None:
    chain = CLUB.grow(empty(), EVERYONE, *rosters)
    version = data.draw(st.integers(max(1, chain.first_version), chain.version))
    head = chain.digest_at(version)
    assert head is not None
    found = chain_of_tail(empty(), version, head, tail(chain, version))
    whole = chain.truncated(version)
    assert len(found.certificates) == min(version, ACTIVE_CERTIFICATES)
    assert (found.version, found.digest, found.state) == (version, whole.digest, whole.state)
    assert (found.active_set(), found.leaders()) == (whole.active_set(), whole.leaders())
    assert found.first_version == (0 if version <= ACTIVE_CERTIFICATES else version)
    for certificate in chain.after(version, 99):
        assert found.refusal(certificate) is None
        found.append(certificate)
    assert found.digest == chain.digest


def test_only_the_tail_of_that_head_is_taken() -> None:
    head = LONG[0].digest_at(34)
    assert head is not None
    good = tail(LONG[0], 34)
    assert chain_of_tail(empty(), 34, head, good).digest == head
    unsigned = good[2].model_copy(update={"votes": tuple(map(forged, good[2].votes))})
    thin = good[2].model_copy(update={"votes": good[2].votes[:2]})
    convicting = good[2].model_copy(update={"convictions": (Conviction(peer=CLUB.ids[3], evidence=digest("none")),)})
    foreign = tail(CLUB.grow(empty(), *[EVERYONE] * 29, (0, 1, 2), *[EVERYONE] * 4), 34)
    for wrong in (
        (),
        good[1:],
        good[:-1],
        good[::-1],
        tail(LONG[1], 34),
        tail(LONG[0], 35),
        (*good[:2], unsigned, good[3]),
        (*good[:2], thin, good[3]),
        (*good[:2], convicting, good[3]),
        (foreign[0], *good[1:]),
        foreign,
    ):
        with pytest.raises(PeerError):
            chain_of_tail(empty(), 34, head, wrong)


def test_a_version_that_is_not_kept_has_no_tail() -> None:
    assert tail(LONG[0], LONG[0].first_version - 1) == ()
    assert tail(LONG[0], 41) == ()
    assert len(tail(LONG[0], LONG[0].first_version)) == ACTIVE_CERTIFICATES


def test_from_the_first_versions_on_a_tail_begins_at_the_genesis() -> None:
    chain = CLUB.grow(empty(), EVERYONE, EVERYONE)
    head = chain.digest
    assert chain_of_tail(empty(), 2, head, tail(chain, 2)).first_version == 0
    other = Chain(chain.rules, 0, digest("another genesis"))
    with pytest.raises(PeerError):
        chain_of_tail(other, 2, head, tail(chain, 2))


# -- the engine that begins there


def engine(own: list[Chain] | None = None) -> Engine:
    chains = own or [empty(0), empty(1)]
    return Engine(CLUB.core(0), chains, [chain.version for chain in chains], NOW)


def answer(ask: AskChainNote) -> ChainNote:
    """Return the answer of a peer with the long chains."""
    served = Engine(CLUB.core(1), LONG, [40, 40], NOW)
    [sent] = served.handle(Received(CLUB.ids[0], ask), NOW)
    note = sent.message  # type: ignore[union-attr]
    assert isinstance(note, ChainNote)
    return note


def catch_up(newcomer: Engine, seconds: float) -> list[object]:
    """Show a newcomer a peer that is ahead, and answer its questions; return all its other actions."""
    versions = tuple(chain.version for chain in LONG)
    seen = presence(1, versions=versions, heads=tuple(chain.digest[:HEAD_BYTES] for chain in LONG))
    actions = newcomer.handle(PresenceSeen(GUIDE, seen), NOW + seconds)
    others = []
    while actions:
        action = actions.pop(0)
        message = getattr(action, "message", None)
        if isinstance(message, AskChainNote):
            actions += newcomer.handle(Received(GUIDE, answer(message)), NOW + seconds)
        else:
            others.append(action)
    return others


def test_without_heads_nobody_follows_beyond_what_is_kept() -> None:
    newcomer = engine()
    told = [one for one in catch_up(newcomer, 1.0) if isinstance(one, Tell)]
    assert [(one.event, one.details["oldest"]) for one in told] == [("out_of_reach", LONG[0].first_version)]
    assert [chain.version for chain in newcomer.chains] == [0, 0]
    assert newcomer.fork_choice.out_of_reach({GUIDE})
    assert not newcomer.fork_choice.out_of_reach({GUIDE, CLUB.ids[2]}), "another one may still help"
    assert not newcomer.fork_choice.out_of_reach(set())


def test_from_the_heads_it_follows_to_the_newest() -> None:
    newcomer = engine()
    newcomer.begin_at(chains_at(WAYPOINT.version), NOW)
    assert [machine.held for machine in newcomer.machines] == [0, 0]
    assert not any(machine.ready for machine in newcomer.machines)
    fetches = [one for one in catch_up(newcomer, 1.0) if isinstance(one, FetchState)]
    assert [one.certificate.version for one in fetches] == [40, 40]
    assert newcomer.fork_choice.ahead == set()
    for one in fetches:
        newcomer.handle(StateFetched(one.certificate.fragment, one.certificate.digest), NOW + 2.0)
    assert all(machine.ready and machine.held == 40 for machine in newcomer.machines)


def test_a_version_that_nobody_serves_leads_back_to_the_heads_and_no_further() -> None:
    newcomer = engine()
    newcomer.begin_at(chains_at(WAYPOINT.version), NOW)
    [first, _] = [one for one in catch_up(newcomer, 1.0) if isinstance(one, FetchState)]
    newcomer.handle(FetchFailed(first.certificate.fragment, first.certificate.digest), NOW + 1e4)
    machine = newcomer.machines[first.certificate.fragment]
    assert machine.chain.version == WAYPOINT.version
    assert (machine.held, machine.ready) == (0, False)


def test_a_returned_peer_holds_its_state_until_it_has_caught_up() -> None:
    own = [CLUB.grow(empty(fragment), *[EVERYONE] * 3) for fragment in range(2)]
    returner = engine(own)
    returner.begin_at(chains_at(WAYPOINT.version), NOW)
    for machine in returner.machines:
        assert (machine.held, machine.chain.version) == (3, WAYPOINT.version)
        assert machine.state_sync.included_unseen, "which of its earlier work led there nobody can tell"
    assert any(isinstance(one, FetchState) for one in returner.handle(Tick(), NOW + 2.0))


def test_chains_that_contain_the_heads_stay() -> None:
    own = [one.truncated(38) for one in LONG]
    returner = engine(own)
    returner.begin_at(chains_at(WAYPOINT.version), NOW)
    assert [chain.version for chain in returner.chains] == [38, 38]
    further = engine([CLUB.grow(one.truncated(one.version), *[EVERYONE] * 20) for one in LONG])
    further.begin_at(chains_at(WAYPOINT.version), NOW)
    assert [chain.version for chain in further.chains] == [60, 60], "too old to tell: what it holds is newer"


def test_another_branch_gives_way_to_the_heads() -> None:
    other = [CLUB.grow(one.truncated(34), *[(0, 1, 2)] * 8) for one in LONG]
    returner = engine(other)
    returner.begin_at(chains_at(WAYPOINT.version), NOW)
    for machine, one in zip(returner.machines, LONG, strict=True):
        assert machine.chain.digest == one.digest_at(WAYPOINT.version)
        assert machine.held == 42
