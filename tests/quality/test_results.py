"""The pages in docs/research/results agree with the kept reports, and no two experiments share a name."""

from __future__ import annotations

import json
from collections import Counter

from tests.quality.experiments import GROUPS
from tests.quality.pages import TABLES, fill
from tests.quality.plots import PLOTS
from tests.quality.results import PAGES, RESULTS, picture, reports
from tests.quality.tables import with_error


def text() -> str:
    """Return all pages of results, joined."""
    return "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))


def test_the_tables_are_those_of_the_kept_reports():
    page = text()
    assert fill(page, reports()) == page, "run `make results`, or fill the tables anew"


class Asked(dict[str, dict[str, object]]):
    """An empty set of reports that notes the names asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, name: str, default: object = None) -> None:
        self.names.add(name)


def test_every_table_has_its_place_in_a_page():
    page = text()
    assert [name for name in TABLES if f"<!-- table {name} -->" not in page] == []


def test_pictures_are_of_listed_experiments_and_the_pages_show_those_that_there_are():
    known = {one.name for group in GROUPS.values() for one in group}
    drawn = Asked()
    for plot in PLOTS.values():
        list(plot.points(drawn))
    page = text()
    shown = {name for name in PLOTS if f"img/{picture(name).name}" in page}
    assert drawn.names <= known
    assert shown == {name for name in PLOTS if picture(name).exists()}


def test_kept_results_were_made_by_the_commands_that_are_listed():
    commands = {one.name: one.command for group in GROUPS.values() for one in group}
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8"))["command"] for path in RESULTS.glob("*.json")}
    assert {name: command for name, command in kept.items() if commands.get(name) != command} == {}


def test_names_are_unique():
    names = Counter(one.name for group in GROUPS.values() for one in group)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_mean_of_one_seed_claims_no_error():
    assert with_error([1.0]) == "1.0000 (one seed)"
    assert with_error([1.0, 3.0]) == "2.0000 ± 1.0000"
