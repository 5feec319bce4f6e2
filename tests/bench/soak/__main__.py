"""Trains a swarm for an hour, and measures what its processes hold meanwhile: does anything grow?

`python -m tests.bench.soak --minutes 60 [--peers 3] [--step-seconds 3] [--log FILE] [--report FILE]`. Prints, for every
process and every peer, its memory when the first minutes are over, and how fast it grows from there on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from peer.chaos.swarm import long_enough
from peer.cli.arguments import run_config
from peer.swarm.run import Swarm, SwarmOptions
from peer.swarm.view import PlainLines
from peer.swarm.watch import SwarmWatch
from tests.bench.soak.memory import Reading, fit, read_family, series

READ_EVERY_SECONDS = 10.0
SETTLING_MINUTES = 10.0  # in which caches fill, with the first rounds of every fragment and the first checkpoints
STARTING_MINUTES = 5.0
MB = 1e6


class Recorder:
    """Replaces a swarm's display: shows plain lines, and reads what the processes hold while all peers train."""

    def __init__(self, log: TextIO | None) -> None:
        self.readings: list[Reading] = []
        self._lines = PlainLines(lambda line: print(line, flush=True))
        self._log = log
        self._began: float | None = None
        self._next = 0.0

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        self._lines.show(watch, phase, seconds)
        if self._began is None and all(name in watch.latest and watch.latest[name].steps for name in watch.learners):
            self._began = time.monotonic()
        if self._began is None or phase != "training" or (now := time.monotonic() - self._began) < self._next:
            return
        self._next = now + READ_EVERY_SECONDS
        for name in watch.living:
            found = read_family(name, watch.latest[name].pid, now) if name in watch.latest else []
            self.readings += found
            for one in found if self._log is not None else ():
                print(json.dumps(asdict(one)), file=self._log, flush=True)


def main() -> None:
    options = parser().parse_args()
    minutes = options.minutes + STARTING_MINUTES
    config = long_enough(run_config(options.config, None), options.step_seconds, minutes * 60)
    swarm = SwarmOptions(
        config=config,
        config_path=options.config,
        peers=options.peers,
        step_seconds=options.step_seconds,
        minutes=options.minutes,
    )
    log = None if options.log is None else options.log.open("w")
    recorder = Recorder(log)
    report = asyncio.run(Swarm(swarm, recorder).run())
    found = growth(recorder.readings, options.settling_minutes * 60)
    found |= {"agreement": report.agreement, "versions_certified": report.versions_certified, "events": report.events}
    print(table(found), flush=True)
    if options.report is not None:
        options.report.write_text(json.dumps(found, indent=1) + "\n")


def growth(readings: list[Reading], settling_seconds: float) -> dict[str, Any]:
    """Return memory, its slope after the settling, and descriptors for every process and peer, and the CPU time."""
    processes = {}
    for name, points in series(readings, settling_seconds).items():
        line = fit(points)
        own = [one for one in readings if one.process == name and one.seconds >= settling_seconds]
        processes[name] = {
            "readings": len(points),
            "memory_bytes": None if line is None else round(line.start_bytes),
            "share_per_hour": None if line is None else line.share_per_hour,
            "standard_error": None if line is None else line.standard_error,
            "descriptors": [own[0].descriptors, own[-1].descriptors] if own else None,
        }
    seconds = max((one.seconds for one in readings), default=0.0)
    first, last = ({one.process: one.cpu_seconds for one in order} for order in (readings[::-1], readings))
    busy = sum(last[name] - first[name] for name in last)
    return {"seconds": seconds, "cores_used": busy / seconds if seconds else None, "processes": processes}


def table(found: dict[str, Any]) -> str:
    """Return the table that docs/research/results.md shows."""
    rows = ["| process | MB after settling | growth per hour | files |", "| --- | --- | --- | --- |"]
    for name, one in found["processes"].items():
        files = "" if one["descriptors"] is None else " → ".join(map(str, one["descriptors"]))
        if one["memory_bytes"] is not None:
            growing = f"{one['share_per_hour']:+.2%} ± {one['standard_error']:.2%}"
            rows.append(f"| {name} | {one['memory_bytes'] / MB:.1f} | {growing} | {files} |")
    ended = f"{found['versions_certified']} versions, {'agreement' if found['agreement'] else 'NO AGREEMENT'}"
    rows += ["", f"{found['seconds'] / 60:.0f} minutes, {found['cores_used'] or 0:.1%} of one core, {ended}"]
    return "\n".join(rows)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--settling-minutes", type=float, default=SETTLING_MINUTES)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=3.0)
    parser.add_argument("--config", type=Path, help="run file; default: the tiny run")
    parser.add_argument("--log", type=Path, help="write every reading to this file (JSON lines)")
    parser.add_argument("--report", type=Path)
    return parser


if __name__ == "__main__":
    main()
