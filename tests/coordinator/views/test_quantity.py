"""How far something is, drawn in one line."""

from __future__ import annotations

import pytest

from coordinator.views.quantity import bar


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0, "░░░░░░░░░░"),
        (0.001, "▌░░░░░░░░░"),
        (0.35, "███▌░░░░░░"),
        (0.5, "█████░░░░░"),
        (0.999, "█████████▌"),
        (1, "██████████"),
        (1.2, "██████████"),
        (-1, "░░░░░░░░░░"),
    ],
)
def test_a_bar_is_full_or_empty_only_where_all_or_nothing_is_done(share: float, drawn: str) -> None:
    assert bar(share) == drawn
