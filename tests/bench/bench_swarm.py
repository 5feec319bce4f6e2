"""Shows where the CPU time of `muster swarm` goes: `python tests/bench/bench_swarm.py [--minutes 2] [FILE]`.

It counts CPU time by process, so that other work on the machine counts little. It prints the time of all until each
learner had made a step, and then that of each kind of process. Some of it comes with time and some with versions.
`milliseconds` has both; least squares separate them, because versions do not come evenly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from peer.chaos.executor import family
from peer.cli.arguments import run_config
from peer.swarm.run import HOST, Swarm, SwarmOptions
from peer.swarm.view import PlainLines
from peer.swarm.watch import SwarmWatch
from tests.bench.soak.memory import cpu_seconds, role_of

LEARNERS = "peers, learner"
READ_EVERY_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Moment:
    """CPU seconds so far by kind of process, and the progress of training."""

    seconds: float
    versions: int
    steps: int
    cpu_seconds: Mapping[str, float]


class Meter:
    """Replaces a swarm's display, and reads CPU times as long as all peers train."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._lines = PlainLines(lambda line: print(line, file=sys.stderr, flush=True))
        self._own_seconds = 0.0  # spent on reading

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        self._lines.show(watch, phase, seconds)
        due = not self.moments or seconds >= self.moments[-1].seconds + READ_EVERY_SECONDS
        began = all(name in watch.latest and watch.latest[name].steps for name in watch.learners)
        if phase == "training" and began and due:
            before = time.process_time()
            steps = sum(one.steps for one in watch.learner_snapshots())
            self.moments.append(Moment(seconds, watch.versions, steps, self._read(watch)))
            self._own_seconds += time.process_time() - before

    def _read(self, watch: SwarmWatch) -> dict[str, float]:
        found = defaultdict[str, float](float, {"swarm": time.process_time() - self._own_seconds})
        for name, snapshot in watch.latest.items():
            owner = "host" if name == HOST else "peers"
            for pid in family(snapshot.pid):
                with suppress(OSError):  # it has just ended
                    entry = Path(f"/proc/{pid}")
                    role = "main" if pid == snapshot.pid else role_of((entry / "cmdline").read_bytes())
                    found[f"{owner}, {role}"] += cpu_seconds((entry / "stat").read_text())
        return found


def figures(moments: Sequence[Moment]) -> dict[str, object]:
    """Return the CPU time until all learners had made a step, then by kind of process."""
    first, last = moments[0], moments[-1]
    roles, pairs = sorted(last.cpu_seconds), [*pairwise(moments)]
    passed = np.array([(after.seconds - before.seconds, after.versions - before.versions) for before, after in pairs])
    spent = np.array(
        [[after.cpu_seconds[role] - before.cpu_seconds[role] for role in roles] for before, after in pairs]
    )
    told_apart = np.linalg.lstsq(passed, spent, rcond=None)[0]
    of_all = dict(zip(roles, spent.sum(axis=0), strict=True))
    learners, versions = of_all[LEARNERS], last.versions - first.versions
    columns = zip(roles, *(1e3 * told_apart), strict=True)
    return {
        "start_cpu_seconds": round(sum(first.cpu_seconds.values()), 1),
        "versions": versions,
        "versions_per_second": round(versions / (last.seconds - first.seconds), 2),
        "milliseconds": {role: {"a second": round(a, 1), "a version": round(b, 1)} for role, a, b in columns},
        "milliseconds_a_version": {role: round(1e3 * all_of / versions, 1) for role, all_of in of_all.items()},
        "milliseconds_a_version_beside_learners": round(1e3 * (spent.sum() - learners) / versions, 1),
        "milliseconds_a_step": round(1e3 * learners / (last.steps - first.steps), 1),
        "learners_share": round(learners / spent.sum(), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a run file instead of the run that ships with Muster")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--peers", type=int, default=4)
    given = parser.parse_args()
    config = run_config(given.file, None)
    options = SwarmOptions(config=config, config_path=given.file, minutes=given.minutes, peers=given.peers)
    meter = Meter()
    report = asyncio.run(Swarm(options, meter).run())
    if len(meter.moments) < 2:
        raise SystemExit("the swarm has not trained for long enough")
    whole = {"utilisation": round(report.utilisation, 3), "agreement": report.agreement, "load": os.getloadavg()[0]}
    print(json.dumps(figures(meter.moments) | whole, indent=1))


if __name__ == "__main__":
    main()
