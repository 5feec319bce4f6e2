"""Attention that is causal by itself, without a mask.

On every forward, `transformers` checks whether a batch is packed, and the CPU waits for the GPU. Under the compiler
it makes a full mask instead, which rules out the fast kernels. Our sequences are whole and of one length. The plain
causal kernel therefore equals a mask, unless a model looks back less far than a sequence is long.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import torch
from torch import nn

NAME = "muster_causal"  # its name in transformers, which makes masks only for names it knows
_BEFORE = "sdpa"


def attend_without_masks(model: nn.Module, context_tokens: int) -> bool:
    """Use attention without masks in this `transformers` model if a test sequence gives the same bits.

    Returns whether it does.
    """
    config = getattr(model, "config", None)
    body = cast(nn.Module, getattr(model, "base_model", model))
    if getattr(config, "_attn_implementation", None) != _BEFORE or not cast(Any, model)._can_set_attn_implementation():
        return False
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NAME, sdpa_attention_forward)
    embedding = cast(Any, model).get_input_embeddings().weight
    tokens = torch.arange(context_tokens, device=embedding.device)[None] % len(embedding)
    with torch.no_grad():
        wanted = body(input_ids=tokens, use_cache=False)[0]
        cast(Any, model).set_attn_implementation(NAME)
        with suppress(Exception):  # code of the family's own: some look into the mask, which is None here
            if torch.equal(body(input_ids=tokens, use_cache=False)[0], wanted):
                return True
    cast(Any, model).set_attn_implementation(_BEFORE)
    return False
