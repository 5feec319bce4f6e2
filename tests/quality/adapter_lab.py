"""Makes the files for `muster lab` to try adapters: `python -m tests.quality.adapter_lab FOLDER`.

Writes a base of 105 thousand parameters, trained on half of the standard library, and the other half as text. The run
file `FOLDER/run.toml` fine-tunes the base on that text (docs/research/results/adapters.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from coordinator.run.manifest import RunConfig
from peer.lab.data import side_texts
from tests.quality.adapter_merges import CONFIG, pretrained

RUN = """
[model]
source = "{folder}/base"
[adapter]
rank = 8
alpha = 16
base_precision = "float32"
[data]
source = "text"
path = "{folder}/second.txt"
context_tokens = {context}
sequences_per_step = {sequences}
[inner]
optimizer = "adamw8bit"
learning_rate = 1e-2
weight_decay = 0.0
warmup_steps = 10
[outer]
learning_rate = 0.65
"""
PRETRAINING_RATE = 3e-3


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    raw = RunConfig.from_toml(CONFIG)
    first, second = side_texts(raw.data)
    inner = raw.inner.model_copy(update={"learning_rate": PRETRAINING_RATE})
    pretrained(folder / "base", raw.model_copy(update={"inner": inner, "versions": 10**6}), first.train)
    (folder / "second.txt").write_text(bytes(second.train.numpy()).decode("utf-8", "ignore"))
    run = RUN.format(folder=folder, context=raw.data.context_tokens, sequences=raw.data.sequences_per_step)
    (folder / "run.toml").write_text(run)


if __name__ == "__main__":
    main()
