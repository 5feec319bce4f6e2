"""Checks that the kept reports show the paper's orderings."""

from __future__ import annotations

from statistics import mean, stdev

from tests.quality.experiments import SEEDS
from tests.quality.results import reports
from tests.quality.tables import loss_of

REPORTS = reports()


def losses(variant: str) -> dict[int, float]:
    """Return the held-out losses of the kept reports, by seed."""
    found = {seed: loss_of(REPORTS.get(f"{variant}-s{seed}")) for seed in SEEDS}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def ratios(variant: str, reference: str) -> list[float]:
    """Return the ratios of losses, seed by seed."""
    own, base = losses(variant), losses(reference)
    return [own[seed] / base[seed] for seed in own if seed in base]


def noise() -> float:
    """Return the spread of one run over its seeds, as a share of the mean."""
    found = list(losses("codecs-bf16").values())
    return stdev(found) / mean(found)


def test_a_quorum_of_one_without_grace_is_worse_than_one_of_all() -> None:
    """(§10: Table 5) It is worse by more than the spread of seeds, on each seed run: most groups are of one learner."""
    found = ratios("quorum-k1", "quorum-km")
    assert found
    assert min(found) > 1 + 3 * noise()
    assert REPORTS["quorum-k1-s0"]["group_size_mean"] < 1.5
    assert REPORTS["quorum-km-s0"]["group_size_mean"] == 4


def test_grace_recovers_what_a_quorum_of_one_loses() -> None:
    """(§10: Table 5) K=1 with grace is as good as K=M, to the noise of a seed."""
    found = ratios("quorum-k1-grace", "quorum-km")
    assert found
    assert mean(found) < 1 + noise()
    assert REPORTS["quorum-k1-grace-s0"]["group_size_mean"] > 3.5


def test_four_bits_are_as_good_as_sixteen() -> None:
    """(§10: Table 10) The loss of block-absmax int4 and of E3M0 is at most 0.2 % over bf16, in the mean over seeds."""
    for codec in ("int4", "e3m0"):
        found = ratios(f"codecs-{codec}", "codecs-bf16")
        assert len(found) >= 3
        assert mean(found) <= 1.002


def test_two_bits_are_clearly_worse_unless_what_is_cut_off_is_kept() -> None:
    """(§10: Table 10) So it is on every seed, by many standard errors; error feedback takes most of it back."""
    found, fed_back = ratios("codecs-int2", "codecs-bf16"), ratios("codecs-int2-feedback", "codecs-bf16")
    assert len(found) == len(fed_back) >= 3
    assert min(found) > 1.01
    assert mean(found) - 1 > 3 * stdev(found) / len(found) ** 0.5
    assert mean(fed_back) - 1 < (mean(found) - 1) / 3
