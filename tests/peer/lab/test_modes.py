"""The settings that make each published method, compared with a plain loop of a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import OuterSpec, RunConfig
from dht.statement import digest_of
from peer.lab.baseline import BaselinePlan, JointBatches, full_schedule, train_jointly
from peer.lab.laboratory import Laboratory
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner, make_learner
from peer.learner.optimizers.inner_optimizer import rate, rewarm
from peer.model.build import build_model, loss
from peer.numerics.fragments import gather, named_tensors, scatter
from peer.numerics.outer_optimizer import OuterState, outer_step
from peer.storage.anchors import genesis_states, layouts_of
from tests.extra import extra
from tests.peer.lab import small


@dataclass
class Replica:
    """A model whose fragments are sent and adopted by the papers' formulas, not by `Learner.adopt`."""

    learner: Learner
    outer: OuterSpec
    anchors: dict[int, Tensor] = field(default_factory=dict)  # as last adopted
    kept: dict[int, float] = field(default_factory=dict)  # of its own work, by the last merge
    withheld: dict[int, Tensor] = field(default_factory=dict)

    def read(self, fragment: int) -> Tensor:
        return gather(self.learner.fragments[fragment], named_tensors(self.learner.model))

    def write(self, fragment: int, values: Tensor) -> None:
        scatter(self.learner.fragments[fragment], values, named_tensors(self.learner.model))

    def send(self, fragment: int) -> Tensor:
        """Return the contribution; an eager replica goes on from the expected merge of its own part (docs/adr/0040)."""
        sent = self.read(fragment)
        if self.outer.adoption == "eager" and fragment in self.kept:
            self.withheld[fragment] = (sent - self.anchors[fragment]) * (1 - self.kept[fragment])
            self.write(fragment, sent - self.withheld[fragment])
        return sent

    def take(self, fragment: int, new: Tensor, sent: Tensor) -> None:
        """Adopt the anchor that follows from the contribution `sent`."""
        theta, alpha = self.read(fragment), self.outer.adoption_blend
        match self.outer.adoption:
            case "overwrite":
                theta = new
            case "blend":
                theta = alpha * theta + (1 - alpha) * new
            case "carry":
                theta = new + (theta - sent)
            case "eager":
                theta = new + alpha * (theta + self.withheld.pop(fragment, torch.zeros(())) - sent)
                self._see(fragment, new, sent)
        self.anchors[fragment] = new
        self.write(fragment, theta)

    def _see(self, fragment: int, new: Tensor, sent: Tensor) -> None:
        """Note the share of its own work d that the merge D has kept: ⟨D, d⟩/‖d‖²."""
        if fragment in self.anchors:
            own, merged = sent - self.anchors[fragment], new - self.anchors[fragment]
            self.kept[fragment] = min(1.0, max(0.0, float(merged @ own) / float(own @ own)))


