"""A newcomer on a line so slow that a state takes several versions catches up in the end (design §8)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bench.bench_catching_up import SWARMS, catching

IN_TIME = ("a state takes two versions", "a state takes four versions", "a state takes two versions, 0.3 Mbit/s")


@pytest.mark.parametrize("name", IN_TIME)
def test_a_newcomer_catches_up_while_versions_go_on(name: str) -> None:
    moving = SWARMS[name]
    assert moving.ideal_seconds > 1.5 * moving.interval_seconds
    found = catching(moving)
    assert max(found.seconds, default=math.inf) < 4 * moving.ideal_seconds
    assert not found.outrun


def test_many_catch_up_at_once_though_donors_give_little() -> None:
    """Each newcomer gets steps at a quarter of the rate required of a donor that serves one alone."""
    moving = replace(SWARMS["eight at once, donors give 1 Mbit/s"], newcomers=4, given_mbit=0.5)
    found = catching(moving)
    assert len(found.seconds) == 4
    assert max(found.seconds) < 1.5 * moving.ideal_seconds
    assert found.sent_bytes < 1.3 * moving.needed_bytes


def test_where_that_is_impossible_the_newcomer_says_so() -> None:
    found = catching(replace(SWARMS["a state takes sixteen versions"], interval_seconds=0.4, versions_max=30))
    assert found.seconds == ()
    assert found.outrun
