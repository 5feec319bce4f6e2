"""Views made once for all tests of the dashboard."""

from __future__ import annotations

import pytest

from coordinator.views.network_view import NetworkView
from tests.dashboard.views import CROWD_SECONDS, DEMO_SECONDS, EPOCH, demo_view, hostile, one_peer_view


@pytest.fixture(scope="session")
def demo() -> NetworkView:
    return demo_view(12, DEMO_SECONDS)


@pytest.fixture(scope="session")
def views(demo: NetworkView) -> dict[str, NetworkView]:
    """By name; all are as of a moment ago, but for the network that is gone."""
    thousand = demo_view(1000, CROWD_SECONDS)
    return {
        "empty": NetworkView(),
        "one peer": one_peer_view(),
        "demo": demo,
        "a thousand": thousand,
        "hostile": hostile(demo),
        "gone": demo.model_copy(update={"network_seen_unix_seconds": EPOCH + 80.0, "demo": False}),
    }
