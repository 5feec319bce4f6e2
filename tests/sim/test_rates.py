"""One hostile member of six, whatever it does: versions advance at more than half the rate that they have without it.

Whoever can be convicted is soon gone; these are those who cannot. `python -m tests.sim.rates` prints the figures.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.sim.rates import CALM, versions_made

SEEDS = range(3)
UNPROVEN = (
    "doubt_everything",
    "drop_one",
    "empty_votes",
    "false_evidence",
    "look_away",
    "misshapen_checks",
    "misshapen_commits",
    "never_check",
    "never_commit",
    "never_open",
    "never_return",
    "never_scatter",
    "never_vote",
    "other_bytes",
    "refute_everything",
    "short_parts",
    "shun_half",
    "starve_half",
    "vote_for_all",
)


@cache
def made(attack: str) -> int:
    return sum(versions_made(attack, seed) for seed in SEEDS)


@pytest.mark.parametrize("attack", UNPROVEN)
def test_versions_advance_at_more_than_half_the_fault_free_rate(attack: str) -> None:
    assert made(attack) > made(CALM) / 2
