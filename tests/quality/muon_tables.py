"""The tables of Muon's distance from data-parallel training, by length and by size."""

from __future__ import annotations

from collections.abc import Mapping

from tests.quality.experiment import LEARNERS
from tests.quality.experiments import MUON_PERIOD
from tests.quality.muon import (
    MUON_LENGTHS,
    MUON_RATES,
    MUON_SIZES,
    MUON_SIZES_ADAMW,
    MUON_SIZES_RATES,
)
from tests.quality.tables import Pair, Reports, best_of, markdown, quotient, shown
from tests.quality.trend import MULOCO_GAPS, PowerLaw, steps_to

LENGTH_GRIDS = {  # by learners and steps
    **{(m, steps): (f"muon-m{m}-{steps}", grid) for (m, steps), grid in MUON_LENGTHS.items()},
    **{(m, 480): (MUON_PERIOD.name(m), MUON_RATES) for m in LEARNERS},
}
LARGER = (100, 1000)  # million parameters


def muon_lengths(reports: Reports) -> str:
    """Return a table of Muon at the shipped period, by learners and steps: best against best on the first seed."""
    found = {size: best_of(reports, *LENGTH_GRIDS[size]) for size in sorted(LENGTH_GRIDS)}
    rows = []
    for (learners, steps), (ours, theirs) in found.items():
        alone = {n: loss for (m, n), (_, loss) in found.items() if m == learners and loss is not None}
        enough = None if ours is None else steps_to(ours, alone)
        same = "" if enough is None else f"{enough:,.0f}"
        rows.append([str(learners), f"{steps:,}", shown(ours), shown(theirs), quotient((ours, theirs)), same])
    heads = ["learners", "steps", "Muster", "data-parallel", "best against best"]
    return markdown([*heads, "data-parallel steps to Muster's loss"], rows)


def muon_sizes(reports: Reports) -> str:
    """Return a table of both optimizers at the shipped period, by size at equal tokens per parameter, at their best."""
    rows = []
    for size in MUON_SIZES:
        ours, theirs = _best_by_size(reports, size)
        adamw, theirs_adamw = best_of(reports, f"muon-size-{size}-adamw8bit", MUON_SIZES_ADAMW)
        losses = map(shown, (ours, theirs, adamw, theirs_adamw))
        rows.append([size, *losses, quotient((ours, theirs)), quotient((ours, theirs_adamw))])
    heads = ["million parameters", "Muon", "data-parallel", "AdamW", "its data-parallel"]
    return markdown([*heads, "over data-parallel Muon", "over data-parallel AdamW"], rows)


def _best_by_size(reports: Reports, size: str) -> Pair:
    return best_of(reports, f"muon-size-{size}-muon8bit", MUON_SIZES_RATES)


def trends(reports: Reports) -> dict[str, Mapping[float, float]]:
    """Return the gaps to data-parallel Muon by million parameters: Muster's, best against best, and published ones."""
    pairs = {float(size): _best_by_size(reports, size) for size in MUON_SIZES}
    ours = {size: one / other - 1 for size, (one, other) in pairs.items() if one is not None and other is not None}
    return {"Muster, 4 learners, H = 24": ours, "MuLoCo, 16 learners, H = 30": MULOCO_GAPS}


def muon_trend(reports: Reports) -> str:
    """Return a table of the gap's fit by size, ours and the published one, with what it says of larger models."""
    rows = []
    for name, gaps in trends(reports).items():
        sizes = ", ".join(f"{size:,g}" for size in gaps)
        if len(gaps) < 2 or min(gaps.values()) <= 0:  # then no power law fits
            rows.append([name, sizes, *[""] * (1 + len(LARGER))])
            continue
        fit = PowerLaw.fitted(gaps)
        rows.append([name, sizes, f"{fit.exponent:.2f}", *(f"{100 * fit.at(size):.2g} %" for size in LARGER)])
    heads = ["gap to data-parallel Muon", "million parameters of the fit", "exponent"]
    return markdown([*heads, *(f"at {size:,} million" for size in LARGER)], rows)
