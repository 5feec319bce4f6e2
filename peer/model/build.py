"""The model: a Llama or another causal language model of `transformers`, with the same start values on every machine.

Names, shapes and seeded values come from the manifest without importing `transformers` (two seconds of CPU). A
process that only averages parameters therefore starts quickly; `build_model` imports it for a forward pass.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from dht.statement import digest_of
from peer.model.config_table import WRITTEN_BY
from peer.model.families import make_module, shapes_of
from peer.numerics.fragments import FLOAT_BYTES, TensorSpec

if TYPE_CHECKING:
    from transformers import LlamaConfig

DRAWN_AT_ONCE = 1 << 20  # numbers
# names that families give to the matrices that write into the residual stream
RESULTS = frozenset(["o_proj", "out_proj", "c_proj", "down_proj", "dense_4h_to_h", "fc2", "fc_out", "wo", "w2"])


def parameter_specs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Return every trained tensor once, by its name in the model, in a fixed order; tied ones by their first name.

    Except for plain Llama models, `spec` must be that of a manifest, which lists them (`peer.model.description`).
    """
    if spec.is_plain_llama:
        return tuple(_llama_specs(spec))
    if not spec.tensors:
        raise ValueError("a model is described before its tensors are asked for")
    return tuple(TensorSpec(one.name, one.shape, one.embedding, one.start, one.bound) for one in spec.tensors)


def _llama_specs(spec: ModelSpec) -> Iterator[TensorSpec]:
    width, inner = spec.hidden_size, spec.intermediate_size

    def matrix(name: str, rows: int, columns: int) -> TensorSpec:
        return TensorSpec(name, (rows, columns), bound=initial_bound(spec, name, columns))

    embedding = "model.embed_tokens.weight"
    yield TensorSpec(embedding, (spec.vocabulary, width), True, bound=initial_bound(spec, embedding, width))
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield matrix(f"{prefix}.self_attn.{name}.weight", width, width)
        yield matrix(f"{prefix}.mlp.gate_proj.weight", inner, width)
        yield matrix(f"{prefix}.mlp.up_proj.weight", inner, width)
        yield matrix(f"{prefix}.mlp.down_proj.weight", width, inner)
        yield TensorSpec(f"{prefix}.input_layernorm.weight", (width,), start="ones")
        yield TensorSpec(f"{prefix}.post_attention_layernorm.weight", (width,), start="ones")
    yield TensorSpec("model.norm.weight", (width,), start="ones")


def initial_bound(spec: ModelSpec, name: str, fan_in: int) -> float | None:
    """Return the bound on a matrix's start values by `model.initial`; None if the hidden size sets it.

    Layers add up their results, so each of the 2 · layers results starts smaller, to keep the sum's length.
    """
    if spec.initial is None:
        return None
    is_result = name.removesuffix(".weight").rpartition(".")[2] in RESULTS
    return 1 / math.sqrt(fan_in * (2 * spec.layers if is_result else 1))


def initial_parameters(spec: ModelSpec, seed: int, tensors: Sequence[TensorSpec] | None = None) -> dict[str, Tensor]:
    """Return seeded float32 values of these tensors, or of all of `parameter_specs`, by name: the state at version 0.

    Norms start at one, biases at zero, matrices uniform within their bounds, or ±1/√hidden_size. From there a small
    Llama learns far quicker than from the deviation of 0.02 in `transformers` (docs/research/experiments.md). Each
    tensor's numbers come from its own SHAKE-256 stream through one exact conversion and one rounding. All machines and
    releases therefore draw the same bits; torch's normal numbers differ with the vector width of the CPU.
    """
    drawn = {tensor.name: torch.empty(tensor.shape) for tensor in tensors or parameter_specs(spec)}
    for tensor in tensors or parameter_specs(spec):
        draw_initial(spec, seed, tensor, drawn[tensor.name].view(-1))
    return drawn


