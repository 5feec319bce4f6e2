"""The leanest Llama that we can write: the benchmark's yardstick, with the values of a `transformers` model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.run.model_spec import ModelSpec

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-6


class _Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width, inner = spec.hidden_size, spec.intermediate_size
        self.heads = spec.heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.attention_norm = nn.RMSNorm(width, NORM_EPSILON)
        self.inner_norm = nn.RMSNorm(width, NORM_EPSILON)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Map float32[sequences, tokens, width] to the same shape."""
        shape = (*hidden.shape[:2], 3, self.heads, -1)
        query, key, value = self.qkv(self.attention_norm(hidden)).view(shape).permute(2, 0, 3, 1, 4)
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.inner_norm(hidden)).chunk(2, -1)
        return hidden + self.down(functional.silu(gate) * up)


class LeanLlama(nn.Module):
    """A Llama whose `forward` returns the mean loss; matrix products with one input are joined into one."""

    def __init__(self, spec: ModelSpec, context_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocabulary, spec.hidden_size)
        self.layers = nn.ModuleList(_Layer(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.hidden_size, NORM_EPSILON)
        size = spec.hidden_size // spec.heads
        turns = ROTARY_BASE ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(context_tokens), torch.cat((turns, turns)))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    @torch.no_grad()
    def take(self, named: dict[str, Tensor]) -> None:
        """Take over the values of `peer.model.build.initial_parameters`."""
        self.embedding.weight.copy_(named["model.embed_tokens.weight"])
        self.norm.weight.copy_(named["model.norm.weight"])
        for index, layer in enumerate(self.layers):
            one = f"model.layers.{index}."
            layer.qkv.weight.copy_(torch.cat([named[f"{one}self_attn.{name}_proj.weight"] for name in "qkv"]))
            layer.out.weight.copy_(named[f"{one}self_attn.o_proj.weight"])
            layer.gate_up.weight.copy_(torch.cat([named[f"{one}mlp.{name}_proj.weight"] for name in ("gate", "up")]))
            layer.down.weight.copy_(named[f"{one}mlp.down_proj.weight"])
            layer.attention_norm.weight.copy_(named[f"{one}input_layernorm.weight"])
            layer.inner_norm.weight.copy_(named[f"{one}post_attention_layernorm.weight"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of int64[sequences, context_tokens + 1]."""
        hidden = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            hidden = layer(hidden, self.cosine, self.sine)
        logits = functional.linear(self.norm(hidden), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, -1)
    return values * cosine + torch.cat((-second, first), -1) * sine
