"""Estimates of the memory and disk that a run takes, by place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from torch import nn

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerOptimizer, InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.views import quantity
from dht.errors import UsageError
from peer.learner.memory_estimate import (
    RUNTIME_BYTES,
    Place,
    activation_bytes,
    available_bytes,
    check_memory,
    evaluator_bytes,
    footprint,
    host_bytes,
    least_bytes,
    optimizer_bytes,
    sequences_per_pass,
)
from peer.learner.messages import LearnerSettings
from peer.machine.limits import Limits
from peer.model.build import parameter_specs
from peer.model.description import own_model
from peer.node.learner_start import learner_bytes
from peer.numerics.fragments import FLOAT_BYTES
from peer.plan import prediction
from peer.plan.cost import Workload
from peer.plan.swarm_plan import PlanFile
from peer.storage.generations import KEPT

SMALL = RunConfig(model=ModelSpec(hidden_size=32, layers=2, heads=2, intermediate_size=48, vocabulary=64))

LARGE = ModelSpec(hidden_size=1024, layers=12, heads=8, intermediate_size=2816)


def on_device(**changes: object) -> int:
    return footprint(SMALL.model_copy(update=changes)).bytes_in("device")


def test_memory_grows_with_the_model_and_the_optimizer() -> None:
    small = on_device()
    assert on_device(model=SMALL.model.model_copy(update={"layers": 4})) > small
    assert on_device(inner=InnerSpec(optimizer="adamw")) > small
    assert on_device(data=DataSpec(sequences_per_step=64)) > small


def test_bfloat16_halves_parameters_and_gradients() -> None:
    large = SMALL.model_copy(update={"model": LARGE})
    rounded = large.model_copy(update={"inner": InnerSpec(precision="bfloat16")})
    sizes = [{need.what.split()[0]: need.size_bytes for need in footprint(one).needs} for one in (large, rounded)]
    assert sizes[1]["parameters"] * 2 == sizes[0]["parameters"]
    assert sizes[1]["gradients"] * 2 == sizes[0]["gradients"]
    assert footprint(rounded).bytes_in("host") > footprint(large).bytes_in("host")
    assert least_bytes(rounded) < least_bytes(large)


def test_eager_keeps_anchors_and_what_it_withholds() -> None:
    eager = SMALL.model_copy(update={"outer": SMALL.outer.model_copy(update={"adoption": "eager"})})
    more = [footprint(eager).bytes_in(place) - footprint(SMALL).bytes_in(place) for place in get_args(Place)]
    elements = footprint(SMALL).parameters
    assert more == [8 * elements, 0, 8 * elements * KEPT]


def test_a_gpu_that_evaluates_holds_the_model_in_float32() -> None:
    large = SMALL.model_copy(update={"model": LARGE})
    elements = footprint(large).parameters
    assert 0 < evaluator_bytes(large) - 4 * elements < host_bytes(large)


def test_the_planner_counts_the_same() -> None:
    for outer in (OuterSpec(), OuterSpec(momentum=0.8, contribution_codec="int4", result_codec="fp32")):
        config = SMALL.model_copy(update={"model": LARGE, "outer": outer})
        work = Workload(footprint(config).parameters, 1, config.pace, outer)
        assert prediction.host_bytes(work) == pytest.approx(footprint(config).bytes_in("host"), rel=0.05)


@pytest.mark.parametrize("more", ["", 'precision = "bfloat16"', "[outer]\nmomentum = 0.9"])
@pytest.mark.parametrize("cut", ["false", "true"])
def test_the_planner_counts_what_a_run_file_takes(tmp_path: Path, more: str, cut: str) -> None:
    """It does so also if the vocabulary is half of the model."""
    path = tmp_path / "run.toml"
    path.write_text(
        "[model]\nvocabulary = 50304\nhidden_size = 512\nlayers = 10\nheads = 8\nintermediate_size = 1344\n"
        f"[pace]\nfragments = 24\ncut_embeddings = {cut}\n[inner]\n{more}\n"
    )
    taken = footprint(RunConfig.from_toml(path))
    (tmp_path / "plan.toml").write_text('run = "run.toml"\n[swarm]\npeers = 2\nstep_seconds = 1.0\n')
    work = PlanFile.load(tmp_path / "plan.toml").workload(tmp_path / "plan.toml")
    assert prediction.host_bytes(work) == pytest.approx(taken.bytes_in("host"), rel=0.05)
    assert work.kept.disk_bytes * work.parameters == pytest.approx(taken.bytes_in("disk"))


@pytest.mark.parametrize("optimizer", ["muon8bit", "adamw8bit", "adamw"])
def test_the_planner_counts_the_optimizer_that_the_run_has(tmp_path: Path, optimizer: InnerOptimizer) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[inner]\noptimizer = "{optimizer}"\n')
    config = RunConfig.from_toml(path)
    kept = footprint(config).bytes_in("device") - footprint(config).step_bytes
    (tmp_path / "plan.toml").write_text('run = "run.toml"\n[swarm]\npeers = 2\nstep_seconds = 1.0\n')
    work = PlanFile.load(tmp_path / "plan.toml").workload(tmp_path / "plan.toml")
    assert work.kept.learner_bytes * work.parameters == pytest.approx(kept, rel=1e-6)
    assert work.kept.learner_bytes == pytest.approx(
        {"muon8bit": 9.1, "adamw8bit": 10.1, "adamw": 16}[optimizer], rel=0.01
    )


def test_a_large_vocabulary_takes_the_logits_of_a_piece_and_the_heads_gradient() -> None:
    def step(vocabulary: int, on_gpu: bool) -> int:
        model = LARGE.model_copy(update={"vocabulary": vocabulary})
        data = DataSpec(context_tokens=1024, sequences_per_step=16)
        return activation_bytes(SMALL.model_copy(update={"model": model, "data": data}), None, False, on_gpu)

    heads = FLOAT_BYTES * LARGE.hidden_size * 64_000
    assert step(128_000, True) - step(64_000, True) == pytest.approx(heads, rel=0.01)
    assert step(128_000, True) < step(256, True) + 2 * heads + (1 << 30)
    assert step(128_000, False) < step(128_000, True) / 4, "a processor makes a step of more and smaller pieces"


def test_the_norm_of_a_gradient_in_bfloat16_takes_four_bytes_on_a_processor() -> None:
    run = SMALL.model_copy(update={"model": LARGE, "inner": InnerSpec(precision="bfloat16")})
    on_gpu, on_processor = (footprint(run, 1, True, where) for where in (True, False))
    assert on_processor.step_bytes == FLOAT_BYTES * on_processor.parameters > on_gpu.step_bytes


def test_muon_keeps_one_moment_of_matrices_and_two_of_embeddings() -> None:
    sizes = {
        name: optimizer_bytes(SMALL.model_copy(update={"inner": InnerSpec(optimizer=name)}))
        for name in ("adamw8bit", "muon8bit", "muon", "adamw")
    }
    tensors = parameter_specs(SMALL.model)
    hidden = sum(one.elements for one in tensors if len(one.shape) == 2 and not one.embedding)
    assert sizes["adamw8bit"] - sizes["muon8bit"] == pytest.approx(hidden, abs=1)
    assert sizes["adamw"] - sizes["muon"] == 4 * hidden


def test_a_model_of_embeddings_only_is_estimated_too() -> None:
    """Such a module of one's own has no matrix for Muon, and the peer ended before its learner began."""
    tables = [nn.Embedding(64, 16), nn.Embedding(32, 16)]
    run = own_model(RunConfig(data=DataSpec(source="own"), pace=PaceSpec(fragments=2)), nn.ModuleList(tables)).config
    assert footprint(run).parameters == 96 * 16
    assert host_bytes(run) > RUNTIME_BYTES