def streaming_loop(
    config: RunConfig, sources: Sequence[Batches], steps: int, delay_steps: int
) -> tuple[list[OuterState], list[Learner]]:
    """Run Streaming DiLoCo (2501.18512, Alg. 2) with the plain mean: no peers, rounds or codecs."""
    replicas = [Replica(make_learner(config, source), config.outer) for source in sources]
    learners, states = [one.learner for one in replicas], genesis_states(config)
    fragments, period, versions = config.pace.fragments, config.pace.steps_per_version, 0
    share = torch.tensor(1 / len(learners))
    under_way = []
    for step in range(1, steps + 1):
        for learner in learners:
            learner.step()
        if step * fragments % period == 0:
            fragment = (step * fragments // period - 1) % fragments
            sent = [one.send(fragment) for one in replicas]
            gradients = [(states[fragment].anchor - one) * share for one in sent]
            mean = gradients[0]
            for gradient in gradients[1:]:
                mean = mean + gradient
            outer = config.outer
            states[fragment] = outer_step(states[fragment], mean, outer.learning_rate, outer.momentum)
            under_way.append((step + delay_steps, fragment, states[fragment].anchor, sent))
            versions += 1
            for learner in learners:
                learner.set_progress(versions * period // fragments)
        while under_way and under_way[0][0] == step:
            _, fragment, anchor, sent = under_way.pop(0)
            for replica, own in zip(replicas, sent, strict=True):
                replica.take(fragment, anchor, own)
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


@pytest.mark.parametrize("delay_steps", [2, *extra([1])])
@pytest.mark.parametrize(
    ("adoption", "alpha"),
    [("carry", 0.5), ("eager", 0.5), *extra([("overwrite", 0.5), ("blend", 0.5), ("blend", 0.25), ("eager", 1.0)])],
)
def test_fragments_in_turn_with_a_delay_are_streaming_diloco(adoption: str, alpha: float, delay_steps: int) -> None:
    """(§10: P=H, K=M, τ = 1 and 2) Streaming DiLoCo 2501.18512 with α = 0, α > 0, and with the own work kept."""
    rule = {"outer.adoption": adoption, "outer.adoption_blend": alpha}
    in_turn = {"pace.fragments": 4, "pace.steps_per_version": 4, **rule}
    chosen = small.options(2, 36, in_turn, adoption_delay_steps=float(delay_steps))
    lab, report = small.run(chosen)
    states, learners = streaming_loop(chosen.config, sources_of(lab), 36, delay_steps)
    assert report.versions_certified == 36
    assert report.adoption_delay_steps == {"median": delay_steps, "p95": delay_steps}
    assert_same_bits(anchors_of(lab), states)
    digests = [lab.context.active[peer.me].lazy.digest() for peer in lab.world.peers]
    assert digests == [_digest(one) for one in learners]


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


EVERY_STEP = {
    "pace.fragments": 1,
    "pace.steps_per_version": 1,
    "outer.learning_rate": 1.0,
    "outer.momentum": 0.0,
    "inner.learning_rate": 0.5,
    "inner.clip_norm": 1e6,
}


@pytest.fixture
def inner_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_sgd(parameters: object, spec: InnerSpec, *_: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=spec.learning_rate)  # type: ignore[arg-type]

    monkeypatch.setattr("peer.learner.learner.make_optimizer", make_sgd)


@pytest.mark.usefixtures("inner_sgd")
def test_merging_after_every_step_is_data_parallel_bit_for_bit() -> None:
    """(§10: H=P=1, K=M, τ=0, inner and outer SGD, mean) The workers' steps are added in the order of the group.

    A worker's step is the difference of θ before and after in float32, so it is rounded before it is sent.
    """
    lines: list[dict[str, Any]] = []
    chosen = small.options(3, 24, EVERY_STEP, adoption_delay_steps=0.0)
    lab, _ = small.run(chosen, lines.append)
    sources = {peer.me: lab.windows(peer.me) for peer in lab.world.peers}
    orders = [[one["peer"] for one in line["members"]] for line in lines if line["event"] == "version"]
    config, share = chosen.config, torch.tensor(1 / 3)
    model = build_model(config.model, config.data.context_tokens, config.seed).train()
    parameters = list(model.parameters())
    for step, order in enumerate(orders):
        length = rate(step, 24, config.inner) * rewarm(step)
        steps = []
        for worker in order:
            gradients = torch.autograd.grad(loss(model, sources[worker].batch(step)), parameters)
            stepped = [one.detach().add(grad, alpha=-length) for one, grad in zip(parameters, gradients, strict=True)]
            steps.append([(one.detach() - other) * share for one, other in zip(parameters, stepped, strict=True)])
        for parameter, first, second, third in zip(parameters, *steps, strict=True):
            parameter.detach().sub_(first + second + third)
    assert len(orders) == 24
    assert len({tuple(order) for order in orders}) > 1  # so that another order would be noticed
    assert torch.equal(anchors_of(lab)[0].anchor, gather(layouts_of(config)[0], named_tensors(model)))


@pytest.mark.usefixtures("inner_sgd")
def test_merging_after_every_step_is_data_parallel() -> None:
    """(§10: H=P=1, K=M, τ=0, inner and outer SGD, mean) One joint batch, equal up to the last bits of float32."""
    chosen = small.options(3, 24, EVERY_STEP, adoption_delay_steps=0.0)
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
