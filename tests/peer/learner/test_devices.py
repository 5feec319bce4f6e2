"""The device of a machine's steps, and the pieces of a batch: neither changes a batch's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError, UsageError
from peer.cli import arguments
from peer.learner import devices as placement
from peer.learner.devices import Placement, choose_devices, devices_name
from peer.learner.learner import Learner, make_learner
from peer.learner.microbatch import bytes_in_use
from peer.learner.setup import compile_steps, fitted
from peer.machine.heap import give_back_freed

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=64, layers=2, heads=2, intermediate_size=72, vocabulary=64),
    data=DataSpec(context_tokens=32, sequences_per_step=6),
    inner=InnerSpec(warmup_steps=4),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
GIB = 1 << 30


def gibibytes(number: float) -> Callable[[int], int]:
    """Return an estimate of so many GiB, for any number of devices."""
    return lambda _: int(number * GIB)


class Uneven:
    """Batches of six different sequences, others in every window."""

    def batch(self, window: int) -> Tensor:
        return torch.randint(64, (6, 33), generator=torch.Generator().manual_seed(window))


WHOLE = Placement()


def learner(place: Placement = WHOLE, config: RunConfig = CONFIG) -> Learner:
    return make_learner(config, Uneven(), place)


@pytest.mark.parametrize("place", [Placement(sequences=1), Placement(sequences=4), Placement(recompute=True)])
def test_pieces_add_up_to_the_whole_batch(place: Placement) -> None:
    whole, pieces = learner(), learner(place)
    batch = Uneven().batch(0)
    assert pieces.backward(batch).item() == pytest.approx(whole.backward(batch).item(), rel=1e-6)
    scale = whole.gradient.abs().max()
    assert (pieces.gradient - whole.gradient).abs().max() < 1e-6 * scale
    steps = [(one.step(), one.counters(0)) for one in (whole, pieces)]
    assert steps[0][1] == steps[1][1], "tokens are certified by the step, whatever it was made of"
    assert steps[0][0].tokens == steps[1][0].tokens == 6 * 32


def test_a_processor_takes_as_much_at_once_as_its_caches_hold_and_a_gpu_all() -> None:
    assert [Placement().at_once(tokens) for tokens in (128, 2048, 4096)] == [16, 1, 1]
    assert Placement(sequences=3).at_once(128) == 3
    assert Placement(sequences=64).at_once(128) == 16
    assert [Placement("cuda:0", sequences=limit).at_once(128) for limit in (None, 64)] == [None, 64]


def test_a_batch_goes_through_at_once_if_it_fits() -> None:
    one = learner()
    before = one.export_state()
    place, taken = fitted(one, bytes_in_use("cpu") + GIB)
    assert (place.sequences, place.recompute) == (None, False)
    assert bytes_in_use("cpu") * 0.5 < taken < bytes_in_use("cpu") + GIB
    assert all(torch.equal(before[name], value) for name, value in one.export_state().items())
    assert one.step() == learner().step(), "trials leave no trace"


def test_a_model_that_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="not even one sequence of 32 tokens"):
        fitted(learner(), GIB // 64)


def test_memory_decides_how_many_sequences_go_through_at_once() -> None:
    """The sequences are long, so that their memory stands out from that of the process."""
    data = DataSpec(context_tokens=512, sequences_per_step=16)
    wide = CONFIG.model_copy(update={"data": data, "model": CONFIG.model.model_copy(update={"vocabulary": 4096})})

    class Long:
        def batch(self, window: int) -> Tensor:
            return torch.randint(4096, (16, 513), generator=torch.Generator().manual_seed(window))

    one = make_learner(wide, Long())
    free, _ = fitted(one, bytes_in_use("cpu") + 16 * GIB)
    assert free.sequences is None
    assert free.at_once(512) == 4, "a processor takes no more"
    one = make_learner(wide, Long())
    give_back_freed()  # what the first one's trials left with glibc would be room that the limit does not count
    tight, taken = fitted(one, limit := bytes_in_use("cpu") + 70 * (1 << 20))
    assert tight.sequences is not None
    assert 1 <= tight.sequences < 4
    assert taken <= limit + (1 << 20)
    assert one.step().tokens == 16 * 512


class Short:
    """A hook that acts like a GPU filled by others: at most so many sequences fit at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if len(arguments[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_step_that_finds_no_memory_is_made_in_smaller_pieces() -> None:
    one, whole, room = learner(), learner(), Short(2)
    filled = one.model.get_input_embeddings().register_forward_pre_hook(room)  # type: ignore[operator]
    assert one.step().tokens == 192
    assert one.placement.sequences == 2
    room.most = 0
    with pytest.raises(LocalError, match="no memory left"):
        one.step()
    filled.remove()
    assert one.step().loss == pytest.approx([whole.step().loss for _ in range(2)][-1], rel=1e-3)


def test_resting_gives_up_gradients_and_keeps_every_bit() -> None:
    rested, straight = learner(), learner()
    for one in (rested, straight):
        one.set_progress(9)
        one.step()
    rested.rest()
    assert rested.gradient.numel() == 0
    assert all(parameter.grad is None for parameter in rested.model.parameters())
    out = torch.empty(rested.fragments[0].elements)
    counters = rested.snapshot(0, out)
    for one in (rested, straight):
        one.adopt(0, out * 0.5, out, counters.steps, counters.tokens)
    assert [rested.step() for _ in range(2)] == [straight.step() for _ in range(2)]
    theta = [one.export_state()["theta"] for one in (rested, straight)]
    assert torch.equal(*theta)


def test_without_a_gpu_the_processor_is_chosen_and_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_devices("cpu", gibibytes(1), 1.0) == (("cpu",), "")
    assert choose_devices("auto", gibibytes(1), 1.0) == (("cpu",), "torch finds no GPU here")
    with pytest.raises(UsageError, match="--device cuda: torch finds no GPU here; choose --device cpu, or auto"):
        choose_devices("cuda", gibibytes(1), 1.0)
    assert devices_name(("cpu",), 2) == "CPU, 2 threads"
    assert devices_name(("cpu", "cpu"), 3) == "2 × CPU, 1 thread"


def test_the_gpu_with_most_room_is_chosen_if_the_run_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"cuda:0": (2 * GIB, 8 * GIB), "cuda:1": (6 * GIB, 8 * GIB)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: free[device])
    monkeypatch.setattr(placement.torch, "ones", lambda *size, device: torch.full(size, 1.0))  # type: ignore[attr-defined]
    assert choose_devices("auto", gibibytes(5), 1.0) == (("cuda:1",), "")
    small = "5.0 GiB are needed on one card at least, and cuda:1 has 4.0 for us"
    assert choose_devices("auto", gibibytes(5), 0.5) == (("cpu",), small)
    assert choose_devices("cuda", gibibytes(5), 1.0) == (("cuda:1",), "")
    assert choose_devices("cuda:1,cuda:0", gibibytes(1), 1.0) == (("cuda:1", "cuda:0"), "")
    with pytest.raises(UsageError, match="torch finds no such GPU, only cuda:0, cuda:1; choose"):
        choose_devices("cuda:2", gibibytes(1), 1.0)
    with pytest.raises(UsageError, match=r"cuda:0 has 2\.0 for us"):
        choose_devices("cuda:1,cuda:0", gibibytes(5), 1.0)
    assert choose_devices("cuda:1,cuda:0", lambda size: 4 * GIB // size, 1.0)[0] == ("cuda:1", "cuda:0")

    def broken(*size: int, device: str) -> Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nand more")

    monkeypatch.setattr(placement.torch, "ones", broken)  # type: ignore[attr-defined]
    assert choose_devices("auto", gibibytes(1), 1.0) == (
        ("cpu",),
        "cuda:1 does not work: CUDA error: no kernel image is available",
    )


def test_devices_are_named_as_torch_does() -> None:
    assert [arguments.device(text) for text in ("auto", "cpu", "cuda", "cuda:3")] == [
        "auto",
        "cpu",
        "cuda",
        "cuda:3",
    ]
    assert arguments.device("cuda:0,cuda:10") == "cuda:0,cuda:10"
    for text in ("gpu", "cuda:0,cpu", "cuda:0,", "cuda,cuda:1"):
        with pytest.raises(UsageError, match="cuda:1 for the second GPU, or cuda:0,cuda:1 for both"):
            arguments.device(text)
    with pytest.raises(UsageError, match="names a GPU twice"):
        arguments.device("cuda:1,cuda:1")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_steps_compute_the_same_without_masks() -> None:
    """The results are close, but need not have the same bits."""
    plain, compiled = learner(), learner()
    assert compile_steps(compiled).startswith("compiled in ")
    assert compiled.placement.compiled
    masks: list[object] = []

    def look(_layer: nn.Module, _arguments: object, named: dict[str, object]) -> None:
        masks.append(named["attention_mask"])

    compiled.model.model.layers[0].register_forward_pre_hook(look, with_kwargs=True)  # type: ignore[union-attr]
    batch = Uneven().batch(0)
    assert compiled.backward(batch).item() == pytest.approx(plain.backward(batch).item(), rel=1e-4)
    assert (compiled.gradient - plain.gradient).abs().max() < 1e-4 * plain.gradient.abs().max()
    assert masks == [None]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiler_that_fails_leaves_steps_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config as inductor

    torch.compiler.reset()  # what other tests have compiled
    monkeypatch.setattr(inductor.cpp, "cxx", (str(tmp_path / "no-compiler"),))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    plain, one = learner(), learner()
    assert compile_steps(one).startswith("not compiled, because ")
    assert not one.placement.compiled
    assert one.step() == plain.step()
