"""Base models for tests: a few thousand parameters, made from a seed, saved by `save_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec

CONTEXT = 32


def write_base(
    folder: Path, seed: int = 1, family: str = "llama", dtype: torch.dtype = torch.float32, inner: int = 128
) -> Path:
    """Save a model over bytes with two layers of width 64; `inner` is a Llama's intermediate size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = {"intermediate_size": inner, "num_key_value_heads": 2, "tie_word_embeddings": True}
    own = llama if family == "llama" else {}
    config = AutoConfig.for_model(
        family, vocab_size=256, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, **sizes, **own
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    return folder


def adapter_run(base: Path | str, **adapter: Any) -> RunConfig:
    """Return the config of a run that trains an adapter of this base."""
    return RunConfig(
        model=ModelSpec(source=str(base)),
        data=DataSpec(context_tokens=CONTEXT, sequences_per_step=2, evaluation_tokens=256),
        pace=PaceSpec(fragments=2, steps_per_version=4, overlap=1),
        adapter=AdapterSpec.model_validate({"rank": 4, "alpha": 8.0, "base_precision": "float32"} | adapter),
    )
