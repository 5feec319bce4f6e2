"""A recurrent language model that `transformers` does not have; importing this module registers it there.

In a run file, once `pip install ./examples/family` was done on every machine:

    [model]
    family = "gated"
    package = "gated-nets==0.1.0"
    hidden_size = 96
    layers = 2
"""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class GatedConfig(PretrainedConfig):
    """Width, depth and number of tokens, under the names that most families use."""

    model_type = "gated"

    def __init__(self, hidden_size: int = 64, num_hidden_layers: int = 1, vocab_size: int = 256, **others: Any) -> None:
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.vocab_size = vocab_size
        super().__init__(**others)


class GatedForCausalLM(PreTrainedModel):
    """Gated recurrent units between two embeddings (Cho et al. 1406.1078)."""

    config_class = GatedConfig
    _tied_weights_keys: ClassVar[Any] = None

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.units = nn.GRU(config.hidden_size, config.hidden_size, config.num_hidden_layers, False, batch_first=True)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: Tensor, use_cache: bool = False, **_: Any) -> CausalLMOutput:
        """Return the logits of every next token, shape (sequences, tokens, vocabulary)."""
        states, _last = self.units(self.tokens(input_ids))
        return CausalLMOutput(logits=self.head(states))

    def get_input_embeddings(self) -> nn.Module:
        """Return the input embeddings, which the merge treats as such."""
        return self.tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the output embeddings, which the merge treats as such."""
        return self.head


AutoConfig.register("gated", GatedConfig)
AutoModelForCausalLM.register(GatedConfig, GatedForCausalLM)
