"""Runs `muster lab` without one rule of Muster's, to measure the cost of that rule; no user can switch it off.

`python -m tests.quality.without RULE …`, the rest as for `muster lab`. RULE is one of three:
`truncation`: contributions keep all of their weight, instead of at most 1.5 × the median (docs/adr/0039);
`half-more`: contributions have at most the median weight;
`embeddings`: these are merged by direction, like all other tensors (DiLoCo 2604.21428 §D.2 takes their mean).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from coordinator.chain import weights
from coordinator.run.model_spec import ModelSpec
from peer.model import build
from peer.numerics.fragments import TensorSpec


def _truncate_at(times: float) -> None:
    weights.TRUNCATION = times


def _forget_embeddings() -> None:
    listed = build._llama_specs

    def without_mark(spec: ModelSpec) -> Iterator[TensorSpec]:
        return (replace(one, embedding=False) for one in listed(spec))

    build._llama_specs = without_mark


RULES: Mapping[str, Callable[[], None]] = {
    "truncation": partial(_truncate_at, math.inf),
    "half-more": partial(_truncate_at, 1.0),
    "embeddings": _forget_embeddings,
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in RULES:
        sys.exit(f"usage: python -m tests.quality.without {{{','.join(RULES)}}} [options of muster lab]")
    RULES[sys.argv[1]]()
    sys.argv[:2] = ["muster", "lab"]
    from peer.cli.main import main as muster

    muster()


if __name__ == "__main__":
    main()
