"""`python -m tests.sim.ledger --kind attacked --seeds 500`: run the next unrecorded seeds of a kind, and record them.

docs/research/seed-ledger.md gets one line when the last seed has ended. Failures are printed at once and named there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from coordinator.simulator.seeds import KINDS, Kind, SeedOutcome, outcomes
from tests.checkout import ROOT, git

LEDGER = ROOT / "docs/research/seed-ledger.md"
SIMULATED = ("coordinator", "dht")  # the code that a simulated seed runs
NONE = "none"
ROW = re.compile(
    r"\| (?P<kind>[a-z ]+) \| (?P<seeds>[\d–, ]+) \| (?P<count>\d+) \| (?P<failed>[^|]+) \| (?P<commit>.+) \|"
)

Run = Callable[[Sequence[int], Kind, int], Iterator[SeedOutcome]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Seeds of one kind that ran to their end at one commit, and the ones that failed."""

    kind: str
    seeds: tuple[int, ...]  # in ascending order
    failed: tuple[int, ...]
    commit: str

    def line(self) -> str:
        failed = spans(self.failed) if self.failed else NONE
        return f"| {self.kind} | {spans(self.seeds)} | {len(self.seeds)} | {failed} | {self.commit} |\n"


def spans(seeds: Iterable[int]) -> str:
    """Write ascending seeds as `0–4, 7`."""
    found: list[list[int]] = []
    for seed in seeds:
        if found and seed == found[-1][1] + 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return ", ".join(f"{first}–{last}" if last > first else f"{first}" for first, last in found)


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse seeds as written by `spans`."""
    ends = [[int(end) for end in span.split("–")] for span in text.split(", ")]
    return tuple(seed for first, *last in ends for seed in range(first, (last or [first])[0] + 1))


def read(text: str) -> list[Entry]:
    """Return all entries of the ledger's table; raises ValueError for an inconsistent line."""
    entries = []
    for line in text.splitlines():
        if row := ROW.fullmatch(line):
            failed = () if row["failed"] == NONE else seeds_of(row["failed"])
            entry = Entry(row["kind"], seeds_of(row["seeds"]), failed, row["commit"])
            if entry.line() != line + "\n" or not set(entry.failed) <= set(entry.seeds) or entry.kind not in KINDS:
                raise ValueError(f"the seed ledger has a wrong line: {line}")
            entries.append(entry)
    return entries


def unrecorded(entries: Iterable[Entry], kind: str, wanted: int) -> tuple[int, ...]:
    """Return the lowest seeds of a kind that nobody has run."""
    known = {seed for entry in entries if entry.kind == kind for seed in entry.seeds}
    return tuple(islice((seed for seed in count() if seed not in known), wanted))


def record(ledger: Path, kind: str, wanted: int, commit: str, run: Run, processes: int) -> Entry:
    """Run the next seeds, then append their line at the end of the file."""
    seeds = unrecorded(read(ledger.read_text()), kind, wanted)
    failed = []
    for outcome in run(seeds, KINDS[kind], processes):
        if isinstance(outcome.report, str):
            failed.append(outcome.seed)
            print(f"seed {outcome.seed}: {outcome.report}", flush=True)
    entry = Entry(kind, seeds, tuple(failed), commit)
    with ledger.open("a") as file:
        file.write(entry.line())
    return entry


def totals(entries: Sequence[Entry]) -> str:
    """Return how many different seeds of each kind ran and how many runs failed, one line per kind."""
    lines = []
    for kind in KINDS:
        mine = [entry for entry in entries if entry.kind == kind]
        different = {seed for entry in mine for seed in entry.seeds}
        lines.append(f"{kind}: {len(different)} seeds, {sum(len(entry.failed) for entry in mine)} failed")
    return "\n".join(lines)


def commit_of(root: Path) -> str:
    """Return the checked-out commit; exits if the simulated code has uncommitted changes."""
    if git(root, "status", "--porcelain", "--", *SIMULATED):
        sys.exit(f"commit the changes to {' and '.join(SIMULATED)} first: a recorded seed can be run again")
    return git(root, "rev-parse", "--short", "HEAD")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and record seeds; return exit code 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.ledger", description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    failed = False
    if chosen.kind:
        entry = record(LEDGER, chosen.kind, chosen.seeds, commit_of(ROOT), outcomes, chosen.processes)
        failed = bool(entry.failed)
        print(entry.line(), end="")
    print(totals(read(LEDGER.read_text())))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
