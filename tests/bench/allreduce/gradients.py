"""The vectors to reduce: seeded pseudo outer gradients, in the layout of a small Llama of about so many parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from coordinator.run.model_spec import ModelSpec
from peer.model.build import parameter_specs
from peer.numerics.fragments import split_fragments

SCALE = 1e-3
OWN_SHARE = 1.0  # length of the part that is a peer's own, in units of the common part
EMBEDDING_SHARE = 0.2


def model_of(parameters: int) -> ModelSpec:
    """Return a plain Llama of about this size: four fifths of the parameters in layers, the rest in the vocabulary."""
    width, heads = (256, 8) if parameters >= 4_000_000 else (64, 4)
    inner = 11 * width // 4
    per_layer = 4 * width**2 + 3 * width * inner + 2 * width
    layers = max(1, int((1 - EMBEDDING_SHARE) * parameters / per_layer))
    vocabulary = max(2, round((parameters - layers * per_layer - width) / width))
    return ModelSpec(hidden_size=width, layers=layers, heads=heads, intermediate_size=inner, vocabulary=vocabulary)


def elements_of(model: ModelSpec) -> int:
    """Return the number of the model's parameters, all in one fragment."""
    (layout,) = split_fragments(parameter_specs(model), 1)
    return layout.elements


def outer_gradient(elements: int, number: int) -> Tensor:
    """Return the outer gradient of peer `number`, float32[elements], the same in every process."""
    common, own = _normal(elements, 0), _normal(elements, number + 1)
    return common.add_(own, alpha=OWN_SHARE).mul_(SCALE)


def true_mean(elements: int, peers: int) -> Tensor:
    """Return the mean of all peers' outer gradients, float32[elements]."""
    total = torch.zeros(elements, dtype=torch.float64)
    for number in range(peers):
        total += outer_gradient(elements, number)
    return total.div_(peers).float()


def likeness(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """Return the cosine of both, and their L2 distance over the length of `wanted`."""
    found, wanted = found.double(), wanted.double()
    return {
        "cosine": float(found @ wanted / (found.norm() * wanted.norm())),
        "relative_error": float((found - wanted).norm() / wanted.norm()),
    }


def _normal(elements: int, seed: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))
