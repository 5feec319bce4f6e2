"""The model card: what a stranger needs to know of an export, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.views import quantity
from coordinator.views.evaluation import Evaluation
from peer.data.windows import BYTE_VOCABULARY
from peer.export.listing import MANIFEST, PROOF
from peer.model.build import parameter_specs
from peer.rounds.public_status import thinned

if TYPE_CHECKING:
    from peer.export.exported import Exported

EVALUATIONS_SHOWN = 16

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- muster
---

# {name}

A causal language model of {parameters} parameters, trained by volunteers with
[Muster](https://github.com/musterml/muster).

| | |
| --- | --- |
| run | {name}, `{run_id}` |
| organiser | `{organiser}` |
| versions | {versions} certified, over {fragments} fragments ({each}) |
| tokens | {tokens} certified{since} |
| contributors | {contributors} |
| trained on | {data}, in sequences of {context} tokens |
| licence | {licence} |

## Use

```python
from transformers import AutoModelForCausalLM{tokenizer_import}

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
{tokenizer}
```

## Held-out loss

{loss}

{curve}

## Who stands behind it

`{manifest}` is the run's description, and its hash the run id above. `{proof}` holds the certificates of
every fragment. With Muster installed, this recomputes every digest from the weights and names who signed them:

```
muster verify path/to/this/folder
```

This card, unlike the weights, is the word of the peer that wrote the export.
"""

LOADS_TOKENIZER = """tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")  # one token per byte
start = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**start, max_new_tokens=100, do_sample=True)[0]))"""
NO_TOKENIZER = "# the run names no tokenizer: its text came as numbered tokens"
DATA = {"stdlib": "the source text of the Python standard library, byte by byte"}


def model_card(exported: Exported) -> str:
    """README.md: Markdown with the metadata that the Hugging Face Hub reads."""
    manifest, credit = exported.manifest, exported.credit
    config, bytewise = manifest.config, manifest.config.model.vocabulary == BYTE_VOCABULARY
    oldest = max(credit.from_versions)
    return CARD.format(
        name=config.name,
        run_id=manifest.run_id.hex(),
        organiser=manifest.organiser,
        parameters=f"{sum(spec.elements for spec in parameter_specs(config.model)):,}",
        versions=exported.versions,
        fragments=len(exported.captured.held),
        each=quantity.versions(exported.captured.held),
        tokens=f"{credit.tokens:,}",
        since=""
        if credit.complete
        else f" from version {oldest} of each fragment on; earlier ones were not counted here",
        contributors=len(credit.contributors),
        data=DATA[config.data.source],
        context=config.data.context_tokens,
        licence=exported.licence or "not stated; ask the organiser",
        tokenizer_import=", AutoTokenizer" if bytewise else "",
        tokenizer=LOADS_TOKENIZER if bytewise else NO_TOKENIZER,
        loss="" if exported.loss is None else f"This model: {quantity.loss(exported.loss)} nats per token.",
        curve=loss_curve(exported.evaluations),
        manifest=MANIFEST,
        proof=PROOF,
    )


def loss_curve(evaluations: tuple[Evaluation, ...]) -> str:
    """At most EVALUATIONS_SHOWN points, the first and the last among them."""
    if not evaluations:
        return "How it fell is not known to the peer that wrote this export: the run's host evaluates."
    rows = [
        f"| {one.versions} | {one.tokens_certified:,} | {quantity.loss(one.loss)} |"
        for one in thinned(evaluations, EVALUATIONS_SHOWN)
    ]
    head = ["| versions | tokens certified | nats per token |", "| ---: | ---: | ---: |"]
    said = (
        "How it fell, as the host measured now and then on a part of the text; tokens are those since it was started."
    )
    return "\n".join([said, "", *head, *rows])