def draw_initial(spec: ModelSpec, seed: int, tensor: TensorSpec, out: Tensor) -> None:
    """Write the `initial_parameters` of one tensor, or of a part of one, into `out`, float32[elements]."""
    if tensor.start != "uniform":
        out.fill_(float(tensor.start == "ones"))
        return
    key = digest_of(b"muster-initial", seed.to_bytes(8, "big"), tensor.name.encode())
    first = tensor.first_row * tensor.row_elements
    stream = memoryview(hashlib.shake_256(key).digest(FLOAT_BYTES * (first + tensor.elements)))[FLOAT_BYTES * first :]
    bound = 1 / math.sqrt(spec.hidden_size) if tensor.bound is None else tensor.bound
    for start in range(0, tensor.elements, DRAWN_AT_ONCE):
        piece = bytearray(stream[FLOAT_BYTES * start : FLOAT_BYTES * (start + DRAWN_AT_ONCE)])
        fractions = (torch.frombuffer(piece, dtype=torch.int32) >> 8).float().mul_(2.0**-23)  # [-1, 1), exact
        torch.mul(fractions, bound, out=out[start : start + DRAWN_AT_ONCE])


def llama_config(spec: ModelSpec, context_tokens: int) -> LlamaConfig:
    """Return the `transformers` configuration of `spec`, as an export contains it."""
    from transformers.models.llama.configuration_llama import LlamaConfig

    return LlamaConfig(
        vocab_size=spec.vocabulary,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )


def build_model(spec: ModelSpec, context_tokens: int, seed: int) -> nn.Module:
    """Return the run's model in float32 on the CPU; leaves global random state alone.

    It holds `initial_parameters`; unless they are seeded, its values have no meaning. Raises UsageError if the
    installed `transformers` builds other tensors than the manifest lists.
    """
    check_shapes(spec, context_tokens)
    with torch.random.fork_rng(devices=[]):  # transformers draws random values, which are replaced below
        model = _plain_llama(spec, context_tokens) if spec.is_plain_llama else make_module(spec, context_tokens)
    if spec.weights == "seeded":
        named = dict(model.named_parameters())
        with torch.no_grad():
            for tensor in parameter_specs(spec):  # one at a time: all of them would take as much memory as the model
                named[tensor.name].copy_(initial_parameters(spec, seed, [tensor])[tensor.name])
    return model


def build_hollow_model(spec: ModelSpec, context_tokens: int) -> nn.Module:
    """Return the model with empty parameters, for callers that set their `data` to existing memory."""
    check_shapes(spec, context_tokens)
    with torch.random.fork_rng(devices=[]), Unallocated():
        model = _plain_llama(spec, context_tokens) if spec.is_plain_llama else make_module(spec, context_tokens)
    empty = {parameter: nn.Parameter(torch.empty(0)) for parameter in model.parameters()}  # tied ones stay tied
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            module.register_parameter(name, empty[parameter])
    return model


class Unallocated(TorchFunctionMode):
    """A mode in which `torch.empty` allocates no memory, so that nothing is initialised."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.empty:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


def check_shapes(spec: ModelSpec, context_tokens: int) -> nn.Module:
    """Return the model on the meta device; raises UsageError if its tensors are not those that the manifest lists.

    Runs before anything is allocated: a manifest could list few tensors and have a huge model built.
    """
    listed = {tensor.name: tensor.shape for tensor in parameter_specs(spec)}
    with torch.device("meta"):
        model = _plain_llama(spec, context_tokens) if spec.is_plain_llama else make_module(spec, context_tokens)
    if listed != shapes_of(model):
        host = spec.settings_table.get(WRITTEN_BY)
        raise UsageError(
            "the transformers that is installed here builds another model than the run's; install the host's"
            + (f", {host}" if host else "")
        )
    return model


def _plain_llama(spec: ModelSpec, context_tokens: int) -> nn.Module:
    return cast(nn.Module, import_llama()(llama_config(spec, context_tokens)))


def import_llama() -> Any:
    """Import and return the class of Llama models; takes two seconds of CPU time."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy in nats of each next token; `tokens` is int64[sequences, context_tokens + 1]."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
