from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from coordinator.run.inner_spec import InnerOptimizer, InnerSpec, Schedule
from dht.errors import LocalError
from peer.learner.memory_estimate import OPTIMIZER_BYTES
from peer.learner.optimizers.code_tables import code_table
from peer.learner.optimizers.inner_optimizer import (
    MIN_8BIT_ELEMENTS,
    REWARM_STEPS,
    SLOW_DECAY,
    assert_quantised,
    begin_state,
    bytes_per_parameter,
    export_state,
    import_state,
    make_optimizer,
    rate,
    rewarm,
    set_rate,
    state_bytes,
)

EIGHT_BIT = InnerSpec(optimizer="adamw8bit")
FULL = InnerSpec(optimizer="adamw")
SPECS = [pytest.param(InnerSpec(optimizer=name), id=name) for name in get_args(InnerOptimizer)]
EIGHT_BITS = [pytest.param(InnerSpec(optimizer=name), id=name) for name in ("adamw8bit", "lion8bit", "ademamix8bit")]


MUONS = [
    pytest.param("muon", "adamw", {"momentum_buffer"}, id="muon"),
    pytest.param("muon8bit", "adamw8bit", {"momentum", "momentum_absmax"}, id="muon8bit"),
]


def _parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, 64), (65, 64), (63, 64), (300,)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def _step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("spec", EIGHT_BITS)
def test_large_tensors_have_8_bit_state_and_small_ones_do_not(spec: InnerSpec):
    parameters = _parameters()
    optimizer = make_optimizer(parameters, spec)
    _step(optimizer, parameters, seed=1)
    assert_quantised(optimizer)
    for parameter in parameters:
        state = optimizer.state[parameter]
        moments = [value for name, value in state.items() if name.startswith("state")]
        assert len(moments) == (1 if spec.optimizer == "lion8bit" else 2)
        for moment in moments:
            assert moment.dtype == (torch.uint8 if parameter.numel() >= MIN_8BIT_ELEMENTS else torch.float32)
            assert moment.shape[-parameter.ndim :] == parameter.shape
            assert moment.unique().numel() > 10


@pytest.mark.parametrize("spec", SPECS)
def test_a_step_finds_the_state_that_was_begun_before_it_and_makes_none(spec: InnerSpec):
    begun, plain = _parameters(), _parameters()
    optimizers = [make_optimizer(parameters, spec) for parameters in (begun, plain)]
    begin_state(optimizers[0], spec)
    room = {name: value.data_ptr() for name, value in export_state(optimizers[0]).items() if value.ndim}
    assert bool(room) == spec.keeps_8_bits  # torch's own make theirs in the step
    for seed in (1, 2):
        for optimizer, parameters in zip(optimizers, (begun, plain), strict=True):
            _step(optimizer, parameters, seed)
    after = export_state(optimizers[0])
    assert all(after[name].data_ptr() == address for name, address in room.items())
    assert after.keys() == export_state(optimizers[1]).keys()
    assert all(torch.equal(*pair) for pair in zip(begun, plain, strict=True))


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


def _reference(spec: InnerSpec, start: torch.Tensor, steps: int, seed: int) -> torch.Tensor:
    """Run Lion (2302.06675) or AdEMAMix (2409.03137) as their papers write them, in float64."""
    theta, first, slow, second = (start.detach().double(), *torch.zeros(3, *start.shape, dtype=torch.float64))
    for number in range(1, steps + 1):
        gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed + number)).double()
        if spec.optimizer == "lion8bit":
            update = torch.sign(spec.beta1 * first + (1 - spec.beta1) * gradient)
            first = spec.beta2 * first + (1 - spec.beta2) * gradient
        else:
            first = spec.beta1 * first + (1 - spec.beta1) * gradient
            slow = SLOW_DECAY * slow + (1 - SLOW_DECAY) * gradient
            second = spec.beta2 * second + (1 - spec.beta2) * gradient**2
            size = (second / (1 - spec.beta2**number)).sqrt() + 1e-8
            update = (first / (1 - spec.beta1**number) + 5 * slow) / size
        theta = theta * (1 - spec.learning_rate * spec.weight_decay) - spec.learning_rate * update
    return theta


def steps_of(number: int) -> Tensor:
    """Return a matrix after some steps on its own gradients."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    matrix = nn.Parameter(torch.randn(256, 256, generator=generator))
    optimizer = make_optimizer([matrix], InnerSpec(optimizer="adamw8bit"))
    for _ in range(60):
        matrix.grad = torch.randn(256, 256, generator=generator)
        optimizer.step()
    return matrix.detach()


def test_learners_that_step_side_by_side_make_the_bits_that_each_makes_alone() -> None:
    """A lab's learners do so. Before, with a table each, some codes were wrong on busy cores."""
    numbers = range(3)
    alone = [steps_of(number) for number in numbers]
    with ThreadPoolExecutor(len(numbers)) as threads:
        together = list(threads.map(steps_of, numbers))
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("name", ["adamw8bit", "lion8bit", "ademamix8bit", "muon8bit"])
def test_a_process_has_no_more_tables_than_their_library_keeps(name: InnerOptimizer) -> None:
    tables = set()
    for _ in range(3):
        matrix = nn.Parameter(torch.zeros(64, 64))
        matrix.grad = torch.ones(64, 64)
        optimizer = make_optimizer([matrix], InnerSpec(optimizer=name))
        optimizer.step()
        state = optimizer.state[matrix]
        tables |= {state[table].data_ptr() for table in ("qmap1", "qmap2") if state.get(table) is not None}
    assert tables <= {code_table(signed=signed).data_ptr() for signed in (True, False)}


