"""Handlers of what is said in cells survive a head and a ward that say anything at all."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from tests.fuzz.mangler import Mangler
from tests.sim.crowds import PEERS, scene
from tests.sim.crowds import small_groups as small_groups

VERSIONS = 4
COPIES = 40  # of each message that it changes: a crowd hears few of one peer
STARTED_SECONDS = 1.1  # until all have an inbox


def mangled(number: int, signs: bool) -> Counter[str]:
    """What of one peer's changed messages a crowd heard, while it made VERSIONS all the same."""
    crowd = scene()
    hostile = crowd.peers[number]
    crowd.liars.add(hostile.me)
    delivered: Counter[str] = Counter()
    mangle = partial(Mangler, crowd, hostile, random.Random(number), signs, COPIES, delivered)
    crowd.clock.after(STARTED_SECONDS, mangle)
    crowd.until(VERSIONS)
    print(delivered)
    return delivered


@pytest.mark.parametrize(("number", "own"), [(0, "cell"), (PEERS - 1, "commit")])
def test_a_crowd_goes_on_whatever_one_of_it_says(number: int, own: str) -> None:
    notes, statements = (mangled(number, signs) for signs in (False, True))
    assert min(notes["AgainNote"], notes["YieldNote"], notes["WardNote"], statements[own]) > 0
