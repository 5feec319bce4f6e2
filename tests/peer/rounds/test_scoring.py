"""What a contribution does to the loss, as a scorer finds it from bytes and certified states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coordinator.chain.passes import ReadingLane
from coordinator.core.actions import Appraise, RoundKey
from dht.identity import PeerId
from peer.data.windows import TrainingWindows
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.merge import MERGES
from peer.rounds.scoring import GAIN_MAX, NOBODY, Appraiser, gain_of, sides_of
from peer.rounds.spot_checks import SpotChecker
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore
from tests.peer.lab import small
from tests.peer.merging import Made

CODEC, PARTITIONS, FRAGMENT = CODECS["fp32"], 3, 1
BASE, PEER = b"b" * 32, PeerId("somebody")


def bench(gradient: torch.Tensor) -> tuple[Appraise, SpotChecker, Anchors, Appraiser]:
    """A store with this outer gradient in parts, at version 0 installed under the digest BASE."""
    layouts, states = layouts_of(small.BASE), genesis_states(small.BASE)
    anchors, blobs = Anchors(layouts, states), BlobStore(1 << 24)
    anchors.install(FRAGMENT, BASE, states[FRAGMENT])
    cut = Partitioning.of(layouts[FRAGMENT], PARTITIONS)
    sent = Made.of(gradient, cut, CODEC)
    for part in sent.parts:
        blobs.add(part, CODEC.leaf_bytes)
    inspector = SpotChecker(lambda *_: cut, (CODEC, CODEC), MERGES["mean"], blobs)
    text = small.text().train
    appraiser = Appraiser(small.BASE, lambda peer: TrainingWindows(text, small.BASE.data, b"run", peer))
    action = Appraise(RoundKey(FRAGMENT, 0, bytes(32)), BASE, PEER, sent.part_roots, 0, 4, b"seed")
    return action, inspector, anchors, appraiser


def size() -> int:
    return layouts_of(small.BASE)[FRAGMENT].elements


def test_the_two_sides_differ_by_the_contribution_in_its_fragment_alone() -> None:
    gradient = torch.linspace(-1, 1, size())
    action, inspector, anchors, _ = bench(gradient)
    sides = sides_of(action, inspector, anchors)
    assert sides is not None
    before, after = sides
    assert torch.equal(before[FRAGMENT] - gradient, after[FRAGMENT])
    assert all(torch.equal(a, b) for p, (a, b) in enumerate(zip(before, after, strict=True)) if p != FRAGMENT)
    assert all(torch.equal(a, b) for a, b in zip(before, anchors.all_anchors(), strict=True))


@pytest.mark.parametrize("changes", [{"base": b"x" * 32}, {"part_roots": (bytes(32),) * PARTITIONS}])
def test_what_is_gone_is_not_appraised(changes: dict[str, object]) -> None:
    action, inspector, anchors, _ = bench(torch.zeros(size()))
    assert sides_of(replace(action, **changes), inspector, anchors) is None  # type: ignore[arg-type]


def test_nothing_changes_nothing_and_noise_does_harm() -> None:
    noise = 100 * torch.randn(size(), generator=torch.Generator().manual_seed(0))
    for gradient in (torch.zeros(size()), noise):
        action, inspector, anchors, appraiser = bench(gradient)
        sides = sides_of(action, inspector, anchors)
        assert sides is not None
        found = appraiser.appraise(sides, action)
        assert found is not None
        if gradient is noise:
            assert found.assigned < 0
            assert found.other < 0
        else:
            assert (found.assigned, found.other) == (0.0, 0.0)
    assert appraiser.appraise(sides, replace(action, window_count=0)) is None


def test_in_passes_only_windows_that_the_commitment_has_trained_on_are_drawn() -> None:
    """Three of its five steps are the newest lane's, and count; those before are of a lane that nothing says."""
    action, inspector, anchors, _ = bench(torch.zeros(size()))
    sides = sides_of(action, inspector, anchors)
    assert sides is not None
    data, lane = small.BASE.data.model_copy(update={"order": "passes"}), ReadingLane(7, 1, 3).first
    drawn: list[int] = []

    class Noted:
        def batch(self, window: int) -> torch.Tensor:
            drawn.append(window)
            return torch.zeros(2, 17, dtype=torch.int64)

    nobody = TrainingWindows(small.text().train, data, b"run", NOBODY)
    config = small.BASE.model_copy(update={"data": data})
    appraiser = Appraiser(config, lambda peer: Noted() if peer == PEER else nobody)
    for seed in range(40):
        action = replace(action, window_first=lane - 2, window_count=5, seed=bytes([seed]))
        assert appraiser.appraise(sides, action) is not None
    assert set(drawn) == {lane, lane + 1, lane + 2}
    assert appraiser.appraise(sides, replace(action, window_first=lane - 5)) is None


def test_a_gain_is_bounded() -> None:
    assert gain_of(2.0, 1.5) == 0.5
    assert gain_of(2.0, math.nan) == gain_of(2.0, math.inf) == gain_of(2.0, 1e9) == -GAIN_MAX
