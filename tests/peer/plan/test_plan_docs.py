"""docs/research/results/planner.md shows the tables that commands print; docs/explanation/planner.md explains them."""

from __future__ import annotations

import re

import pytest

from peer.plan import paper
from peer.plan.tables import Table, bandwidth_tables, scavenging_tables, straggler_tables
from tests.checkout import ROOT

DOCS = ROOT / "docs"
TEXT = (DOCS / "research/results/planner.md").read_text(encoding="utf-8")
EXPLAINED = (DOCS / "explanation/planner.md").read_text(encoding="utf-8")
CELL = re.compile(r"(\d+) \((\d+)\)")
NOISE_POINTS = 1.5  # rounding of both, and 30 simulated days there against 5 here


def pairs(line: str) -> list[tuple[int, int]]:
    """Return our number and the paper's from every cell of this line."""
    return [(int(ours), int(theirs)) for ours, theirs in CELL.findall(line)]


def shown(title: str) -> list[list[tuple[int, int]]]:
    """Return the cells of the document's first table with this title, row by row."""
    table = TEXT.split(f"| {title} |")[1].split("\n\n")[0]
    return [row for line in table.splitlines() if (row := pairs(line))]


@pytest.mark.parametrize("table", [*bandwidth_tables(), *scavenging_tables()], ids=lambda table: table.title)
def test_computed_tables_are_up_to_date(table: Table) -> None:
    assert table.markdown() in TEXT


@pytest.mark.parametrize("field", ["goodput", "uptime"])
def test_simulated_tables_are_up_to_date(simulated, field) -> None:
    for row, (key, cells) in zip(shown(f"{field}, %"), simulated.items(), strict=True):
        assert [theirs for _, theirs in row] == list(getattr(paper.AVAILABILITY[key], field))
        assert [ours for ours, _ in row] == pytest.approx(
            [100 * getattr(cell, field) for cell in cells], abs=NOISE_POINTS
        )


def test_straggler_table_is_up_to_date() -> None:
    (table,) = straggler_tables(seed=0)
    found = [(int(cell.ours), int(cell.paper or 0)) for cell in table.cells]
    section = EXPLAINED.split("### Slow learners")[1].split("###")[0]
    written = [cell for row in section.splitlines() for cell in pairs(row)]
    assert [theirs for _, theirs in written] == [theirs for _, theirs in found]
    assert [ours for ours, _ in written] == pytest.approx([ours for ours, _ in found], abs=NOISE_POINTS)


def test_the_headline_is_said_in_words() -> None:
    assert "88 % against 58 % (elastic\ndata-parallel) and 27 % (not elastic)" in TEXT
    assert "88 % against 58 % (elastic) and 27 % (not elastic)" in EXPLAINED
    assert "1.39 Gbit/s" in EXPLAINED
