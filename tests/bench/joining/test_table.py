from __future__ import annotations

from peer.chaos.score import Window
from tests.bench.bench_joining import DONORS, Join, JoiningWatch, table


def watch_of(*, slow: Window) -> JoiningWatch:
    """Return a watch of four donors, each with a step a second for 100 s, and half as many in the slow window."""
    watch = JoiningWatch("host", tuple(f"peer-{number}" for number in range(1, DONORS + 1)), 100)
    for name in watch.learners:
        steps, told = 0.0, []
        for second in range(101):
            told.append((float(second), round(2 * steps)))  # whole numbers, so in half steps
            steps += 0.5 if slow.start <= second < slow.end else 1.0
        watch.told[name] = told
    return watch


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_join_is_compared_with_the_time_before_it() -> None:
    joins = [
        Join("peer-5", Window(10, 20), 20.0, 24.0, 30.0),
        Join("peer-6", Window(50, 60), 60.0, 62.0, 80.0),
    ]
    rows = table(joins, watch_of(slow=Window(20, 24))).splitlines()
    assert len({len(cells(row)) for row in rows}) == 1
    assert cells(rows[2]) == ["peer-5", "4.0", "10.0", "6.0", "2.000", "1.600", "0.800", "1.000"]
    assert cells(rows[3]) == ["peer-6", "2.0", "20.0", "18.0", "2.000", "2.000", "1.000", "1.000"]
    assert cells(rows[4]) == ["all; the longest", "4.0", "20.0", "18.0", "2.000", "1.867", "0.933", "1.000"]


def test_a_newcomer_that_never_contributed_is_no_short_join() -> None:
    joins = [Join("peer-5", Window(0, 10), 10.0, 14.0, None)]
    rows = table(joins, watch_of(slow=Window(0, 0))).splitlines()
    assert cells(rows[2])[:4] == ["peer-5", "4.0", "never", "never"]


def test_a_table_without_newcomers_says_so() -> None:
    assert "nobody came" in table([], watch_of(slow=Window(0, 0)))
