"""Weights that an organiser gives: a folder of `save_pretrained`, read whole or refused with one sentence.

No missing tensor may be replaced by random values, and no unused one may go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from coordinator.run.adapter_spec import HeldPrecision
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.machine.text import first_line
from peer.model.buffers import refill_buffers
from peer.model.families import make_config, make_module
from peer.model.quiet import quietly, without_bars

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OTHERS = ("*.h5", "*.msgpack", "*.gguf", "*.onnx")
_ADAPTER = "adapter_config.json"
CONVERSION = (
    "{folder} holds weights as {name}, which Muster does not read because such a file can run code; if you trust it, "
    "write them anew: python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{folder}')"
    ".save_pretrained('{folder}-safe')\""
)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return a file's floating-point tensors as float32; raises UsageError."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"model.source: {path} cannot be read as safetensors: {error}") from None
    return {name: value.to(torch.float32) for name, value in found.items() if value.is_floating_point()}


def holds_weights(folder: Path) -> bool:
    """Whether the folder has safetensors weights; raises UsageError if it has weights of other formats only."""
    if (folder / _ADAPTER).exists():
        raise UsageError(f"model.source: {folder} holds an adapter; merge it into its model, and name that folder")
    if any(folder.glob("*.safetensors")):
        return True
    for name in _found(folder, _PICKLED):
        raise UsageError("model.source: " + CONVERSION.format(folder=folder, name=name))
    for name in _found(folder, _OTHERS):
        raise UsageError(f"model.source: {folder} holds weights as {name} only; Muster reads safetensors")
    return False


def _found(folder: Path, patterns: Iterable[str]) -> list[str]:
    """Return the names of files that match; files that a trainer keeps beside a model do not count."""
    found = (path.name for pattern in patterns for path in sorted(folder.glob(pattern)))
    return [name for name in found if name not in ("training_args.bin", "optimizer.pt", "scheduler.pt")]


def load_weights(
    spec: ModelSpec, context_tokens: int, folder: Path, precision: HeldPrecision = "float32"
) -> tuple[nn.Module, str]:
    """Return the model with the folder's weights, all finite, and a line on unused ones; raises UsageError.

    Buffers that the folder lacks have the values that follow from the config.
    """
    from transformers import AutoModelForCausalLM

    try:
        with without_bars():
            module, told = AutoModelForCausalLM.from_pretrained(
                folder,
                config=make_config(spec, context_tokens),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                **_held_as(precision),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported, and refused below
            )
    except Exception as error:  # noqa: BLE001 - transformers raises errors of any kind about a damaged folder
        raise UsageError(f"model.source: the weights in {folder} cannot be loaded: {first_line(error)}") from None
    refilled = refill_buffers(module, told["missing_keys"], partial(make_module, spec, context_tokens))
    _check_told(told | {"missing_keys": set(told["missing_keys"]) - refilled}, folder)
    _check_ties(spec, context_tokens, folder)
    _keep_unpacked(module)
    for name, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise UsageError(f"model.source: {name} in {folder} holds values that are no finite numbers")
    return cast(nn.Module, module), _unused(told, folder)


def read_model(folder: Path, **options: Any) -> Any:
    """Return the model that `from_pretrained` with these options reads; buffers that it lacks follow from its config.

    Raises what `from_pretrained` does.
    """
    from transformers import AutoModelForCausalLM

    with quietly():
        module, told = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
        refill_buffers(module, told["missing_keys"], partial(AutoModelForCausalLM.from_config, deepcopy(module.config)))
    return module


def _held_as(precision: HeldPrecision) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a precision; NF4 quantises only layers' matrices, one at a time."""
    if precision != "nf4":
        return {"dtype": getattr(torch, precision)}
    from transformers import BitsAndBytesConfig

    shortened = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"dtype": torch.bfloat16, "quantization_config": shortened}


def _keep_unpacked(module: nn.Module) -> None:
    """Have bitsandbytes evaluate with the same values it trains with.

    On some processors it repacks matrices at their first use in evaluation. That rounds scales once more, and fails
    where a row is not a whole number of blocks.
    """
    for layer in cast(Iterable[Any], module.modules()):
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def _check_told(told: dict[str, Any], folder: Path) -> None:
    """Raise UsageError if `transformers` reports tensors that are missing or have another shape."""
    if missing := sorted(told["missing_keys"]):
        raise UsageError(
            f"model.source: {folder} lacks {len(missing)} of the model's tensors, the first of them {missing[0]}; "
            f"{_hint(told)}"
        )
    if mismatched := sorted(told["mismatched_keys"]):
        name, *shapes = mismatched[0]
        here, there = (tuple(shape) for shape in shapes)
        raise UsageError(
            f"model.source: {name} in {folder} is of shape {here}, and {there} by its config.json; set the sizes right"
        )


def _unused(told: dict[str, Any], folder: Path) -> str:
    """Return a line on unused tensors: normal in a model with parts not for text, else a config with too few layers."""
    if not (unused := sorted(told["unexpected_keys"])):
        return ""
    count = f"{len(unused)}, the first of them {unused[0]}"
    return f"{folder} has tensors that its config.json gives no place ({count}): they are not used"


def _hint(told: dict[str, Any]) -> str:
    unused = sorted(told["unexpected_keys"])
    return f"it has others, as {unused[0]}: are the names right?" if unused else "is it whole?"


def _check_ties(spec: ModelSpec, context_tokens: int, folder: Path) -> None:
    """Raise UsageError if the folder has different values for tied tensors, which `transformers` would untie."""
    with torch.device("meta"):
        module: Any = make_module(spec, context_tokens)
    for name, other in getattr(module, "all_tied_weights_keys", {}).items():
        one, two = _stored(folder, name), _stored(folder, other)
        if one is not None and two is not None and not torch.equal(one, two):
            raise UsageError(
                f"model.source: {folder} has a {name} of its own, which its config.json ties to {other}; write "
                "tie_word_embeddings = false under [model.settings]"
            )


def _stored(folder: Path, name: str) -> Tensor | None:
    """Return a tensor as stored in the files; None if they have none of this name."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                if name in file.keys():  # noqa: SIM118 - it is no mapping
                    return cast(Tensor, file.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"model.source: {path} cannot be read as safetensors: {first_line(error)}") from None
    return None
