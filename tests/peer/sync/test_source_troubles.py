"""Joins among donors that die or lie, with the code of the benchmark that measures them (design §8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.bench_donors import CROWDS, TRIES_MAX, TROUBLES, Crowd, Trouble, crowding, join

UNDISTURBED_SECONDS = 4.0
POISONED = [
    trouble for trouble in TROUBLES if trouble.spoil is not TROUBLES[0].spoil or trouble.old or trouble.trickles
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_join_completes_whatever_befalls_some_donors(trouble: Trouble) -> None:
    found = join(trouble, seed=7)
    assert found.whole
    assert found.seconds < 5 * UNDISTURBED_SECONDS
    assert join(trouble, seed=7) == found  # as the benchmark's figures promise


@pytest.mark.parametrize("trouble", POISONED, ids=lambda trouble: trouble.name)
def test_where_all_donors_are_poisoned_nothing_is_loaded(trouble: Trouble) -> None:
    found = join(replace(trouble, donors=3), seed=7)
    assert not found.whole
    assert found.tries == TRIES_MAX


@pytest.mark.parametrize("crowd", CROWDS[::2], ids=lambda crowd: crowd.name)
def test_slow_lines_and_many_newcomers_take_about_as_long_as_they_must(crowd: Crowd) -> None:
    found = crowding(crowd)
    assert len(found.seconds) == crowd.joiners
    assert max(found.seconds) < 1.3 * crowd.ideal_seconds
    assert found.sent_bytes < 1.1 * crowd.joiners * crowd.size_bytes, "hardly anything is given twice"
