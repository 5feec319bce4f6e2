"""How a peer is put together before it runs."""

from __future__ import annotations

import pytest

from coordinator.manifest import PaceSpec, RunConfig, TrustSpec
from dht.errors import UsageError
from peer.assembly import check_founders


def test_a_run_that_bounds_newcomers_names_who_trains_first() -> None:
    bounded = RunConfig(pace=PaceSpec(min_group=3), trust=TrustSpec(newcomers_share=0.25))
    check_founders(bounded, {"one", "two", "three"})
    with pytest.raises(UsageError, match=r"2 of at least 3 .* --founder"):
        check_founders(bounded, {"one", "two"})
    check_founders(RunConfig(), set())