def test_fewer_sequences_and_recomputed_activations_take_less() -> None:
    sizes = [footprint(SMALL, *how).bytes_in("device") for how in ((None, False), (2, False), (1, True))]
    assert sizes == sorted(sizes, reverse=True)


def test_a_line_has_the_amounts_of_every_place_with_a_step_apart() -> None:
    taken = footprint(SMALL)
    assert 0 < taken.step_bytes < taken.bytes_in("device")
    amounts = (taken.bytes_in("device") - taken.step_bytes, taken.step_bytes, *map(taken.bytes_in, ("host", "disk")))
    assert re.findall(r"[\d.]+ [kM]?B", taken.summary()) == [quantity.size(amount) for amount in amounts]
    assert "more during a step" in taken.summary()
    assert footprint(SMALL, 1).step_bytes < taken.step_bytes


def test_a_model_that_does_not_fit_is_refused_in_words() -> None:
    huge = RunConfig(model=ModelSpec(hidden_size=16384, layers=256, heads=128, intermediate_size=65536))
    with pytest.raises(UsageError, match="choose a smaller model"):
        check_memory(least_bytes(huge), available_bytes("cpu"))
    check_memory(least_bytes(SMALL), available_bytes("cpu"))


def test_the_owners_limit_is_shared_between_learner_and_peer() -> None:
    assert learner_bytes(SMALL, Limits()) == LearnerSettings().memory_bytes == 0
    left = learner_bytes(SMALL, Limits(memory_gigabytes=4))
    assert 3e9 < left < 4e9 - footprint(SMALL).bytes_in("host")
    with pytest.raises(UsageError, match=r"allow at least [\d.]+ to train"):
        learner_bytes(SMALL, Limits(memory_gigabytes=0.5))


def test_a_host_keeps_what_peers_keep_and_no_learner() -> None:
    large = SMALL.model_copy(update={"model": LARGE})
    with_momentum = large.model_copy(update={"outer": OuterSpec(momentum=0.8)})
    elements = footprint(large).parameters
    assert 6 * elements < host_bytes(large) - RUNTIME_BYTES < footprint(large).bytes_in("host") + 2 * elements
    assert 4 * elements <= host_bytes(with_momentum) - host_bytes(large) <= 8 * elements


def test_an_evaluation_does_not_say_everything_of_all_sequences_at_once() -> None:
    assert sequences_per_pass(128, 256, 10**6) == 32
    assert sequences_per_pass(128, 256, 10**9) == 1
    assert sequences_per_pass(1024, 50257, 10**6) == 1
    assert sequences_per_pass(1 << 20, 1 << 20, 10**6) == 1
