"""`muster lab` without one rule of ours, to measure what that rule costs: no user can switch it off.

`python -m tests.quality.without truncation …` gives every contribution the whole of its weight (design §6.2 step 6);
`python -m tests.quality.without embeddings …` merges embeddings by direction, as all other tensors (DiLoCo 2604.21428
§D.2 takes their mean). What follows is as for `muster lab`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from coordinator import weights
from coordinator.model_spec import ModelSpec
from peer import model
from peer.fragments import TensorSpec


def _never_truncate() -> None:
    weights.TRUNCATION = math.inf


def _forget_embeddings() -> None:
    listed = model._llama_specs

    def without_mark(spec: ModelSpec) -> Iterator[TensorSpec]:
        return (replace(one, embedding=False) for one in listed(spec))

    model._llama_specs = without_mark


RULES: Mapping[str, Callable[[], None]] = {"truncation": _never_truncate, "embeddings": _forget_embeddings}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in RULES:
        sys.exit(f"usage: python -m tests.quality.without {{{','.join(RULES)}}} [options of muster lab]")
    RULES[sys.argv[1]]()
    sys.argv[:2] = ["muster", "lab"]
    from peer.cli import main as muster

    muster()


if __name__ == "__main__":
    main()
