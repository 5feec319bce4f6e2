import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coordinator.manifest import InnerSpec
from dht.errors import LocalError
from peer.inner_optimizer import (
    MIN_8BIT_ELEMENTS,
    REWARM_STEPS,
    assert_quantised,
    export_state,
    import_state,
    make_optimizer,
    rate,
    rewarm,
    set_rate,
)

EIGHT_BIT = InnerSpec()
FULL = InnerSpec(optimizer="adamw")


def _parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, 64), (65, 64), (63, 64), (300,)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def _step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def test_large_tensors_have_8_bit_state_and_small_ones_do_not():
    parameters = _parameters()
    optimizer = make_optimizer(parameters, EIGHT_BIT)
    _step(optimizer, parameters, seed=1)
    assert_quantised(optimizer)
    for parameter in parameters:
        expected = torch.uint8 if parameter.numel() >= MIN_8BIT_ELEMENTS else torch.float32
        state = optimizer.state[parameter]
        assert state["state1"].dtype == state["state2"].dtype == expected
        assert state["state1"].shape == parameter.shape
        assert state["state1"].unique().numel() > 10


def test_a_silent_fallback_to_32_bits_is_noticed():
    parameters = _parameters()
    optimizer = make_optimizer(parameters, FULL)
    _step(optimizer, parameters, seed=1)
    with pytest.raises(LocalError, match="32 bits"):
        assert_quantised(optimizer)


def test_8_bit_steps_stay_close_to_32_bit_steps():
    eight, full = _parameters(), _parameters()
    optimizers = (make_optimizer(eight, EIGHT_BIT), make_optimizer(full, FULL))
    start = _parameters()
    for step in range(20):
        _step(optimizers[0], eight, step)
        _step(optimizers[1], full, step)
    for first, ours, theirs in zip(start, eight, full, strict=True):
        moved = (theirs - first).norm()
        assert (ours - theirs).norm() < 0.1 * moved


@pytest.mark.parametrize("spec", [EIGHT_BIT, FULL])
def test_only_matrices_decay(spec: InnerSpec):
    parameters = _parameters()
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = make_optimizer(parameters, spec)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    set_rate(optimizer, 0.5)
    optimizer.step()
    for old, new in zip(before, parameters, strict=True):
        factor = 1 - 0.5 * spec.weight_decay if old.ndim > 1 else 1.0
        assert torch.allclose(new, old * factor, rtol=1e-6)


@pytest.mark.parametrize("spec", [EIGHT_BIT, FULL])
def test_a_resumed_optimizer_makes_the_same_bits(spec: InnerSpec):
    straight, broken = _parameters(), _parameters()
    first, second = make_optimizer(straight, spec), make_optimizer(broken, spec)
    for step in range(3):
        _step(first, straight, step)
        _step(second, broken, step)
    resumed = [nn.Parameter(parameter.detach().clone()) for parameter in broken]
    third = make_optimizer(resumed, spec)
    import_state(third, export_state(second))
    for step in range(3, 6):
        _step(first, straight, step)
        _step(third, resumed, step)
    assert all(torch.equal(one, other) for one, other in zip(straight, resumed, strict=True))


def test_exported_state_is_a_copy():
    parameters = _parameters()
    optimizer = make_optimizer(parameters, EIGHT_BIT)
    _step(optimizer, parameters, seed=1)
    exported = export_state(optimizer)
    before = {name: value.clone() for name, value in exported.items()}
    _step(optimizer, parameters, seed=2)
    assert all(torch.equal(before[name], exported[name]) for name in before)
    assert not any("qmap" in name for name in exported)


@pytest.mark.parametrize(
    "other",
    [
        make_optimizer([nn.Parameter(torch.zeros(80, 80))], EIGHT_BIT),
        make_optimizer(_parameters(), FULL),
    ],
    ids=["model", "optimizer"],
)
def test_state_of_another_run_is_refused(other: torch.optim.Optimizer):
    parameters = _parameters()
    optimizer = make_optimizer(parameters, EIGHT_BIT)
    _step(optimizer, parameters, seed=1)
    with pytest.raises(LocalError, match="another run"):
        import_state(other, export_state(optimizer))
    assert not other.state


@given(progress=st.integers(0, 10_000), total=st.integers(1, 5_000), warmup=st.integers(0, 200))
def test_the_rate_stays_between_its_bounds(progress: int, total: int, warmup: int):
    spec = InnerSpec(learning_rate=0.01, warmup_steps=warmup, final_rate_share=0.1)
    value = rate(progress, total, spec)
    assert 0 < value <= 0.01
    if progress >= max(total, warmup + 1):
        assert value == pytest.approx(0.001)


def test_the_rate_rises_to_its_peak_and_falls():
    spec = InnerSpec(learning_rate=0.01, warmup_steps=10, final_rate_share=0.1)
    values = [rate(step, 100, spec) for step in range(101)]
    assert values.index(max(values)) == 10
    assert max(values) == pytest.approx(0.01)
    assert values[:11] == sorted(values[:11])
    assert values[10:] == sorted(values[10:], reverse=True)
    assert values[55] == pytest.approx(0.0055)


def test_an_optimizer_without_state_starts_gently():
    factors = [rewarm(age) for age in range(REWARM_STEPS + 5)]
    assert factors[0] == pytest.approx(1 / (REWARM_STEPS + 1))
    assert factors == sorted(factors)
    assert factors[REWARM_STEPS:] == [1.0] * 5
