"""`make results`: run the experiments that lack a result, then make the tables and pictures of docs/research.

`python -m tests.quality.results [GROUP …] [--jobs N] [--device cuda]`; without a group it runs all. Each result is one
JSON file, written when its run has ended, so it can be stopped and continued later.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.checkout import git
from tests.quality import sorting
from tests.quality.experiment import Experiment
from tests.quality.experiments import GROUPS
from tests.quality.pages import fill
from tests.quality.plots import PLOTS
from tests.quality.tables import Reports

RESULTS = Path("docs/results")
PAGES = Path("docs/research/results")
TASK = Path("build/sorting.txt")  # as tests/quality/sorting.toml has it
BULKY = ("state_digests", "run_id")  # not kept, because they are never compared between runs
LIBRARIES = ("torch", "bitsandbytes", "transformers", "numpy")


def cached(experiment: Experiment) -> dict[str, Any] | None:
    """Return the kept report of exactly this command; None if there is none."""
    try:
        kept: dict[str, Any] = json.loads((RESULTS / f"{experiment.name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return kept["report"] if kept["command"] == experiment.command else None


def make(experiment: Experiment, device: str = "cpu") -> bool:
    """Run one experiment on one core, or on a GPU and one core, and keep its report; False if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--workers", "1", "--device", device, "--no-ui", "--report", str(report)]
        program = ["-m", "peer.cli", "lab"]
        if experiment.without:
            program = ["-m", "tests.quality.without", experiment.without]
        command = [sys.executable, *program, *experiment.arguments, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{experiment.name}: failed\n{done.stderr}", flush=True)
            return False
        keep(experiment, json.loads(report.read_text(encoding="utf-8")))
    told = [line for line in done.stdout.splitlines() if line.startswith("held-out loss")]
    print(f"{experiment.name}: {''.join(told[-1:])}", flush=True)
    return True


def keep(experiment: Experiment, report: dict[str, Any]) -> None:
    """Write a result beside the others, whole or not at all."""
    kept = {
        "command": experiment.command,
        "versions": {name: version(name) for name in LIBRARIES},
        "commit": git(Path(), "rev-parse", "--short=12", "HEAD"),
        "report": {key: value for key, value in report.items() if key not in BULKY},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{experiment.name}.json"
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    fresh.replace(path)


def reports() -> dict[str, dict[str, Any]]:
    """Return every kept report by the name of its experiment."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["report"] for path in RESULTS.glob("*.json")}


def picture(name: str) -> Path:
    """Return the path of a plot."""
    return Path(f"docs/img/results-{name}.png")


def publish(kept: Reports) -> None:
    """Remake the tables and pictures of all pages."""
    for page in PAGES.glob("*.md"):
        page.write_text(fill(page.read_text(encoding="utf-8"), kept), encoding="utf-8")
    for name, plot in PLOTS.items():
        plot.draw(kept, picture(name))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one core each")
    parser.add_argument("--device", default="cpu", help="where inner steps are made, as in `muster lab --device`")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.groups) - set(GROUPS))
    if unknown:
        parser.error(f"there is no group {unknown[0]}; choose from {', '.join(GROUPS)}")
    sorting.write(TASK)
    wanted = [one for group in given.groups or GROUPS for one in GROUPS[group] if cached(one) is None]
    with ThreadPoolExecutor(given.jobs) as pool:
        fine = list(pool.map(partial(make, device=given.device), wanted))
    publish(reports())
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
