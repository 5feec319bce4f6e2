from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.learner.devices import Placement, Products
from peer.learner.gradient import objective as module
from peer.learner.gradient.attention import NAME, attend_without_masks
from peer.learner.gradient.batch_ahead import BatchAhead
from peer.learner.gradient.loss_scale import FIRST_SCALE, GROWS_AFTER_STEPS, SKIPPED_IN_A_ROW_MAX, LossScale
from peer.learner.gradient.objective import Objective
from peer.learner.learner import Learner, make_learner
from peer.model.build import build_model, loss
from peer.model.description import describe

CONTEXT = 24
CONFIG = RunConfig(
    model=ModelSpec(hidden_size=32, layers=2, heads=2, intermediate_size=48, vocabulary=96),
    data=DataSpec(context_tokens=CONTEXT, sequences_per_step=4),
    inner=InnerSpec(optimizer="adamw", warmup_steps=0),
    pace=PaceSpec(fragments=2, steps_per_version=4),
)
# logits that are divided or capped after the head, a sliding window, learned positions, tied and untied heads
FAMILIES = {
    "gpt2": {},
    "mistral": {"sliding_window": 4},
    "granite": {"logits_scaling": 4.0},
    "gemma2": {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 16},
}


def model_of(family: str) -> nn.Module:
    if family == "llama":
        return build_model(CONFIG.model, CONTEXT, 0).train()
    spec = CONFIG.model.model_copy(update={"family": family})
    spec = spec.model_copy(update={"settings": json.dumps(FAMILIES[family])})
    described = describe(CONFIG.model_copy(update={"model": spec})).config.model
    return build_model(described, CONTEXT, 0).train()


def tokens(sequences: int = 3) -> Tensor:
    return torch.randint(96, (sequences, CONTEXT + 1), generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module) -> list[Tensor]:
    found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.parametrize("logits_at_once", [96, 96 * 7, 1 << 22])
@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_value_and_gradient_are_those_of_the_whole(
    family: str, logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROCESSOR_LOGITS_AT_ONCE", logits_at_once)
    model = model_of(family)
    wanted = loss(model, tokens())
    (0.5 * wanted).backward()
    expected = gradients(model)
    attend_without_masks(model, CONTEXT)
    objective = Objective(model)
    assert objective.value(tokens()).item() == pytest.approx(wanted.item(), rel=1e-5)
    assert objective.backward(tokens(), 0.5).item() == pytest.approx(wanted.item() / 2, rel=1e-5)
    for found, one in zip(gradients(model), expected, strict=True):
        assert torch.allclose(found, one, rtol=1e-4, atol=1e-6)


def test_models_whose_logits_are_more_than_their_heads_product_go_through_whole() -> None:
    parts = {family: Objective(model_of(family)).parts is not None for family in ("llama", *FAMILIES)}
    assert parts == {"llama": True, "gpt2": True, "mistral": True, "granite": False, "gemma2": False}


def test_masks_stay_where_a_model_looks_back_less_far() -> None:
    maskless = {family: attend_without_masks(model_of(family), CONTEXT) for family in ("llama", *FAMILIES)}
    assert maskless == {"llama": True, "gpt2": True, "mistral": False, "granite": True, "gemma2": False}
    short = model_of("mistral")
    assert attend_without_masks(short, 4), "as far as the sequence is long"
    assert short.config._attn_implementation == NAME  # type: ignore[union-attr]


def test_a_family_whose_code_needs_the_mask_keeps_it() -> None:
    """Sparse attention looks into the mask. The host's trial was content, and each learner ended."""
    sizes = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "index_topk": 8}
    ranks = {"kv_lora_rank": 16, "q_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 2}
    heads = {"qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}
    config: Any = transformers.AutoConfig.for_model(
        "deepseek_v32",
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        **sizes,
        **ranks,
        **heads,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    wanted = model(input_ids=tokens()).logits
    assert not attend_without_masks(model, CONTEXT)
    assert torch.equal(model(input_ids=tokens()).logits, wanted)


def test_the_logits_of_all_tokens_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESSOR_LOGITS_AT_ONCE", 96 * 5)
    objective, largest = Objective(model_of("llama")), 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            nonlocal largest
            found = function(*arguments, **(named or {}))
            if isinstance(found, Tensor) and found.ndim == 2 and found.shape[-1] == 96 and len(found) != 32:
                largest = max(largest, found.numel())
            return found

    with Watch():
        objective.backward(tokens(), 1.0)
    assert 0 < largest <= 96 * 5


@contextmanager
def casts() -> Iterator[list[tuple[int, ...]]]:
    """Yield a list of the shapes of tensors that are cast to a shorter type meanwhile."""
    found: list[tuple[int, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            made = function(*arguments, **(named or {}))
            if function is torch.ops.aten._to_copy.default and made.dtype in (torch.bfloat16, torch.float16):
                found.append(tuple(made.shape))
            return made

    with Watch():
        yield found


class Noise:
    def batch(self, window: int) -> Tensor:
        return torch.randint(96, (4, CONTEXT + 1), generator=torch.Generator().manual_seed(window))


def learner(products: Products, sequences: int | None = None) -> Learner:
    return make_learner(CONFIG, Noise(), Placement(products=products, sequences=sequences))


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_are_cast_once_for_all_pieces_of_a_batch(recompute: bool) -> None:
    one = make_learner(CONFIG, Noise(), Placement(products="bfloat16", sequences=1, recompute=recompute))
    with casts() as found:
        one.backward(Noise().batch(0))
    assert found.count((48, 32)) == 2 * CONFIG.model.layers, "gate and up of every layer"
    assert found.count((96, 32)) == 1, "the head"


@pytest.mark.parametrize("products", ["bfloat16", "float16"])
def test_shorter_products_train_about_as_float32_does(products: Products) -> None:
    exact, short = learner("float32"), learner(products)
    for _ in range(3):
        exact.step()
        while short.step().loss is None:
            short._count.window -= 1  # float16 looks for its scale; this test wants the same windows
    assert short.backward(Noise().batch(9)).item() / short._scale.factor == pytest.approx(
        exact.backward(Noise().batch(9)).item(), rel=0.02
    )
    assert (short._scale.factor > 1) == (products == "float16")


def test_a_scale_that_overflows_shrinks_and_one_that_holds_grows() -> None:
    scale = LossScale(scales=True)
    for _ in range(3):
        scale.follow(finite=False)
    assert (scale.factor, scale.skipped) == (FIRST_SCALE / 64, 3)
    for _ in range(GROWS_AFTER_STEPS):
        scale.follow(finite=True)
    assert scale.factor == FIRST_SCALE / 32
    assert LossScale(scales=False).factor == 1.0


def test_only_many_skipped_steps_in_a_row_are_hopeless() -> None:
    scale = LossScale(scales=False)
    for _ in range(5):
        for _ in range(SKIPPED_IN_A_ROW_MAX - 1):
            scale.follow(finite=False)
        assert not scale.is_hopeless
        scale.follow(finite=True)
    for _ in range(SKIPPED_IN_A_ROW_MAX):
        scale.follow(finite=False)
    assert scale.is_hopeless
    assert scale.factor == 1.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_next_batch_waits_on_the_gpu_and_another_one_is_made_if_the_window_changes() -> None:
    ahead = BatchAhead(Noise(), "cuda")
    ahead.prepare(3)
    assert torch.equal(ahead.batch(3).cpu(), Noise().batch(3))
    assert torch.equal(ahead.batch(5).cpu(), Noise().batch(5))
