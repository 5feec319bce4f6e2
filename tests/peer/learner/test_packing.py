"""Sequences of several documents: none sees another, and only learned tokens count in the loss."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from coordinator.run.data_spec import CHAT, DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.data.marks import BEGINS, READ
from peer.learner.devices import Placement
from peer.learner.evaluation import heldout_loss, next_token_accuracy, window_losses
from peer.learner.gradient.objective import Objective
from peer.learner.learner import make_learner
from peer.model.build import build_model, loss
from peer.model.families import make_module
from peer.model.source import settled
from peer.model.trial import try_family

CONTEXT = 24
CONFIG = RunConfig(
    model=ModelSpec(hidden_size=32, layers=2, heads=2, intermediate_size=48, vocabulary=96),
    data=DataSpec(source=CHAT, context_tokens=CONTEXT, sequences_per_step=4, chat_template="x"),
    inner=InnerSpec(optimizer="adamw", warmup_steps=0),
    pace=PaceSpec(fragments=2, steps_per_version=4),
)
FIRST = 9  # tokens of the first document


def model_of(family: str = "llama") -> nn.Module:
    spec = CONFIG.model.model_copy(update={"family": family, "settings": json.dumps(SETTINGS.get(family, {}))})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make_module(settled(spec, CONTEXT, None), CONTEXT)


SETTINGS = {"gemma3_text": {"head_dim": 16, "sliding_window": 4}, "mistral": {"sliding_window": 4}}


def words(sequences: int = 1) -> Tensor:
    return torch.randint(96, (sequences, CONTEXT + 1), generator=torch.Generator().manual_seed(1))


def two_documents(sequences: int = 1) -> Tensor:
    """Return sequences of two documents: none of the first is learned, and all but the first word of the second."""
    tokens = words(sequences)
    tokens[:, : FIRST + 1] |= READ
    tokens[:, [0, FIRST]] |= BEGINS
    return tokens


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "qwen3", "gemma3_text"])
def test_a_document_is_learned_as_if_nothing_stood_before_it(family: str) -> None:
    model = model_of(family)
    objective = Objective(model, marked=True)
    got = objective.backward(two_documents(), 1.0).item()
    gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    alone = loss(model, words()[:, FIRST:])
    alone.backward()
    assert got == pytest.approx(alone.item(), rel=1e-5)
    assert objective.value(two_documents()).item() == pytest.approx(alone.item(), rel=1e-5)
    for one, wanted in zip(gradients, [one.grad for one in model.parameters() if one.grad is not None], strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-6)
    changed = two_documents()
    changed[0, 1:FIRST] ^= 1
    assert torch.equal(objective.value(changed), objective.value(two_documents()))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "qwen3"])
def test_families_that_keep_documents_apart_may_run(family: str) -> None:
    try_family(model_of(family), CONFIG.model.model_copy(update={"family": family}), CONTEXT, packed=True)


@pytest.mark.parametrize("family", ["mamba", "bloom"])
def test_families_that_do_not_are_refused(family: str) -> None:
    model = model_of(family)
    try_family(model, settled(CONFIG.model.model_copy(update={"family": family}), CONTEXT, None), CONTEXT)
    with pytest.raises(UsageError, match=f"a {family} (sees earlier|cannot keep) documents"):
        try_family(model, CONFIG.model.model_copy(update={"family": family}), CONTEXT, packed=True)


class Rows:
    """Batches of sequences with different numbers of learned tokens."""

    def batch(self, window: int) -> Tensor:
        tokens = words(4) + 0 * window
        for number in range(4):
            tokens[number, : 3 + 5 * number] |= READ
        tokens[:, 0] |= BEGINS
        return tokens


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_mean_is_over_learned_tokens_in_whatever_pieces_a_batch_goes(sequences: int) -> None:
    found = []
    for pieces in (None, sequences):
        learner = make_learner(CONFIG, Rows(), Placement("cpu", sequences=pieces))
        found.append((learner.backward(Rows().batch(0)).item(), learner.gradient.clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-7)
    model = build_model(CONFIG.model, CONTEXT, CONFIG.seed)
    assert heldout_loss(model, Rows().batch(0)) == pytest.approx(found[0][0], rel=1e-5)
    losses, counts = window_losses(model, Rows().batch(0))
    assert counts.tolist() == [22, 17, 12, 7]
    assert float((losses * counts).sum() / counts.sum()) == pytest.approx(found[0][0], rel=1e-5)
    assert 0 <= next_token_accuracy(model, Rows().batch(0)) <= 1


def test_a_learner_trains_on_packed_sequences() -> None:
    learner = make_learner(CONFIG, Rows())
    first = learner.step().loss
    for _ in range(20):
        last = learner.step().loss
    assert first is not None
    assert last is not None
    assert last < 0.5 * first
