from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.wire.merkle import leaf_count, long_leaf_digest
from dht.statement import digest_of
from peer.numerics.outer_optimizer import (
    CHUNK_ELEMENTS,
    STATE_PIECE_BYTES,
    OuterState,
    SpentMomentum,
    digest_of_roots,
    outer_step,
    state_bytes,
    state_digest,
    state_tree,
)

torch.set_num_threads(1)
ETA, MU = 0.5, 0.8


def draw(elements: int, seed: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def state_of(elements: int) -> OuterState:
    return OuterState(draw(elements, 1), draw(elements, 2))


def test_the_first_step_moves_eta_times_one_plus_mu():
    """Nesterov's first step moves lr(1+β)Δ."""
    anchor, gradient = torch.zeros(100), draw(100, 3)
    state = outer_step(OuterState(anchor, torch.zeros(100)), gradient, ETA, MU)
    torch.testing.assert_close(state.anchor, -ETA * (1 + MU) * gradient)
    assert torch.equal(state.momentum, gradient)


@given(st.floats(0.01, 2), st.floats(0, 0.99), st.integers(0, 1000))
def test_it_is_torch_nesterov_up_to_rounding(learning_rate, momentum, seed):
    parameter = torch.nn.Parameter(draw(64, seed))
    state = OuterState(parameter.detach().clone(), torch.zeros(64))
    optimizer = torch.optim.SGD([parameter], lr=learning_rate, momentum=momentum, nesterov=momentum > 0)
    for step in range(4):
        gradient = draw(64, seed + step + 1)
        parameter.grad = gradient.clone()
        optimizer.step()
        state = outer_step(state, gradient, learning_rate, momentum)
        torch.testing.assert_close(state.anchor, parameter.detach(), rtol=1e-4, atol=1e-5)


def test_every_operation_is_rounded_on_its_own():
    state, gradient = state_of(5000), draw(5000, 3)
    new = outer_step(state, gradient, ETA, MU)
    eta, mu = np.float32(ETA), np.float32(MU)
    anchor, momentum, delta = state.anchor.numpy(), state.momentum.numpy(), gradient.numpy()
    for index in range(0, 5000, 7):
        velocity = np.float32(np.float32(momentum[index] * mu) + delta[index])
        step = np.float32(np.float32(np.float32(velocity * mu) + delta[index]) * eta)
        assert new.momentum[index] == velocity
        assert new.anchor[index] == np.float32(anchor[index] - step)


def test_inputs_stay_and_outputs_may_be_given():
    state, gradient = state_of(CHUNK_ELEMENTS + 5), draw(CHUNK_ELEMENTS + 5, 3)
    before = [tensor.clone() for tensor in (state.anchor, state.momentum, gradient)]
    new = outer_step(state, gradient, ETA, MU)
    room = OuterState(torch.empty_like(gradient), torch.empty_like(gradient))
    assert outer_step(state, gradient, ETA, MU, out=room) is room
    assert torch.equal(room.anchor, new.anchor)
    assert torch.equal(room.momentum, new.momentum)
    assert all(map(torch.equal, before, (state.anchor, state.momentum, gradient)))


def test_no_thread_count_changes_a_bit():
    state, gradient = state_of(3 * CHUNK_ELEMENTS + 1), draw(3 * CHUNK_ELEMENTS + 1, 3)
    digests = set()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        new = outer_step(state, gradient, ETA, MU)
        digests.add(state_digest(new.anchor, new.momentum))
    torch.set_num_threads(1)
    assert len(digests) == 1


def test_the_state_digest_names_both_roots():
    state = state_of(1000)
    digest = state_digest(state.anchor, state.momentum)
    assert digest == digest_of_roots(state_tree(state.anchor).root, state_tree(state.momentum).root)
    assert digest == digest_of(b"muster-state", state_tree(state.anchor).root, state_tree(state.momentum).root)
    assert digest != state_digest(state.momentum, state.anchor)
    changed = state.momentum.clone()
    changed[-1] += 1
    assert digest != state_digest(state.anchor, changed)


def test_the_root_over_one_piece_is_frozen():
    vector = torch.tensor([1.0, -2.5, 0.0])
    assert bytes(state_bytes(vector)) == bytes.fromhex("0000803f000020c000000000")
    assert state_tree(vector).root.hex() == "1192a9b162d8e72feb3f39ec6b3e76c9232a979086a0f9b58d20cf3a2f0a91cc"


@pytest.mark.parametrize("elements", [1, STATE_PIECE_BYTES // 4, STATE_PIECE_BYTES + 3])
def test_pieces_of_a_state_prove_themselves_as_they_arrive(elements):
    vector = draw(elements, 4)
    tree, content = state_tree(vector), state_bytes(vector)
    pieces = leaf_count(len(content), STATE_PIECE_BYTES)
    assert pieces == len(tree.leaves)
    received = bytearray()
    for index in range(pieces):
        piece = bytes(content[index * STATE_PIECE_BYTES : (index + 1) * STATE_PIECE_BYTES])
        assert long_leaf_digest(piece) == tree.leaves[index]
        assert long_leaf_digest(b"\x00" + piece[1:] + b"x") != tree.leaves[index]
        received += piece
    assert torch.equal(torch.frombuffer(received, dtype=torch.float32), vector)


@pytest.mark.parametrize("elements", [1, 1000, STATE_PIECE_BYTES // 4, STATE_PIECE_BYTES // 4 + 1, 200_003])
def test_without_decay_the_digest_is_that_of_a_momentum_that_was_kept(elements):
    """Earlier versions computed it with a whole tensor: 0·m + Δ, whatever m was."""
    anchor, gradient, mu = draw(elements, 1), draw(elements, 3), np.float32(0)
    momentum = draw(elements, 2).numpy() * mu + gradient.numpy()
    step = (momentum * mu + gradient.numpy()) * np.float32(ETA)
    kept = OuterState(torch.from_numpy(anchor.numpy() - step), torch.from_numpy(momentum))
    new = outer_step(OuterState.begin(anchor, 0.0), gradient, ETA, 0.0)
    assert torch.equal(new.anchor, kept.anchor)
    assert new.digest == kept.digest == state_digest(kept.anchor, kept.momentum)
    assert new.leaves == kept.leaves


def test_no_momentum_at_version_zero_has_the_digest_of_zeros():
    anchor = draw(70_000, 1)
    assert OuterState.begin(anchor, 0.0).digest == OuterState.begin(anchor, 0.9).digest
    assert OuterState.begin(anchor, 0.0).digest == state_digest(anchor, torch.zeros_like(anchor))


@given(st.lists(st.one_of(st.integers(0, 90_000), st.integers(-90_000, -1)), max_size=6))
@settings(max_examples=25, deadline=None)
def test_leaves_are_those_of_the_parts_in_one_piece(sizes):
    """A size above zero is a tensor of so many elements, below zero so many zeros; negative zeros become positive."""
    parts = [draw(size, size) if size > 0 else -size for size in sizes]
    for part in parts:
        if not isinstance(part, int):
            part[::5] = -0.0
    whole = [np.zeros(part, np.float32) if isinstance(part, int) else part.numpy() + np.float32(0) for part in parts]
    joined = torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *whole]))
    assert SpentMomentum.of(parts).leaves == state_tree(joined).leaves


def test_a_state_that_is_not_finite_stays_so():
    gradient = torch.tensor([1.0, float("inf"), float("nan")])
    with np.errstate(all="ignore"):
        new = outer_step(OuterState.begin(torch.zeros(3), 0.0), gradient, ETA, 0.0)
    assert not new.is_finite
