"""What `peft` reads of an adapter run's export: the adapter's config, and what its tensors are called in the file."""

from __future__ import annotations

from coordinator.run.manifest import RunConfig
from peer.data.hub import HUB
from peer.export.listing import WEIGHTS
from peer.model.adapter import adapter_layers, peft_name
from peer.model.config_table import Table

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def weights_file(config: RunConfig) -> str:
    """The file of an export that holds what was trained."""
    return WEIGHTS if config.adapter is None else ADAPTER_WEIGHTS


def stored_name(config: RunConfig, name: str) -> str:
    """What that file calls a tensor of the run."""
    return name if config.adapter is None else peft_name(name)


def adapter_config(config: RunConfig) -> Table:
    """The adapter as `peft.LoraConfig` has it; all of it follows from the manifest. Raises ValueError without one."""
    spec, source = config.adapter, config.model.source
    if spec is None:
        raise ValueError("this run trains no adapter")
    base, _, revision = source.removeprefix(HUB).partition("@")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "revision": revision or None,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(adapter_layers(config)),
        "bias": "none",
        "inference_mode": True,
    }
