"""The parts of an adapter run's export that `peft` reads: the adapter's config, and the stored names of its tensors."""

from __future__ import annotations

from coordinator.run.manifest import RunConfig
from peer.data.hub import HUB
from peer.export.listing import WEIGHTS
from peer.model.adapter import adapter_layers, peft_name
from peer.model.config_table import Table

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def weights_file(config: RunConfig) -> str:
    """Return the name of the file that holds the trained weights of an export."""
    return WEIGHTS if config.adapter is None else ADAPTER_WEIGHTS


def stored_name(config: RunConfig, name: str) -> str:
    """Return the name of a run's tensor in that file."""
    return name if config.adapter is None else peft_name(name)


def adapter_config(config: RunConfig) -> Table:
    """Return the adapter's `peft.LoraConfig`, which follows from the manifest; raises ValueError without an adapter."""
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
