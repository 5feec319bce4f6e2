"""Hostile members that cannot be convicted: versions advance at more than half their rate without them.

`python -m tests.sim.rates` prints the figures.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.extra import extra
from tests.sim.rates import CALM, FIVE_HOMES, FOUR, FOUR_HOMES, SEVEN, SIX, SIX_HOMES, Setting, versions_made

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
    "give_half",
    "open_half",
    "vote_for_all",
)
SILENT_AT_ONE_STAGE = ("never_scatter", "never_return", "never_check", "never_bundle")
SILENT_FROM_A_STAGE_ON = ("silent_from_commit", "silent_from_part", "silent_from_check")
ELSEWHERE = ("never_scatter", "never_check", "never_bundle", "silent_from_commit", "silent_from_check")
SILENT_SOMEWHERE = (
    "never_gather",
    "never_commit",
    "never_open",
    "never_propose",
    "shun_half",
    "starve_half",
    "give_half",
    "open_half",
)


@cache
def made(attack: str, setting: Setting = SIX, seeds: range = SEEDS) -> int:
    return sum(versions_made(attack, seed, setting) for seed in seeds)


def check(attack: str, setting: Setting = SIX, seeds: range = SEEDS, share: float = 0.5) -> None:
    assert made(attack, setting, seeds) > share * made(CALM, setting, seeds)


@pytest.mark.parametrize("attack", [*COMPLAINTS[:1], *extra(COMPLAINTS[1:])])
def test_versions_advance_at_more_than_half_the_fault_free_rate(attack: str) -> None:
    check(attack, seeds=range(1))


@pytest.mark.parametrize("attack", extra(["silent_from_part", "never_return", *ELSEWHERE]))
def test_so_they_do_at_the_shipped_pace(attack: str) -> None:
    check(attack, FOUR, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["silent_from_part", "never_return", "never_check", "silent_from_commit"])
def test_so_they_do_with_two_of_seven(attack: str) -> None:
    check(attack, SEVEN, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("setting", [FIVE_HOMES, SIX_HOMES])
@pytest.mark.parametrize("attack", ["never_check", "never_return"])
def test_so_they_do_where_most_of_those_who_can_be_called_are_hostile(attack: str, setting: Setting) -> None:
    check(attack, setting, range(1))


@pytest.mark.parametrize(
    ("attack", "worlds", "share"),
    [
        ("long_deadlines+never_propose", 3, 0.25),
        *extra([("long_deadlines+never_propose", 8, 0.4), ("long_deadlines+never_bundle", 8, 0.4)]),
    ],
)
def test_a_leader_that_says_that_all_went_wrong_before_gets_no_longer_time_to_be_silent(
    attack: str, worlds: int, share: float
) -> None:
    """If few peers can be called, the number of a version's first attempt is often high.

    A single world is luck: sixteen worlds made 5 to 26 of 29 versions, 15 on average.
    """
    check(attack, FOUR_HOMES, range(worlds), share)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*COMPLAINTS, *OTHERS])
def test_so_they_do_at_other_seeds_with_whatever_convicts_nobody(attack: str) -> None:
    check(attack)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [FOUR, SEVEN])
@pytest.mark.parametrize("attack", [one for one in (*SILENT_AT_ONE_STAGE, *SILENT_SOMEWHERE) if one != "shun_half"])
def test_so_they_do_at_the_shipped_pace_with_whoever_is_silent_somewhere(attack: str, setting: Setting) -> None:
    check(attack, setting, range(1))


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "worlds", "share"), [(FOUR, 1, 0.5), (SEVEN, 8, 0.3)])
def test_two_of_seven_that_shun_half_leave_a_third(setting: Setting, worlds: int, share: float) -> None:
    """A single world is luck: of seven peers sixteen worlds made 11 to 61 of 79 versions, 34 on average."""
    check("shun_half", setting, range(worlds), share)
