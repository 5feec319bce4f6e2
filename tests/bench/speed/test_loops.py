from __future__ import annotations

import pytest

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from tests.bench.bench_learner import flops_per_token
from tests.bench.speed.loops import LOOPS

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=32, layers=2, heads=2, intermediate_size=48, vocabulary=64),
    data=DataSpec(context_tokens=16, sequences_per_step=3),
    inner=InnerSpec(optimizer="adamw", learning_rate=1e-3, warmup_steps=0),
)


def test_all_loops_train_the_same_model() -> None:
    """The first losses are of the same parameters; the next ones differ by the learner's warm-up."""
    loops = {name: make(CONFIG, "cpu", False) for name, make in LOOPS.items()}
    first = {name: loop() for name, loop in loops.items()}
    assert first == {name: pytest.approx(first["plain"], rel=1e-5) for name in LOOPS}
    later = {name: [loop() for _ in range(3)] for name, loop in loops.items()}
    assert later["leanest"] == pytest.approx(later["plain"], rel=1e-4)
    assert later["muster"] == pytest.approx(later["plain"], rel=1e-2)


def test_a_tokens_operations_are_six_per_parameter_and_those_of_causal_attention() -> None:
    parameters = 64 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32
    assert flops_per_token(CONFIG) == 6 * parameters + 6 * 2 * 32 * 16
