"""The part of a merge beyond a learner's own work."""

from __future__ import annotations

import torch

from peer.learner.eager import EagerAdoption

ANCHOR = torch.tensor([1.0, 1.0, 1.0])


def missed(own: tuple[float, float, float], joint: tuple[float, float, float]) -> torch.Tensor | None:
    eager = EagerAdoption(1)
    assert eager.adopt(0, ANCHOR.clone(), ANCHOR, None) is None  # it has none of our work
    snapshot = ANCHOR + torch.tensor(own)
    return eager.adopt(0, snapshot.clone(), ANCHOR + torch.tensor(joint), snapshot)


def test_it_is_how_much_further_the_merge_went() -> None:
    torch.testing.assert_close(missed((0.0, 2.0, 0.0), (1.0, 1.0, 0.0)), torch.tensor([1.0, -1.0, 0.0]))


def test_a_slow_learner_takes_no_more_than_the_direction_of_a_longer_merge() -> None:
    torch.testing.assert_close(missed((0.0, 0.0, 1.0), (3.0, 0.0, 4.0)), torch.tensor([0.6, 0.0, -0.2]))


def test_a_learner_that_has_gone_nowhere_misses_nothing() -> None:
    torch.testing.assert_close(missed((0.0, 0.0, 0.0), (3.0, 0.0, 4.0)), torch.zeros(3))
