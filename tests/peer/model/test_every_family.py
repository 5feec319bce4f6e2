"""Every causal language model of `transformers` runs with a run file's five sizes, or is refused in a sentence."""

from __future__ import annotations

from contextlib import suppress

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.model.description import describe

SIZES = {"hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 64}
ROOM_BYTES = 1 << 30  # some have parts of fixed sizes


def describe_family(family: str, **settings: int) -> None:
    spec = ModelSpec.model_validate(SIZES | {"family": family, "settings": settings})
    describe(RunConfig(model=spec, data=DataSpec(context_tokens=32)), ROOM_BYTES)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # of what others have written
@pytest.mark.parametrize("family", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_a_family_is_described_or_refused_in_a_sentence(family: str) -> None:
    with suppress(UsageError):
        describe_family(family)


def test_sizes_that_differ_between_layers_may_be_read() -> None:
    """Before, it ended in "a bug in Muster" (AmbiguousGlobalPerLayerAttributeError), and later in 262,144 layers."""
    describe_family("gemma4_text", hidden_size_per_layer_input=0)


def test_a_family_of_two_models_for_text_is_a_sentence() -> None:
    """Before, it ended in "a bug in Muster" (ValueError) if the run file had any settings."""
    with pytest.raises(UsageError, match="more than one of them reads text"):
        describe_family("musicgen")


def test_a_family_that_refuses_its_own_defaults_is_a_sentence() -> None:
    """Before, it ended in "a bug in Muster" (StrictDataclassClassValidationError)."""
    with pytest.raises(UsageError, match="transformers builds no gemma4_assistant from these model settings"):
        describe_family("gemma4_assistant")
