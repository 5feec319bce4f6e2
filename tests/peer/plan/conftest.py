"""A fixture with the paper's Table 1, simulated once for many tests."""

from __future__ import annotations

import pytest

from peer.plan.goodput import Availability
from peer.plan.tables import availability

DAYS = 5.0  # 2,000 failures in the quietest cell, so noise stays under half a point
SEED = 1


@pytest.fixture(scope="session")
def simulated() -> dict[tuple[str, int], tuple[Availability, ...]]:
    return availability(DAYS, SEED)
