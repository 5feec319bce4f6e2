"""One hostile member of six, whatever it does: versions advance at more than half the rate that they have without it.

Whoever can be convicted is soon gone; these are those who cannot. `python -m tests.sim.rates` prints the figures.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.sim.rates import CALM, versions_made

SEEDS = range(3)
COMPLAINTS = ("doubt_everything", "refute_everything", "empty_votes", "shun_half", "never_return", "misshapen_checks")
OTHERS = (
    "drop_one",
    "false_evidence",
    "look_away",
    "misshapen_commits",
    "never_check",
    "never_commit",
    "never_open",
    "never_scatter",
    "never_vote",
    "other_bytes",
    "short_parts",
    "starve_half",
    "vote_for_all",
)


@cache
def made(attack: str) -> int:
    return sum(versions_made(attack, seed) for seed in SEEDS)


def check(attack: str) -> None:
    assert made(attack) > made(CALM) / 2


@pytest.mark.parametrize("attack", COMPLAINTS)
def test_versions_advance_at_more_than_half_the_fault_free_rate(attack: str) -> None:
    check(attack)


@pytest.mark.slow
@pytest.mark.parametrize("attack", OTHERS)
def test_so_they_do_with_whatever_else_convicts_nobody(attack: str) -> None:
    check(attack)
