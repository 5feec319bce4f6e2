"""Contributions scored by what they do to the loss: who helps and who harms comes apart, in labs with real tensors."""

from __future__ import annotations

import pytest

from coordinator.trust.scores import MemberScore
from dht.identity import PeerId
from peer.attacks.zoo import AttackOrder
from peer.lab.laboratory import Laboratory
from tests.peer.lab import small

STEPS = 60


def standings_of(lab: Laboratory) -> dict[PeerId, list[MemberScore]]:
    """What all scorers have found, by whom it is about."""
    found: dict[PeerId, list[MemberScore]] = {}
    for peer in lab.world.peers:
        assert peer.engine is not None
        for scored, standing in peer.engine.auditor.scorer.standings.items():
            found.setdefault(scored, []).append(standing)
    return found


def gains(standings: list[MemberScore]) -> tuple[float, float]:
    """On other and on assigned windows, the mean of all rounds that anybody looked at: one round says little."""
    rounds = sum(one.rounds for one in standings)
    other = sum(one.rounds * one.other for one in standings) / rounds
    return other, sum(one.rounds * one.assigned for one in standings) / rounds


@pytest.mark.slow
def test_honest_work_lowers_the_loss_and_its_opposite_raises_it() -> None:
    changes = {"trust.score_share": 1.0, "outer.merge": "robust_rda", "outer.contribution_codec": "int8"}
    lab, _ = small.run(small.options(5, STEPS, changes, attacks=(AttackOrder.parse("sign_flip:1"),)))
    (liar,) = lab.context.attacks
    found = standings_of(lab)
    assert len(found) == 5
    liars = found.pop(liar)
    assert all(one.other < 0 for one in liars)
    assert max(gains(liars)) < -0.1  # nats per token
    for standings in found.values():
        assert min(gains(standings)) > 0


def test_without_a_share_nobody_looks() -> None:
    lab, _ = small.run(small.options(3, 12))
    assert standings_of(lab) == {}
