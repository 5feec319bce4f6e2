"""Progress drawn in one line, and counts in words."""

from __future__ import annotations

import pytest

from coordinator.views.quantity import bar, listed


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


def test_one_of_a_kind_is_not_told_as_many() -> None:
    assert listed("fragment", ["1"]) == "fragment 1"
    assert listed("fragment", ["1", "4"]) == "fragments 1, 4"
