"""Handlers of messages survive a member that says anything at all, and the others go on without it."""

from __future__ import annotations

import pytest

from tests.fuzz.mangler import mangled_run


@pytest.mark.parametrize("seed", range(4))
def test_one_of_four_says_anything(seed: int) -> None:
    mangler = mangled_run(seed)
    print(f"seed {seed}: {mangler.delivered} changed messages, {mangler.world.versions()} versions")
    assert mangler.delivered > 20  # then it is banned
    assert mangler.world.versions() > 10
