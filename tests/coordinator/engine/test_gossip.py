"""News of a version: in a small swarm the leader tells all, in a large one each peer tells a few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.engine import gossip
from coordinator.engine.gossip import RUMOUR_PEERS, announce, spread
from coordinator.wire.messages import AskChainNote
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, chain_of, core, grown, presence

ROSTER, LEFT, OTHERS = PEERS[:4], PEERS[4:5], PEERS[5:]  # LEFT had a seat one version ago


def scene(crowded: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[Core, Chain]:
    monkeypatch.setattr(gossip, "TOLD_BY_LEADER_MAX", len(PEERS) // 2 if crowded else len(PEERS))
    own = core(0)
    chain = grown(grown(chain_of(own), 1, PEERS[:5]), 1, ROSTER)
    for peer in PEERS[1:]:
        own.presence.see(peer, presence("training", 9, 1.0, [chain]), 0.0)
    return own, chain


def told(actions: Sequence[Action]) -> set[PeerId]:
    return {action.to for action in actions if isinstance(action, Send)}


def test_the_leader_of_a_small_swarm_tells_all_who_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    own, chain = scene(crowded=False, monkeypatch=monkeypatch)
    assert told(announce(own, chain, chain.certificates[-1], 1.0)) == {*LEFT, *OTHERS}
    assert spread(own, chain, chain.certificates[-1], 1.0) == []


def test_in_a_crowd_the_leader_tells_the_active_set_and_rumour_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every peer would tell the active set, which all know."""
    own, chain = scene(crowded=True, monkeypatch=monkeypatch)
    certificate = chain.certificates[-1]
    assert told(announce(own, chain, certificate, 1.0)) == set(LEFT)
    rumour = spread(own, chain, certificate, 1.0)
    assert len(told(rumour)) == RUMOUR_PEERS
    assert told(rumour) <= set(OTHERS)
    known = (certificate.digest, certificate.outcome.parent)
    note = AskChainNote(fragment=0, version=certificate.version, known=known)
    assert [one.message for one in rumour if isinstance(one, Send)] == [note] * RUMOUR_PEERS
