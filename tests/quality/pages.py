"""Every table of docs/research/results by its name, and how it gets into its page."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.quality.experiments import CUTS, HARD, PERIODS, RULES
from tests.quality.muon import DEPTHS, INITIAL
from tests.quality.muon_tables import muon_lengths, muon_sizes, muon_trend
from tests.quality.tables import (
    BESIEGED,
    Reports,
    adoption,
    against,
    failures,
    grid,
    lengths,
    paired,
    parity,
    partition,
    scavenging,
)

MARKED = re.compile(r"(<!-- table ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


TABLES: dict[str, Callable[[Reports], str]] = {
    "parity-m4": parity(4),
    "parity-m8": parity(8),
    "parity-m16": parity(16),
    "parity-lengths": lengths,
    "muon": against("muon", "default"),
    "muon-outer": paired("muon-outer", "0.65-0"),
    "muon-state": paired("muon-state", "float32"),
    "muon-lengths": muon_lengths,
    "muon-sizes": muon_sizes,
    "muon-trend": muon_trend,
    "initial": grid("layers", {one: f"initial-{one}-" for one in DEPTHS}, {name: name for name in INITIAL}),
    "attacks-muon": against("attacks-muon", "none"),
    "attacks-muon-momentum": against("attacks-muon-momentum", "none"),
    "attacks-muon-sixteen": against("attacks-muon-sixteen", "none"),
    "adoption": adoption("adoption"),
    "adoption-shipped": adoption("adoption-shipped"),
    "codecs": paired("codecs", "bf16"),
    "merges-m8": paired("merges-m8", "mean"),
    "merges-m16": paired("merges-m16", "mean"),
    "noniid": paired("noniid", "rda"),
    "pace": grid("H", {period: f"pace-h{period}-" for period in PERIODS}, {f"P = {cuts}": f"p{cuts}" for cuts in CUTS}),
    "outer": against("outer", "0.65-0"),
    "ablation": against("ablation", "default"),
    "quorum": paired("quorum", "km"),
    "attacks": against("attacks", "none"),
    "attacks-protocol": against("attacks-protocol", "none", BESIEGED),
    "attacks-strengths": against("attacks-strengths", "none"),
    "attacks-claiming": against("attacks-claiming", "none"),
    "attacks-three": against("attacks-three", "none"),
    "attacks-sixteen": against("attacks-sixteen", "none"),
    "attacks-seeds": paired("attacks-seeds", "none"),
    "attacks-sixteen-seeds": paired("attacks-sixteen-seeds", "none"),
    "attacks-noniid": against("attacks-noniid", "none"),
    "rules": grid(
        "merge",
        {**{rule: f"rules-{rule}-" for rule in RULES}, "robust_rda": "attacks-"},  # the default has a group of its own
        {attack: attack for attack in HARD},
    ),
    "partition": partition,
    "failures": failures,
    "scavenging": scavenging,
}


def fill(page: str, reports: Reports) -> str:
    """Return the page with every table between `<!-- table NAME -->` and `<!-- end -->` remade."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](reports) + found[3], page)
