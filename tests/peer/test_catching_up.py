"""A newcomer on a line where a state takes several versions is there in the end (design §8)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bench.bench_catching_up import SWARMS, Moving, catching


@pytest.mark.parametrize("moving", SWARMS[1:3], ids=lambda moving: moving.name)
def test_a_newcomer_catches_up_while_versions_go_on(moving: Moving) -> None:
    assert moving.ideal_seconds > 1.5 * moving.interval_seconds
    found = catching(moving)
    assert found.seconds < 4 * moving.ideal_seconds
    assert not found.outrun


def test_where_that_is_impossible_the_newcomer_says_so() -> None:
    found = catching(replace(SWARMS[3], interval_seconds=0.4, versions_max=30))
    assert found.seconds == math.inf
    assert found.outrun
