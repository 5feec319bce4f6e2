"""The ledger of seeds: the choice of the next seeds, and that it records only runs that ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.simulator.chaos import SeedReport
from coordinator.simulator.seeds import KINDS, Kind, SeedOutcome
from tests.sim.ledger import LEDGER, ROOT, Entry, read, record, seeds_of, spans, totals, unrecorded

HEAD = "# Seeds\n\n| kind | seeds | count | failed | commit |\n| --- | --- | --- | --- | --- |\n"
OLD = HEAD + "| attacked | 0–2, 5 | 4 | none | abc |\n| honest | 0–9 | 10 | 3–4, 9 | abc |\n"


@given(st.frozensets(st.integers(0, 60), min_size=1))
def test_seeds_are_written_as_spans(seeds: frozenset[int]) -> None:
    ordered = tuple(sorted(seeds))
    assert seeds_of(spans(ordered)) == ordered


def test_the_next_seeds_fill_gaps_and_know_their_kind() -> None:
    entries = read(OLD)
    assert unrecorded(entries, "attacked", 4) == (3, 4, 6, 7)
    assert unrecorded(entries, "honest", 2) == (10, 11)
    assert unrecorded(entries, "real keys", 1) == (0,)
    assert totals(entries).splitlines()[:2] == ["honest: 10 seeds, 3 failed", "attacked: 4 seeds, 0 failed"]


def outcome(seed: int, broken: bool) -> SeedOutcome:
    report = SeedReport(seed, 3, 10, 1, 1.0, {}, {}, 0)
    return SeedOutcome(seed, "InvariantError: two versions" if broken else report, 1.0)


def test_a_run_is_recorded_with_the_seeds_that_failed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.md"
    ledger.write_text(OLD)
    asked = []

    def run(seeds: Sequence[int], kind: Kind, processes: int) -> Iterator[SeedOutcome]:
        asked.append((kind, processes))
        return (outcome(seed, seed == 4) for seed in seeds)

    made = record(ledger, "attacked", 3, "def", run, 2)
    assert asked == [(KINDS["attacked"], 2)]
    assert ledger.read_text() == OLD + "| attacked | 3–4, 6 | 3 | 4 | def |\n"
    assert read(ledger.read_text())[-1] == made == Entry("attacked", (3, 4, 6), (4,), "def")


def test_a_run_that_was_interrupted_is_not_recorded(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.md"
    ledger.write_text(OLD)

    def run(seeds: Sequence[int], kind: Kind, processes: int) -> Iterator[SeedOutcome]:
        yield outcome(seeds[0], broken=False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(ledger, "attacked", 3, "def", run, 1)
    assert ledger.read_text() == OLD


@pytest.mark.parametrize(
    "line", ["| odd | 1 | 1 | none | a |", "| honest | 1–2 | 3 | none | a |", "| honest | 1 | 1 | 2 | a |"]
)
def test_a_line_that_contradicts_itself_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="wrong line"):
        read(HEAD + line)


def test_our_ledger_ends_with_its_table() -> None:
    text = LEDGER.read_text()
    _, runs = text.split("\n## Runs\n")
    rows = [line for line in runs.splitlines() if line.startswith("| ")]
    assert len(read(text)) == len(rows) - 2, "every line but the table's head"
    assert text.endswith(read(text)[-1].line())


def test_the_results_page_counts_what_the_ledger_holds() -> None:
    page = (ROOT / "docs/research/results/simulated.md").read_text()
    for kind, seeds, failed in re.findall(r"(.+): (\d+) seeds, (\d+) failed", totals(read(LEDGER.read_text()))):
        assert f"\n| {kind} | {seeds} | {failed} |\n" in page