@pytest.mark.parametrize("name", ["lion8bit", "ademamix8bit"])
@pytest.mark.parametrize(("shape", "tolerance"), [((50, 60), 1e-4), ((80, 80), 0.12)], ids=["float32", "8bit"])
def test_the_others_follow_their_papers(name: str, shape: tuple[int, int], tolerance: float):
    """Below MIN_8BIT_ELEMENTS the state is float32 and the steps are the paper's; above, they stay near."""
    spec = InnerSpec(optimizer=name)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    parameter = nn.Parameter(start.clone())
    optimizer = make_optimizer([parameter], spec)
    for number in range(1, 13):
        parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(100 + number))
        optimizer.step()
    wanted = _reference(spec, start, 12, 100)
    assert (parameter - wanted).norm() < tolerance * (wanted - start).norm()


@pytest.mark.parametrize(("name", "beside", "kept"), MUONS)
def test_muon_turns_matrices_and_leaves_the_rest_to_adamw(name: str, beside: str, kept: set[str]):
    """Every singular value of an update is near the length of AdamW's updates; embeddings and vectors use AdamW."""
    spec = InnerSpec(optimizer=name, weight_decay=0.0)
    parameters, plain = _parameters(), _parameters()
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = make_optimizer(parameters, spec, embeddings=[parameters[1]])
    adamw = make_optimizer(plain, InnerSpec(optimizer=beside, weight_decay=0.0))
    _step(optimizer, parameters, seed=1)
    _step(adamw, plain, seed=1)
    for index in (0, 2):
        update = (before[index] - parameters[index].detach()) / spec.learning_rate
        values = torch.linalg.svdvals(update) / (0.2 * max(update.shape) ** 0.5)
        assert ((values > 0.4) & (values < 1.4)).all(), values
        assert (update**2).mean().sqrt() == pytest.approx(0.2, rel=0.3)
        assert set(optimizer.state[parameters[index]]) == kept
    for index in (1, 3):
        assert torch.equal(parameters[index], plain[index])
    assert not torch.equal(parameters[0], plain[0])


@pytest.mark.parametrize("spec", SPECS)
def test_memory_is_measured_and_within_the_estimate(spec: InnerSpec):
    parameters = _parameters()
    optimizer = make_optimizer(parameters, spec)
    assert state_bytes(optimizer) == 0
    _step(optimizer, parameters, seed=1)
    expected = {"adamw8bit": 2, "lion8bit": 1, "ademamix8bit": 3, "adamw": 8, "muon": 4, "muon8bit": 1}[spec.optimizer]
    measured = bytes_per_parameter(spec.optimizer)
    assert expected <= measured < expected + 0.05  # block maxima, a step counter
    assert measured < OPTIMIZER_BYTES[spec.optimizer] + 1e-3
    assert state_bytes(optimizer) >= expected * sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("spec", SPECS)
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


@pytest.mark.parametrize("spec", SPECS)
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


def test_exported_state_is_the_optimizers_own_without_its_tables():
    parameters = _parameters()
    optimizer = make_optimizer(parameters, EIGHT_BIT)
    _step(optimizer, parameters, seed=1)
    exported = export_state(optimizer)
    assert not any("qmap" in name for name in exported)
    held = {one.data_ptr() for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one)}
    assert held >= {one.data_ptr() for one in exported.values() if one.ndim > 0}, "whoever keeps it copies it"


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("other", SPECS)
def test_state_of_another_run_is_refused(spec: InnerSpec, other: InnerSpec):
    parameters = _parameters()
    optimizer = make_optimizer(parameters, spec)
    _step(optimizer, parameters, seed=1)
    # another model under the same optimizer, or the same model under another one
    matrices = [nn.Parameter(torch.zeros(80, 80))] if spec.optimizer == other.optimizer else _parameters()
    reader = make_optimizer(matrices, other)
    with pytest.raises(LocalError, match="another run"):
        import_state(reader, export_state(optimizer))
    assert not reader.state


@given(progress=st.integers(0, 10_000), total=st.integers(1, 5_000), warmup=st.integers(0, 200))
def test_the_rate_stays_between_its_bounds(progress: int, total: int, warmup: int):
    spec = InnerSpec(learning_rate=0.01, warmup_steps=warmup, final_rate_share=0.1)
    value = rate(progress, total, spec)
    assert 0 < value <= 0.01
    if progress >= max(total, warmup + 1):
        assert value == pytest.approx(0.001)


@given(
    progress=st.integers(0, 10_000),
    total=st.integers(1, 5_000),
    schedule=st.sampled_from(get_args(Schedule)),
    share=st.floats(0.01, 1),
)
def test_every_schedule_falls_from_the_peak_to_its_end(progress: int, total: int, schedule: str, share: float):
    spec = InnerSpec(learning_rate=0.01, warmup_steps=5, schedule=schedule, decay_share=share)
    now, next_one = rate(progress, total, spec), rate(progress + 1, total, spec)
    assert 0 < now <= 0.01
    assert progress < spec.warmup_steps or next_one <= now
    if progress >= max(total, spec.warmup_steps + 1):
        assert now == pytest.approx(0.001)


def test_schedules_fall_as_they_are_called():
    linear, stable = (InnerSpec(learning_rate=1, warmup_steps=0, schedule=name) for name in ("linear", "wsd"))
    assert [rate(step, 100, linear) for step in (0, 50, 100)] == pytest.approx([1, 0.55, 0.1])
    assert [rate(step, 100, stable) for step in (0, 50, 80, 90, 100)] == pytest.approx([1, 1, 1, 0.55, 0.1])
    sooner = stable.model_copy(update={"decay_share": 0.5})
    assert [rate(step, 100, sooner) for step in (50, 75, 100)] == pytest.approx([1, 0.55, 0.1])


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
