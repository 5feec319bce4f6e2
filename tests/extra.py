"""Cases that `make test` leaves to `make test-slow`: further seeds and settings of what one case shows already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def extra(cases: Iterable[object]) -> list[Any]:
    """These cases of `pytest.mark.parametrize`, marked `slow`; a tuple holds the values of several parameters."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow) for one in cases]
