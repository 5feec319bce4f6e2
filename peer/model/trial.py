"""A trial of a family before it may run, so that a mistake is reported at once instead of after hours.

`transformers` has a causal language model for families with another purpose: encoders that see the tokens they are to
predict, models of several parts, models whose layers keep state that no optimizer trains.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.data.marks import BEGINS, inputs_of, numbers
from peer.machine.text import first_line
from peer.model.buffers import fresh_buffers, kept_buffers
from peer.model.families import make_module

TRIED_TOKENS = 32  # so that a later token is seen by many earlier ones
TRIED_WORK_MAX = 1 << 33  # parameters times tokens: a second or two; beyond it, the whole context is not tried
TRIED_SEED = 1  # of the model with which buffers are compared, so that random ones differ
CAUSAL_TOLERANCE = 1e-3  # of the largest logit: experts get batches of other sizes, which round differently


def try_family(module: nn.Module, spec: ModelSpec, context_tokens: int, packed: bool = False) -> None:
    """Raise UsageError if this model cannot be trained as a language model on sequences of this length.

    With `packed`, it must also keep several documents in one sequence apart (`peer.data.marks`). The trial checks the
    context's length, the shape of the output, that no logit depends on a later token, and that no buffer is trained.
    It returns the module unchanged, in evaluation mode.
    """
    check_context(cast(Any, module).config, spec, context_tokens)
    module.train(getattr(module, "is_quantized", False))  # bitsandbytes passes no gradient on in evaluation mode
    few = torch.arange(min(TRIED_TOKENS, context_tokens // 2))[None] % spec.vocabulary
    _check_causality(module, spec, few)
    if packed:
        _check_packing(module, spec, few)
    elements = sum(parameter.numel() for parameter in module.parameters())
    length = context_tokens if elements * context_tokens <= TRIED_WORK_MAX else min(context_tokens, TRIED_TOKENS)
    tokens = torch.arange(length)[None] % spec.vocabulary
    logits = _logits(module, spec, tokens)
    if logits.shape != (1, length, spec.vocabulary):
        raise UsageError(
            f"a {spec.family} gives logits of shape {tuple(logits.shape)} for {length} tokens and a vocabulary of "
            f"{spec.vocabulary}; choose another family"
        )
    _check_buffers(module, spec, context_tokens, few)


def check_context(config: Any, spec: ModelSpec, context_tokens: int) -> None:
    """Raise UsageError if the model is not made for sequences of this length."""
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < context_tokens:
        name = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
        raise UsageError(
            f"data.context_tokens = {context_tokens} is more than this {spec.family} can see: its {name} is {longest}; "
            "lower the former"
        )


@torch.no_grad()
def _logits(module: nn.Module, spec: ModelSpec, tokens: Tensor) -> Tensor:
    try:
        return cast(Tensor, module(input_ids=tokens, use_cache=False).logits)
    except Exception as error:  # noqa: BLE001 - an error of a model class about a sequence is not our mistake
        raise UsageError(
            f"a {spec.family} of these settings does not take a sequence of {tokens.shape[1]} tokens: "
            f"{first_line(error)}"
        ) from None


def _check_causality(module: nn.Module, spec: ModelSpec, tokens: Tensor) -> None:
    """Raise UsageError if the model sees the tokens it is to predict: its loss would fall to zero for nothing."""
    if _is_causal(module, spec, tokens):
        return
    advice = "choose a family that generates text"
    if getattr(cast(Any, module).config, "is_decoder", None) is False:
        advice = "write is_decoder = true under [model.settings], or choose a family that generates text"
    raise UsageError(f"a {spec.family} of these settings sees the tokens that it is to predict; {advice}")


def _is_causal(module: nn.Module, spec: ModelSpec, tokens: Tensor) -> bool:
    """Whether no output of the first half depends on the second half, by gradient or by experts' choice of tokens."""
    half = tokens.shape[1] // 2
    later = tokens.clone()
    later[:, half:] = (later[:, half:] + 1) % spec.vocabulary
    before, after = (_logits(module, spec, one)[:, :half] for one in (tokens, later))
    if float((before - after).abs().max()) > CAUSAL_TOLERANCE * float(before.abs().max()):
        return False  # this also finds experts that choose their tokens, which gradients do not show
    seen: list[Tensor] = []
    embeddings = cast(Any, module).get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda *given: seen.append(given[-1]))
    try:
        with torch.enable_grad():
            logits = cast(Tensor, module(input_ids=tokens, use_cache=False).logits)[:, :half].float()
            (gradient,) = torch.autograd.grad(logits.square().sum(), seen[:1], allow_unused=True)
    finally:
        hook.remove()
    return gradient is None or not bool(gradient[:, half:].any())


def _check_packing(module: nn.Module, spec: ModelSpec, tokens: Tensor) -> None:
    """Raise UsageError if the model mixes documents: it would train on something else, unnoticed."""
    half = tokens.shape[1] // 2
    two = torch.cat((tokens[:, :half], tokens[:, :half].flip(1), tokens[:, :1]), 1)
    two[:, half] |= BEGINS
    try:
        with torch.no_grad():
            together = module(**inputs_of(two, marked=True), use_cache=False).logits[:, half:]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"a {spec.family} cannot keep documents in one sequence apart: {first_line(error)}") from None
    alone = _logits(module, spec, numbers(two[:, half:-1]))
    if float((together - alone).abs().max()) > CAUSAL_TOLERANCE * float(alone.abs().max()):
        raise UsageError(
            f"a {spec.family} sees earlier documents of a sequence in later ones; choose a family that attends by "
            "position_ids"
        )


def _check_buffers(module: nn.Module, spec: ModelSpec, context_tokens: int, tokens: Tensor) -> None:
    """Raise UsageError for buffers that do not follow from the config: they are not exchanged."""
    kept = kept_buffers(module)
    if not kept:
        return
    fresh = fresh_buffers(partial(make_module, spec, context_tokens), TRIED_SEED)
    before = {name: value.clone() for name, value in kept.items()}
    module.train()
    _logits(module, spec, tokens)
    module.eval()
    for name, value in before.items():
        with torch.no_grad():
            changed = not torch.equal(value, kept[name])
            kept[name].copy_(value)
        if changed or name not in fresh or not _is_perhaps_rounded(value, fresh[name]):
            what = "which training changes" if changed else "with values of its own"
            raise UsageError(
                f"this {spec.family} has the buffer {name}, {what}; Muster carries parameters only, so choose another "
                "model"
            )


def _is_perhaps_rounded(value: Tensor, exact: Tensor) -> bool:
    """Whether this is the exact value, or the one that a file in half precision holds of it."""
    kinds = (exact.dtype, torch.bfloat16, torch.float16)
    return any(torch.equal(value, exact.to(kind).to(value.dtype)) for kind in kinds)
