"""The demo, made once for all tests of the dashboard."""

from __future__ import annotations

import sys

import pytest

from coordinator.views.network_view import NetworkView
from tests.dashboard.views import view_named


@pytest.fixture(scope="session")
def demo() -> NetworkView:
    return view_named("demo")


@pytest.fixture(autouse=True)
def own_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore `__main__`: Streamlit's tests leave their script there, and processes of later tests would run it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
