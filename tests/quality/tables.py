"""The tables of docs/research, made from kept reports alone: a table that cannot be remade is no result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any

from tests.quality.experiment import SEEDS, Rates
from tests.quality.experiments import (
    ADOPTIONS,
    DELAYS,
    FAILING,
    FAILURES,
    GROUPS,
    LENGTHS,
    PARITY_PERIODS,
    REUNIONS,
    ROUNDS_APART,
    SCAVENGED_STEPS,
    SCAVENGERS,
    SHORTEST,
    SHORTEST_RATES,
    SPLITS,
    healed_at,
    helped_steps,
    length_name,
    parting,
    scavenged_steps,
)

Reports = Mapping[str, Mapping[str, Any]]
Count = Callable[[Mapping[str, Any]], int]  # of a report
NOTHING: Mapping[str, Count] = MappingProxyType({})
Pair = tuple[float | None, float | None]  # losses of Muster and of data-parallel
NEITHER: Pair = (None, None)
_SIZES = {size: (length_name(*size), rates) for size, rates in LENGTHS.items()}
GRIDS = dict(sorted({**_SIZES, (480, 3072): (SHORTEST.name(4), SHORTEST_RATES)}.items()))  # by steps, and their tokens
MISSING = "not run"
SOON_STEPS = 24  # three periods of tests/quality/partition.toml


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def loss_of(report: Mapping[str, Any] | None) -> float | None:
    """Return the last held-out loss in nats per byte; infinite if the run diverged, None if there is no run."""
    if report is None:
        return None
    loss = report["eval_loss_last"]
    return float("inf") if loss is None else float(loss)


def shown(loss: float | None) -> str:
    if loss is None:
        return MISSING
    return "diverged" if loss == float("inf") else f"{loss:.4f}"


def with_error(values: Sequence[float]) -> str:
    """Format the mean ± standard error; the error needs two values."""
    if not values:
        return MISSING
    error = f" ± {stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else " (one seed)"
    return f"{mean(values):.4f}{error}"


def parity(learners: int) -> Callable[[Reports], str]:
    """Return a table of every pair of runs for each period, and of its best pair on all seeds.

    Only the two runs of a pair read the same text. Missing runs are left out.
    """

    def row(heads: Sequence[str], pair: Pair, device: str = "") -> list[str]:
        return [*heads, *map(shown, pair), quotient(pair), device]

    def table(reports: Reports) -> str:
        rows = []
        for period in PARITY_PERIODS:
            name = period.name(learners)
            for seed, rates in period.runs(learners):
                run = f"{name}-s{seed}"
                rows.append(row([period.label, seed, *rates], _pair(reports, run, rates), _device(reports, run, rates)))
            for rate, pair in _at_one_rate(reports, name, period.grid.get(learners, ())).items():
                rows.append(row([f"{period.label}, two texts", SEEDS[0], rate, rate], pair))
            for best in period.best.get(learners, ()):
                ratio = _ratio([_pair(reports, f"{name}-s{seed}", best) for seed in SEEDS])
                rows.append([f"**{period.label}**", "all", *best, "", "", f"**{ratio}**", ""])
        heads = ["period", "seed", "Muster's rate", "the other's", "Muster", "data-parallel", "ratio", "made on"]
        return markdown(heads, [row for row in rows if MISSING not in row[4:7] and f"**{MISSING}**" not in row])

    return table


def lengths(reports: Reports) -> str:
    """Return a table of four learners on the first seed, by number and size of steps.

    It compares best against best, and at one rate.
    """
    rows = []
    for (steps, tokens), best in best_by_length(reports).items():
        alike = [f"{quotient(pair)} at {rate}" for rate, pair in _at_one_rate(reports, *GRIDS[steps, tokens]).items()]
        rows.append([f"{steps:,}", f"{tokens:,}", *map(shown, best), quotient(best), ", ".join(alike)])
    heads = ["steps", "tokens per learner step", "Muster", "data-parallel", "best against best", "at one rate"]
    return markdown(heads, rows)


def best_by_length(reports: Reports) -> dict[tuple[int, int], Pair]:
    """Return each method's least loss over the rates run, for four learners on the first seed; their texts differ."""
    return {size: best_of(reports, name, rates) for size, (name, rates) in GRIDS.items()}


def best_of(reports: Reports, name: str, grid: Sequence[Rates]) -> Pair:
    """Return each method's least loss on the first seed over the rates run."""
    pairs = [_pair(reports, f"{name}-s{SEEDS[0]}", rates) for rates in grid]
    return _least(ours for ours, _ in pairs), _least(theirs for _, theirs in pairs)


def _both(reports: Reports, start: str, rates: Rates) -> Mapping[str, Any] | None:
    """Return the report of the run of both methods at these rates, if there is one."""
    return reports.get(f"{start}-{rates[0]}-{rates[1]}")


