"""The demo: the same seed and time tell the same story, and the story has everything in it."""

from __future__ import annotations

import pytest

from coordinator.views.network_view import PHASES, NetworkView
from dashboard.demo.swarm import DemoSwarm
from dashboard.frames.trust import check_evidence
from dht.errors import UsageError
from tests.dashboard.views import EPOCH, demo_view, view_named


def test_the_same_seed_and_time_give_the_same_view() -> None:
    at_once, by_steps = DemoSwarm(5, 8, EPOCH), DemoSwarm(5, 8, EPOCH)
    at_once.advance(30.0)
    for step in range(1, 31):
        by_steps.advance(float(step))
        by_steps.view()
    assert at_once.view() == by_steps.view()


def test_another_seed_gives_another_network() -> None:
    one, other = (DemoSwarm(seed, 6, EPOCH).view() for seed in (1, 2))
    assert one.run_id != other.run_id
    assert not {peer.peer_id for peer in one.peers} & {peer.peer_id for peer in other.peers}


def test_everything_happens_before_the_first_look(demo: NetworkView) -> None:
    expected = {
        "certified",
        "partition",
        "partition_healed",
        "peer_banned",
        "peer_gone",
        "peer_joined",
        "peer_returned",
    }
    assert expected <= demo.events.keys()
    assert demo.demo
    assert {one.outcome for one in demo.rounds} >= {"certified", "void"}


def test_the_ban_is_proven(demo: NetworkView) -> None:
    (ban,) = demo.bans
    assert check_evidence(ban, demo.run_id).startswith("verified here")
    banned = next(peer for peer in demo.peers if peer.peer_id == ban.peer_id)
    assert (banned.trust, banned.live) == ("banned", False)


def test_losses_fall_and_sums_agree(demo: NetworkView) -> None:
    losses = [one.loss for one in demo.evaluations]
    assert losses[-1] < losses[0] - 1
    assert sum(one.version for one in demo.fragments) == demo.history[-1].versions == len(demo.certificates)
    counted = sum(one.tokens for one in demo.certificates) // demo.run.fragments
    assert sum(one.tokens for one in demo.credit) == pytest.approx(counted, rel=1e-3)


def test_rounds_are_told_in_order(demo: NetworkView) -> None:
    known = {peer.peer_id for peer in demo.peers}
    for one in demo.rounds:
        names = [phase.name for phase in one.phases]
        assert names == sorted(names, key=PHASES.index)
        assert {one.leader, *one.members, *one.late} <= known


def test_a_crowd_has_as_many_as_asked() -> None:
    crowd = view_named("a thousand")
    assert len({peer.peer_id for peer in crowd.peers}) == 1000
    assert len({peer.name for peer in crowd.peers}) == len(crowd.peers)
    assert max(len(one.roster) for one in crowd.certificates) > 16
    assert {"gone", "paused", "catching up"} <= {peer.state if peer.live else "gone" for peer in crowd.peers}


def test_the_smallest_demo_certifies() -> None:
    demo = demo_view(4, 30.0)
    assert demo.history[-1].versions > 0
    learners = [peer for peer in demo.peers if peer.live and peer.role == "learner"]
    assert demo.history[-1].learners_live == len(learners) == demo.history[-1].peers_live - 1


@pytest.mark.parametrize("count", [0, 3, 2001])
def test_there_are_limits(count: int) -> None:
    with pytest.raises(UsageError, match="4 to 2000"):
        DemoSwarm(1, count, EPOCH)
