"""The model card of an export: what a stranger needs to know about it, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.run.manifest import RunConfig
from coordinator.views import quantity
from coordinator.views.evaluation import Evaluation
from peer.data.hub import HUB
from peer.export.listing import MANIFEST, PROOF
from peer.export.model_files import is_bytewise
from peer.model.build import parameter_specs
from peer.rounds.public_status import thinned

if TYPE_CHECKING:
    from peer.export.exported import Exported

EVALUATIONS_SHOWN = 16

CARD = """---
library_name: {library}
{base}pipeline_tag: text-generation
tags:
- muster
---

# {name}

{what} of {parameters} parameters, trained by volunteers with
[Muster](https://github.com/musterml/muster).

| | |
| --- | --- |
| run | {name}, `{run_id}` |
| organiser | `{organiser}` |
{about}| versions | {versions} certified, over {fragments} fragments ({each}) |
| tokens | {tokens} certified{since} |
| contributors | {contributors} |
| trained on | {data}, in sequences of {context} tokens |
| licence | {licence} |

## Use

{use}

## Held-out loss

{heldout}

## Who stands behind it

`{manifest}` is the run's description, and its hash the run id above. `{proof}` holds the certificates of
every fragment. With Muster installed, this recomputes every digest from the weights and names who signed them:

```
muster verify path/to/this/folder
```

This card, unlike the weights, is the word of the peer that wrote the export.
"""

USE = """```python
from transformers import AutoModelForCausalLM{tokenizer_import}

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
{tokenizer}
```"""
LOADS_TOKENIZER = """tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder"){bytewise}
start = tokenizer("{prompt}", return_tensors="pt")
print(tokenizer.decode(model.generate(**start, max_new_tokens=100, do_sample=True)[0]))"""
NO_TOKENIZER = "# the run names no tokenizer: its text came as numbered tokens"
USE_ADAPTER = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("path/to/the/base")
model = PeftModel.from_pretrained(base, "path/to/this/folder")
```

The base is not here. `muster export --merged --base path/to/the/base`, at a peer of the run, checks that it is the one
that the run was trained on, and writes both as one model."""
USE_OWN = """The model's class is not here: its peers brought it. Load the weights into that class.

```python
from safetensors.torch import load_file

model.load_state_dict(load_file("path/to/this/folder/model.safetensors"), strict=False)
```"""
FILES = "{kind} files, of which every peer brought its own"
DATA: dict[str, str] = {
    "stdlib": "the source text of the Python standard library",
    "text": FILES.format(kind="text"),
    "jsonl": FILES.format(kind="JSON Lines"),
    "parquet": FILES.format(kind="Parquet"),
    "tokens": "numbered tokens in files, of which every peer brought its own",
    "chat": "conversations in files, of which every peer brought its own",
    "hub": "the data set {path} of the Hugging Face Hub",
    "own": "what every peer brought to a loop of its own",
}


def model_card(exported: Exported) -> str:
    """Return README.md: Markdown with the metadata that the Hugging Face Hub reads."""
    manifest, credit = exported.manifest, exported.credit
    config = manifest.config
    oldest = max(credit.from_versions)
    return CARD.format(
        name=config.name,
        library="transformers" if config.adapter is None else "peft",
        base=_base_line(config),
        what="A causal language model" if config.adapter is None else _adapter_of(config),
        run_id=manifest.run_id.hex(),
        organiser=manifest.organiser,
        about=_about(config),
        parameters=f"{sum(spec.elements for spec in parameter_specs(config.model)):,}",
        versions=exported.versions,
        fragments=len(exported.captured.held),
        each=quantity.versions(exported.captured.held),
        tokens=f"{credit.tokens:,}",
        since=""
        if credit.complete
        else f" from version {oldest} of each fragment on; earlier ones were not counted here",
        contributors=len(credit.contributors),
        data=DATA[config.data.source].format(path=config.data.path) + _tokenised(config),
        context=config.data.context_tokens,
        licence=exported.licence or (config.about and config.about.licence) or "not stated; ask the organiser",
        use=_use(config),
        heldout=_heldout(exported),
        manifest=MANIFEST,
        proof=PROOF,
    )


def _base_line(config: RunConfig) -> str:
    """Return the metadata line with an adapter's base model, by which the Hub links the two."""
    name = config.model.source.removeprefix(HUB).partition("@")[0]
    return "" if config.adapter is None or not name else f"base_model: {name}\n"


def _adapter_of(config: RunConfig) -> str:
    adapter, source = config.adapter, config.model.source.removeprefix(HUB)
    assert adapter is not None
    where = f"`{source}` of the Hugging Face Hub" if source else f"a {config.model.family} that every peer brought"
    size = quantity.count(adapter.base_elements)
    return f"A low-rank adapter (LoRA, rank {adapter.rank}) for {where}, a base of {size} parameters;\nit is"


def _about(config: RunConfig) -> str:
    """Return table rows with the run's description of itself; a bar would end a cell."""
    said = [] if config.about is None else config.about.rows()
    return "".join(f"| {label} | {text.replace('|', '/')} |\n" for label, text in said if label != "licence")


def _tokenised(config: RunConfig) -> str:
    if is_bytewise(config):
        return ", byte by byte"
    return ", cut into tokens by the `tokenizer.json` beside it" if config.data.tokenizer_sha256 else ""


def _use(config: RunConfig) -> str:
    """Say how to load the model in the folder."""
    if config.model.is_own:
        return USE_OWN
    if config.adapter is not None:
        return USE_ADAPTER
    loads, bytewise = NO_TOKENIZER, is_bytewise(config)
    if bytewise or config.data.tokenizer_sha256:
        prompt = "def " if config.data.source == "stdlib" else "The "
        loads = LOADS_TOKENIZER.format(prompt=prompt, bytewise="  # one token per byte" if bytewise else "")
    return USE.format(tokenizer=loads, tokenizer_import="" if loads == NO_TOKENIZER else ", AutoTokenizer")


def _heldout(exported: Exported) -> str:
    """Return this model's held-out loss, if it was measured, and the loss curve of the run."""
    loss = [] if exported.loss is None else [f"This model: {quantity.loss(exported.loss)} nats per token."]
    return "\n\n".join([*loss, loss_curve(exported.evaluations)])


def loss_curve(evaluations: tuple[Evaluation, ...]) -> str:
    """Return a table of at most EVALUATIONS_SHOWN evaluations, the first and the last among them."""
    if not evaluations:
        return "How it fell is not known to the peer that wrote this export: the run's host evaluates."
    rows = [
        f"| {one.versions} | {one.tokens_certified:,} | {quantity.loss(one.loss)} |"
        for one in thinned(evaluations, EVALUATIONS_SHOWN)
    ]
    head = ["| versions | tokens certified | nats per token |", "| ---: | ---: | ---: |"]
    said = (
        "How it fell, as the host measured now and then on a part of the text; tokens count from the host's last start."
    )
    return "\n".join([said, "", *head, *rows])
