"""Whether a peer may take part in the next version, and the reason in words if not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.chain import Chain
from coordinator.core.context import Core
from coordinator.core.events import Tick
from coordinator.engine.engine import Engine
from coordinator.group import pacing
from coordinator.group.eligibility import Hindrance, OwnSituation, eligibility, hindrance_to_start
from coordinator.group.pacing import MINOR_INTERVALS, Pacing, Tempo
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.simulator.keys import virtual_peer_id
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, certificate, chain_of, core, grown, presence

CROWD = [virtual_peer_id(number, 3) for number in range(4 * PEERS_PER_GROUP_MAX)]


def situation(own: Core, chain: Chain) -> OwnSituation:
    return OwnSituation(
        own, chain, Tempo(own, certified_at=0.0, counted_from=0.0), complete=True, busy=False, bound=False
    )


def member(contributes: bool = True) -> OwnSituation:
    """Return the situation of an active member at version 1, with all others live."""
    own = core(0)
    own.contributes = contributes
    for peer in PEERS[1:]:
        own.presence.see(peer, presence(), 0.0)
    return situation(own, grown(chain_of(own), 1, PEERS))


def stranger_in_a_crowd() -> OwnSituation:
    """Return the situation of a stranger without a ticket: the draw takes a few of very many."""
    for number in range(len(PEERS)):
        own = core(number)
        for peer in CROWD:
            own.presence.see(peer, presence(), 0.0)
        chain = chain_of(own)
        for roster in (CROWD[4 : PEERS_PER_GROUP_MAX + 4], CROWD[:PEERS_PER_GROUP_MAX]):
            chain.append(certificate(chain, roster, voters=PEERS[:1]))
        if not own.has_ticket(chain, own.me, 0.0):
            return situation(own, chain)
    raise AssertionError("all have their turn")


def drained(state: OwnSituation) -> OwnSituation:
    state.core.draining = True
    return state


def withdrawn(state: OwnSituation) -> OwnSituation:
    state.core.withdrawn = True
    return state


def unable(state: OwnSituation) -> OwnSituation:
    state.core.note_unable(0.0)
    return state


def alone() -> OwnSituation:
    own = core(0)
    return situation(own, chain_of(own))


CAUSES: Mapping[Hindrance, Callable[[], OwnSituation]] = {
    Hindrance.BEHIND: lambda: replace(member(), complete=False),
    Hindrance.BUSY: lambda: replace(member(), busy=True),
    Hindrance.BOUND: lambda: replace(member(), bound=True),
    Hindrance.DRAINING: lambda: drained(member()),
    Hindrance.WITHDRAWN: lambda: withdrawn(member()),
    Hindrance.UNABLE: lambda: unable(member()),
    Hindrance.NO_TICKET: stranger_in_a_crowd,
    Hindrance.NOT_NEEDED: lambda: member(contributes=False),
    Hindrance.ALONE: alone,
}


def test_whom_nothing_hinders_may_ask() -> None:
    assert eligibility(member(), 0.0) == (True, None)


@pytest.mark.parametrize("hindrance", Hindrance)
def test_each_hindrance_has_its_cause_and_its_words(hindrance: Hindrance) -> None:
    assert eligibility(CAUSES[hindrance](), 0.0) == (False, hindrance)
    assert hindrance.value


@pytest.mark.parametrize("hindrance", [Hindrance.BUSY, Hindrance.ALONE])
def test_a_peer_that_follows_others_may_ask_elsewhere_and_is_not_alone(hindrance: Hindrance) -> None:
    assert eligibility(replace(CAUSES[hindrance](), follows=True), 0.0) == (True, None)


def test_a_disk_is_tried_again_and_a_swarm_without_versions_takes_everybody() -> None:
    state = unable(member())
    assert eligibility(state, state.core.unable_until) == (True, None)
    assert hindrance_to_start(state.core, state.core.unable_until) is None
    overdue = MINOR_INTERVALS * stranger_in_a_crowd().tempo.interval_seconds(stranger_in_a_crowd().chain, 0.0)
    assert eligibility(stranger_in_a_crowd(), overdue) == (True, None)
    witness = member(contributes=False)
    assert eligibility(witness, MINOR_INTERVALS * witness.tempo.interval_seconds(witness.chain, 0.0)) == (True, None)


def test_a_peer_without_a_turn_does_not_look_when_a_first_version_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a crowd that needs the presence of all trainers, and again with every new record."""
    looked: set[PeerId] = set()

    def look(own: Core, chain: Chain, counted_from: float, now: float) -> Pacing:
        looked.add(own.me)
        return Pacing(math.inf, 0.0, 1.0)

    monkeypatch.setattr(pacing, "_pacing", look)
    turns: dict[PeerId, bool] = {}
    for number in range(len(PEERS)):
        own = core(number, [PEERS[0], *CROWD[1:PEERS_PER_GROUP_MAX]])
        for peer in CROWD:
            own.presence.see(peer, presence(), 0.0)
        engine = Engine(own, [chain_of(own)], [0], 0.0)
        assert engine.handle(Tick(), 0.0) == []
        assert engine.next_deadline(0.0) == math.inf
        turns[own.me] = own.has_ticket(engine.chains[0], own.me, 0.0)
    assert looked == {peer for peer, turn in turns.items() if turn} >= {PEERS[0]}
    assert looked < turns.keys()


@given(complete=st.booleans(), busy=st.booleans(), bound=st.booleans(), follows=st.booleans(), drains=st.booleans())
def test_there_is_a_reason_whenever_one_may_not(
    complete: bool, busy: bool, bound: bool, follows: bool, drains: bool
) -> None:
    state = replace(member(), complete=complete, busy=busy, bound=bound, follows=follows)
    state.core.draining = drains
    may, found = eligibility(state, 0.0)
    assert may == (found is None) == (complete and not bound and not drains and (follows or not busy))