def _pair(reports: Reports, start: str, rates: Rates) -> Pair:
    """Return the losses of Muster and of data-parallel in one run of both."""
    report = _both(reports, start, rates)
    return NEITHER if report is None else (loss_of(report), loss_of(report["baseline"]["dp"]))


def _device(reports: Reports, start: str, rates: Rates) -> str:
    """Return the device of both runs; earlier reports do not name it, and ran on CPUs."""
    report = _both(reports, start, rates)
    return "" if report is None else str(report.get("device", "CPU")).partition(",")[0]


def _at_one_rate(reports: Reports, name: str, grid: Sequence[Rates]) -> dict[str, Pair]:
    """Return both losses at each rate that both methods had on the first seed, in different runs on different text."""
    pairs = {rates: _pair(reports, f"{name}-s{SEEDS[0]}", rates) for rates in grid}
    ours = {rates[0]: pair[0] for rates, pair in pairs.items()}
    theirs = {rates[1]: pair[1] for rates, pair in pairs.items()}
    return {rate: (ours[rate], theirs[rate]) for rate in ours if rate in theirs and (rate, rate) not in grid}


def _least(losses: Iterable[float | None]) -> float | None:
    return min((loss for loss in losses if loss is not None), default=None)


def quotient(pair: Pair) -> str:
    ours, theirs = pair
    return MISSING if ours is None or theirs is None else f"{ours / theirs:.4f}"


def _ratio(pairs: Sequence[Pair]) -> str:
    return with_error([ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None])


def grid(corner: str, rows: Mapping[str, str], columns: Mapping[str, str]) -> Callable[[Reports], str]:
    """Return a table of held-out losses; each row and column maps its heading to its part of a report's name."""

    def table(reports: Reports) -> str:
        lines = [
            [row, *(shown(loss_of(reports.get(start + end))) for end in columns.values())]
            for row, start in rows.items()
        ]
        return markdown([corner, *columns], lines)

    return table


def adoption(group: str) -> Callable[[Reports], str]:
    """Return a table of held-out losses by adoption rule and lateness."""
    rows = {rule: f"{group}-{name}-" for rule, name in ADOPTIONS.items()}
    return grid("rule", rows, {f"{delay} steps late": delay for delay in DELAYS})


def against(group: str, reference: str, counts: Mapping[str, Count] = NOTHING) -> Callable[[Reports], str]:
    """Return a table of a group's variants with one seed each: loss, ratio to `reference`, `counts` of each report."""

    def table(reports: Reports) -> str:
        base = loss_of(reports.get(f"{group}-{reference}"))
        rows = []
        for one in GROUPS[group]:
            report = reports.get(one.name)
            if report is None:
                continue
            loss = loss_of(report)
            ratio = MISSING if loss is None or base is None else f"{loss / base:.4f}"
            counted = [str(count(report)) for count in counts.values()]
            rows.append([one.name.removeprefix(f"{group}-"), f"`{one.command}`", shown(loss), ratio, *counted])
        return markdown(["variant", "command", "held out", f"against {reference}", *counts], rows)

    return table


def paired(group: str, reference: str) -> Callable[[Reports], str]:
    """Return a table of a group's variants on several seeds: mean loss, and mean ratio to `reference` seed by seed."""
    suffix = f"-s{SEEDS[0]}"

    def table(reports: Reports) -> str:
        def losses(variant: str) -> list[float | None]:
            return [loss_of(reports.get(f"{variant}-s{seed}")) for seed in SEEDS]

        base = losses(f"{group}-{reference}")
        rows = []
        for variant in (one.name.removesuffix(suffix) for one in GROUPS[group] if one.name.endswith(suffix)):
            own = losses(variant)
            ratio = _ratio(list(zip(own, base, strict=True)))
            rows.append([variant.removeprefix(f"{group}-"), _mean_of(own), ratio])
        return markdown(["variant", "held out", f"against {reference}, paired"], rows)

    return table


def failures(reports: Reports) -> str:
    """Return a table on text and task: loss and accuracy without and with failures, at equal steps and equal tokens."""
    rows = []
    for what in FAILING:
        runs = {how: [reports.get(f"failures-{what}-{how}-s{seed}") for seed in SEEDS] for how in FAILURES}
        losses = {how: [loss_of(one) for one in found] for how, found in runs.items()}
        for how, found in runs.items():
            made = [_millions(found, count) for count in ("tokens", "tokens_certified")]
            ratio = _ratio(list(zip(losses[how], losses["none"], strict=True))) if how != "none" else "—"
            rows.append([f"{what}, {how}", *made, _mean_of(losses[how]), _accuracy(found), ratio])
        elastic = [one["baseline"]["elastic"] for one in runs["half"] if one is not None]
        goodput = _mean_of([one["goodput"] for one in elastic])
        loss = _mean_of([one["eval_loss_last"] for one in elastic])
        made = [_millions(elastic, "tokens"), "all"]
        rows.append([f"{what}, half, elastic data-parallel: goodput {goodput}", *made, loss, "—", "—"])
    heads = ["what, failures", "million tokens trained", "certified", "held out", "top-1", "against none, paired"]
    return markdown(heads, rows)


