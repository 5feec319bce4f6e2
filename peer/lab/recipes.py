"""Recommended settings by speed of line; docs/research/results.md has their measurements."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "for home lines, as shipped": "Muon, H = 24, P = 8: about 2 bytes a parameter each way in 24 steps",
        "for home lines, nearer to data-parallel, with 4 bytes of memory more a parameter": (
            "--period 12 --fragments 4 --codec int4 --outer-lr 0.7 --outer-momentum 0.6"
        ),
        "for fast lines, three times the bytes": "--fragments 2 --period 8",
    }
)
