"""Handlers of messages survive a member that says anything at all, and the others go on without it."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator.wire.messages import SIGNED_BODIES
from tests.fuzz.headers import NOTES
from tests.fuzz.mangler import mangled_run, signs

SIGNING = [seed for seed in range(24) if signs(seed)]


def test_notes_of_every_kind_are_changed_and_the_others_go_on() -> None:
    mangler = mangled_run(1, copies=4)
    print(f"{mangler.delivered}, {mangler.world.versions()} versions")
    assert mangler.delivered.keys() >= {kind.__name__ for kind in NOTES}
    assert mangler.delivered.total() > 400
    assert mangler.heard  # no note convicts
    assert mangler.world.versions() > 50


@pytest.mark.parametrize("seed", SIGNING[:3])
def test_a_peer_that_signs_anything_loses_its_place_and_the_others_go_on(seed: int) -> None:
    mangler = mangled_run(seed)
    assert not mangler.heard
    assert mangler.world.versions() > 4


def test_statements_of_every_kind_are_changed() -> None:
    delivered = sum((mangled_run(seed).delivered for seed in SIGNING), Counter())
    print(delivered)
    assert delivered.keys() >= SIGNED_BODIES.keys()
