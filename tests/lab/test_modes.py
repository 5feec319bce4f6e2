"""Which settings make which method (research, decoupled-diloco.md §10): each against a plain loop of a few lines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from coordinator.manifest import InnerSpec, RunConfig
from dht.statement import digest_of
from peer.anchors import genesis_states
from peer.lab.baseline import BaselinePlan, JointBatches, full_schedule, train_jointly
from peer.lab.laboratory import Laboratory
from peer.learner import Batches, Learner, make_learner
from peer.outer_optimizer import OuterState, outer_step
from tests.lab import small


def streaming_loop(
    config: RunConfig, sources: Sequence[Batches], steps: int, delay_steps: int
) -> tuple[list[OuterState], list[Learner]]:
    """Streaming DiLoCo (2501.18512, Alg. 2) with the plain mean, straight down: no peers, rounds or codecs."""
    learners, states = [make_learner(config, source) for source in sources], genesis_states(config)
    fragments, period, versions = config.pace.fragments, config.pace.steps_per_version, 0
    share = torch.tensor(1 / len(learners))
    under_way = []
    for step in range(1, steps + 1):
        for learner in learners:
            learner.step()
        if step * fragments % period == 0:
            fragment = (step * fragments // period - 1) % fragments
            snapshots = [torch.empty_like(states[fragment].anchor) for _ in learners]
            counters = [one.snapshot(fragment, out) for one, out in zip(learners, snapshots, strict=True)]
            gradients = [(states[fragment].anchor - snapshot) * share for snapshot in snapshots]
            mean = gradients[0]
            for gradient in gradients[1:]:
                mean = mean + gradient
            outer = config.outer
            states[fragment] = outer_step(states[fragment], mean, outer.learning_rate, outer.momentum)
            under_way.append((step + delay_steps, fragment, states[fragment].anchor, snapshots, counters))
            versions += 1
            for learner in learners:
                learner.set_progress(versions * period // fragments)
        while under_way and under_way[0][0] == step:
            _, fragment, anchor, snapshots, counters = under_way.pop(0)
            for learner, snapshot, counted in zip(learners, snapshots, counters, strict=True):
                reference = snapshot if config.outer.keeps_later_steps else None
                learner.adopt(fragment, anchor, reference, counted.steps, counted.tokens)
    return states, learners


def anchors_of(lab: Laboratory) -> list[OuterState]:
    held = lab.newest().anchors
    return [held.current(fragment) for fragment in range(lab.options.config.pace.fragments)]


def sources_of(lab: Laboratory) -> list[Batches]:
    return [lab.windows(peer.me) for peer in lab.world.peers]


def assert_same_bits(found: Sequence[OuterState], expected: Sequence[OuterState]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.anchor, other.anchor)
        assert torch.equal(one.momentum, other.momentum)


def parameters_of(learner: Learner) -> Tensor:
    return learner.export_state()["theta"]


@pytest.mark.parametrize("delay_steps", [0, 2])
def test_one_learner_is_a_plain_loop_with_an_outer_step(delay_steps: int) -> None:
    """(§10: M=1, K=1) Bit for bit, anchors and learner."""
    chosen = small.options(1, 40, adoption_delay_steps=float(delay_steps))
    lab, _ = small.run(chosen)
    states, [plain] = streaming_loop(chosen.config, sources_of(lab), 40, delay_steps)
    assert_same_bits(anchors_of(lab), states)
    assert lab.newest().lazy.digest() == _digest(plain)


def test_one_fragment_without_overlap_is_diloco() -> None:
    """(§10: P=1, K=M, τ=0, mean) DiLoCo 2311.08105, bit for bit."""
    chosen = small.options(2, 40, {"pace.fragments": 1}, adoption_delay_steps=0.0)
    lab, report = small.run(chosen)
    states, _ = streaming_loop(chosen.config, sources_of(lab), 40, 0)
    assert report.versions_certified == 10
    assert report.group_size_mean == 2
    assert_same_bits(anchors_of(lab), states)


@pytest.mark.parametrize("adoption", ["overwrite", "carry", "eager"])
def test_fragments_in_turn_with_a_delay_are_streaming_diloco(adoption: str) -> None:
    """(§10: P=H fragments in turn, K=M, τ≥1) Streaming DiLoCo 2501.18512 with α = 0, and with what is kept."""
    changes = {"pace.fragments": 4, "pace.steps_per_version": 4, "outer.adoption": adoption}
    chosen = small.options(2, 36, changes, adoption_delay_steps=1.0)
    lab, report = small.run(chosen)
    states, _ = streaming_loop(chosen.config, sources_of(lab), 36, 1)
    assert report.versions_certified == 36
    assert report.adoption_delay_steps == {"median": 1.0, "p95": 1.0}
    assert_same_bits(anchors_of(lab), states)


def test_plain_averaging_of_parameters_is_local_sgd() -> None:
    """(outer SGD with rate 1 and no momentum) Local SGD averages parameters: equal up to the last bits of float32."""
    changes = {"pace.fragments": 1, "outer.learning_rate": 1.0, "outer.momentum": 0.0}
    chosen = small.options(3, 24, changes, adoption_delay_steps=0.0)
    lab, _ = small.run(chosen)
    learners = [make_learner(chosen.config, source) for source in sources_of(lab)]
    for step in range(1, 25):
        for learner in learners:
            learner.step()
        if step % 4 == 0:
            mean = torch.stack([parameters_of(learner) for learner in learners]).double().mean(0).float()
            for learner in learners:
                learner.load_all(mean)
                learner.set_progress(step)
    torch.testing.assert_close(anchors_of(lab)[0].anchor, mean, rtol=2e-5, atol=2e-6)


def test_merging_after_every_step_is_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """(§10: H=P=1, K=M, τ=0, inner and outer SGD, mean) Data-parallel SGD, equal up to the last bits of float32."""

    def make_sgd(parameters: object, spec: InnerSpec, embeddings: object = ()) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=spec.learning_rate)  # type: ignore[arg-type]

    monkeypatch.setattr("peer.learner.make_optimizer", make_sgd)
    changes = {
        "pace.fragments": 1,
        "pace.steps_per_version": 1,
        "outer.learning_rate": 1.0,
        "outer.momentum": 0.0,
        "inner.learning_rate": 0.5,
        "inner.clip_norm": 1e6,
    }
    chosen = small.options(3, 24, changes, adoption_delay_steps=0.0)
    lab, report = small.run(chosen)
    joint = make_learner(chosen.config, JointBatches(sources_of(lab), full_schedule(3, 24)))
    before = parameters_of(joint).clone()
    for step in range(24):
        joint.set_progress(step)
        joint.step()
    after = parameters_of(joint)
    assert report.versions_certified == 24
    assert (after - before).norm() > 0.1  # it has learnt something, so there is something to compare
    torch.testing.assert_close(anchors_of(lab)[0].anchor, after, rtol=1e-4, atol=2e-6)


def test_the_data_parallel_baseline_of_one_learner_is_the_learner_itself() -> None:
    chosen = small.options(1, 20)
    lab, _ = small.run(chosen)
    config, [source] = chosen.config, sources_of(lab)
    start = tuple(state.anchor for state in genesis_states(config))
    plan = BaselinePlan("dp", config, start, [source], lab.heldout, "cpu", full_schedule(1, 20), 20, 10)
    curve = train_jointly(plan, config.inner.learning_rate, lambda _step, _points: None)
    plain = make_learner(config, source)
    for step in range(20):
        plain.set_progress(step)
        plain.step()
    vectors = [torch.empty(layout.elements) for layout in plain.fragments]
    for fragment, vector in enumerate(vectors):
        plain.snapshot(fragment, vector)
    assert [point.step for point in curve] == [0, 10, 20]
    assert curve[-1].eval_loss == lab.evaluator.loss(vectors)
    assert curve[-1].tokens == 20 * config.tokens_per_step


def _digest(learner: Learner) -> bytes:
    return digest_of(b"lab-learner", parameters_of(learner).numpy().tobytes())
