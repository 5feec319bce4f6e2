"""Two states become one: the same bits everywhere, and never further from the winner's than allowed (docs/adr/0016)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.fragments import FragmentLayout, TensorSpec
from peer.outer_optimizer import OuterState
from peer.reunion import MOMENTUM_MOVEMENT_MAX, MOVEMENT_MAX, reunite

LAYOUT = FragmentLayout(0, (TensorSpec("a", (3,)), TensorSpec("b", (2, 2))))
SPANS = (slice(0, 3), slice(3, 7))

numbers = st.floats(-1e3, 1e3, width=32)
vectors = st.lists(numbers, min_size=7, max_size=7).map(torch.tensor)
states = st.builds(OuterState, vectors, vectors)


def state(fill: float, momentum: float = 0.0) -> OuterState:
    return OuterState(torch.full((7,), fill), torch.full((7,), momentum))


def test_near_states_are_blended_with_every_operation_rounded_by_itself() -> None:
    won, lost = (OuterState(torch.rand(7) + 1, torch.rand(7) + 1) for _ in range(2))
    merged = reunite(LAYOUT, won, lost, 0.3)
    beta = np.float32(0.3)
    for out, one, other in ((merged.anchor, won.anchor, lost.anchor), (merged.momentum, won.momentum, lost.momentum)):
        expected = (np.float32(1) - beta) * one.numpy() + beta * other.numpy()
        assert out.numpy().tobytes() == expected.tobytes()


@given(states, states, st.floats(0.0, 0.5))
def test_no_tensor_goes_further_than_it_may(won: OuterState, lost: OuterState, share: float) -> None:
    merged = reunite(LAYOUT, won, lost, share)
    for limit, new, old in (
        (MOVEMENT_MAX, merged.anchor, won.anchor),
        (MOMENTUM_MOVEMENT_MAX, merged.momentum, won.momentum),
    ):
        for span in SPANS:
            length = math.sqrt(float(old[span].double().square().sum()))
            moved = math.sqrt(float((new[span].double() - old[span].double()).square().sum()))
            assert moved <= limit * length * (1 + 1e-5) + 1e-6 * length


@given(states, states)
def test_without_weight_the_winner_stays_bit_for_bit(won: OuterState, lost: OuterState) -> None:
    merged = reunite(LAYOUT, won, lost, 0.0)
    assert merged.anchor.numpy().tobytes() == won.anchor.numpy().tobytes()
    assert merged.momentum.numpy().tobytes() == won.momentum.numpy().tobytes()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["anchor", "momentum"])
def test_a_tensor_that_is_not_finite_does_not_come_in_and_the_others_do(bad: float, where: str) -> None:
    won, lost = state(1.0, 1.0), state(1.2, 1.2)
    getattr(lost, where)[4] = bad
    merged = reunite(LAYOUT, won, lost, 0.5)
    assert merged.anchor[3:].tolist() == merged.momentum[3:].tolist() == [1.0] * 4
    assert merged.anchor[:3].tolist() == pytest.approx([1.1] * 3)


def test_a_far_state_is_followed_a_part_of_the_way() -> None:
    merged = reunite(LAYOUT, state(1.0), state(1e6), 0.5)
    assert merged.anchor.tolist() == pytest.approx([1 + MOVEMENT_MAX] * 7, rel=1e-3)
