"""Peers on probation are shown as such, from certificates alone, and only while it lasts."""

from __future__ import annotations

from coordinator.run.manifest import TrustSpec
from coordinator.simulator.network import LinkFaults
from tests.peer.observing import PACE, Observed, TracedWorld

FOUNDERS, ROUNDS = 4, 2


def test_a_newcomer_is_shown_on_probation_until_it_counts() -> None:
    trust = TrustSpec(newcomers_share=0.25, probation_rounds=ROUNDS)
    links = LinkFaults(delay_min_seconds=0.005, delay_max_seconds=0.03)
    world = TracedWorld(PACE, [2.0] * (FOUNDERS + 1), list(range(FOUNDERS)), 3, links, trust=trust)
    for peer in world.peers:
        peer.start()
    observed = Observed(world)
    new = world.peers[-1].me
    shown = []
    for _ in range(60):
        view = observed.run(1)
        standing = {peer.peer_id: peer.trust for peer in view.peers}
        assert set(standing.values()) <= {"in good standing", "probation"}
        assert {peer for peer, trust in standing.items() if trust == "probation"} <= {new}
        shown.append(standing.get(new))
        if "probation" in shown and shown[-1] == "in good standing":
            break
    assert shown[-1] == "in good standing"
    assert "probation" in shown
    assert next(peer.credited_tokens for peer in view.peers if peer.peer_id == new) == 0