def scavenging(reports: Reports) -> str:
    """Return a table of the time for the same certified tokens with scavengers for half of the work, and the loss."""
    alone = reports.get("scavenging-0")
    loss_alone = loss_of(alone)
    rows = []
    for more in SCAVENGERS:
        helped = reports.get(f"scavenging-{more}")
        loss = loss_of(helped)
        ideal = scavenged_steps(more) / SCAVENGED_STEPS
        row = [f"{more} for {helped_steps(more)} of {scavenged_steps(more)} steps", f"{ideal:.3f}", MISSING, MISSING]
        if alone is not None and helped is not None and loss is not None and loss_alone is not None:
            missing = 1 - helped["tokens_certified"] / alone["tokens_certified"]  # the four alone make up for it
            row[2:] = [f"{ideal + missing:.3f}", f"{loss / loss_alone:.4f}"]
        rows.append(row)
    return markdown(["scavengers", "ideal", "measured", "loss against none"], rows)


def _millions(reports: Sequence[Mapping[str, Any] | None], what: str) -> str:
    """Return the mean of a count of tokens, in millions."""
    return _mean_of([None if one is None else one[what] / 1e6 for one in reports])


def _accuracy(reports: Sequence[Mapping[str, Any] | None]) -> str:
    return _mean_of([None if one is None else one["next_token_accuracy"] for one in reports])


def _mean_of(values: Sequence[float | None]) -> str:
    """Return the mean over the seeds that were run."""
    return with_error([value for value in values if value is not None])


def partition(reports: Reports) -> str:
    """Return a table of carrying against dropping: as the sides meet, soon after, 100 rounds later; ratios by seed."""
    rows = []
    for own_text, split, rounds in product((False, True), SPLITS, ROUNDS_APART):
        name = parting(split, rounds, own_text)
        runs = [[reports.get(f"{name}-{what}-s{seed}") for what in REUNIONS] for seed in SEEDS]
        parted = [[None if one is None else _Parted(one, healed_at(rounds)) for one in seed] for seed in runs]
        row = [f"{split}, {'own' if own_text else 'same'}", str(rounds)]
        for when in ("met", "soon", "last"):
            losses = [[None if one is None else getattr(one, when)["eval_loss"] for one in seed] for seed in parted]
            row += [_ratio([(drop, uncut) for drop, _, uncut in losses])]
            row += [_ratio([(carry, drop) for drop, carry, _ in losses])]
            row.append(_on_losing_text(parted, when) if own_text else "—")
        rows.append(row)
    heads = ["split, text", "rounds apart"]
    for later in (" as they meet", " soon", " later"):
        heads += [f"dropped / uncut{later}", f"carried / dropped{later}", f"losing side's text{later}"]
    return markdown(heads, rows)


class _Parted:
    """Held-out losses of a run with a partition: just before the sides meet, as they do, soon after, and at the end."""

    def __init__(self, report: Mapping[str, Any], healed_at_step: int) -> None:
        together = [one for one in report["sides"] if one["side"] == "both"]
        self.apart = [one for one in report["sides"] if one["side"] != "both"][-2:]
        self.met = next(one for one in together if one["step"] > healed_at_step)
        self.soon = next(one for one in together if one["step"] >= healed_at_step + SOON_STEPS)
        self.last = together[-1]


def _on_losing_text(parted: Sequence[Sequence[_Parted | None]], when: str) -> str:
    """Return the loss on the losing side's text if dropped, carried and uncut, each a mean over the seeds run."""
    losses: list[list[float]] = [[] for _ in REUNIONS]
    for drop, *others in parted:
        if drop is not None:
            for found, one in zip(losses, (drop, *others), strict=True):
                found += [] if one is None else [getattr(one, when)["text_losses"][_losing_text(drop)]]
    return " / ".join(f"{mean(found):.4f}" if found else MISSING for found in losses) if losses[0] else MISSING


def _losing_text(drop: _Parted) -> int:
    """Return the text on which a swarm that dropped a branch lost most against the better side."""
    best = [min(side["text_losses"][text] for side in drop.apart) for text in (0, 1)]
    return max((0, 1), key=lambda text: float(drop.met["text_losses"][text] - best[text]))


def _banned(report: Mapping[str, Any], hostile: bool) -> int:
    return sum((ban["peer"] in report["attackers"]) == hostile for ban in report["bans"])


BESIEGED: Mapping[str, Count] = MappingProxyType(
    {
        "versions": lambda report: report["versions_certified"],
        "banned": lambda report: _banned(report, hostile=True),
        "honest banned": lambda report: _banned(report, hostile=False),
    }
)
