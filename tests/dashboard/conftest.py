"""The demo, made once for all tests of the dashboard."""

from __future__ import annotations

import pytest

from coordinator.views.network_view import NetworkView
from tests.dashboard.views import view_named


@pytest.fixture(scope="session")
def demo() -> NetworkView:
    return view_named("demo")
