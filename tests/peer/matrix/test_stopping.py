"""A model that was trained on many short documents stops by itself, from the run file to sampled text."""

from __future__ import annotations

import pytest
import torch

from coordinator.run.data_spec import NO_TOKEN
from peer.export.sampler import Sampler
from peer.model.description import describe
from tests.peer.local_hub import LocalHub
from tests.peer.matrix.materials import model_keys
from tests.peer.matrix.test_matrix import certified_states, export, run_config

STEPS = 60
WRITTEN_TOKENS = 200
END = "<|endoftext|>"


def written(hub: LocalHub, end_token: int | None) -> list[str]:
    """Return three drawn texts of a model after a short run, with special tokens."""
    config = run_config(hub, "jsonl", "bpe", model_keys("llama"))
    data = config.data.model_copy(update={"sequences_per_step": 16, "end_token": end_token})
    described = describe(config.model_copy(update={"data": data}))
    target = hub.root / f"export-{end_token}"
    export(described, target, certified_states(described, STEPS))
    sampler = Sampler.load(target)
    assert sampler.tokenizer is not None
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        given = torch.tensor([sampler.tokenizer("The river")["input_ids"]])
        how = {"max_new_tokens": WRITTEN_TOKENS, "do_sample": True, "top_k": 20, "pad_token_id": 0}
        found.append(sampler.tokenizer.decode(sampler.model.generate(given, **how)[0]))
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_sampled_text_ends_where_a_document_would(hub: LocalHub) -> None:
    assert all(text.endswith(END) for text in written(hub, None))
    assert not any(END in text for text in written(hub, NO_TOKEN)), "documents without an end teach none"
