"""Kills and restarts peers of a swarm, many times: does anything of them stay behind?

`python -m tests.bench.soak.restarts --restarts 100 [--peers 4] [--step-seconds 1] [--report FILE]`. The host and the
first peer are never killed, because their descriptors would add up. A killed peer must train again before the next one
is killed. Exits with 1 if anything is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dht.errors import LocalError
from peer.chaos.executor import Loopback
from peer.chaos.plan import Event, Plan
from peer.chaos.score import Window
from peer.chaos.swarm import ChaosOptions, ChaosSwarm
from peer.cli.arguments import run_config
from peer.swarm.run import HOST, Display, SwarmOptions
from peer.swarm.view import PlainLines
from tests.bench.soak.leaks import Holdings, growth, holdings, marked, shared_memory

KEPT = (HOST, "peer-1")  # these live from beginning to end
MARK = "MUSTER_RESTARTS"
PATIENCE_SECONDS = 900.0  # for one start, even on busy cores
TICK_SECONDS = 5.0  # of the plan's own time: a kill, a tick, the restart, a tick, the next kill
SETTLING_SECONDS = 15.0  # until unneeded connections are closed
ENDING_SECONDS = 30.0
GROWTH_MAX = 8  # more descriptors of one kind, for any number of restarts: connections come and go


class RestartingSwarm(ChaosSwarm):
    """A chaos swarm that goes on in its plan once all peers train again, instead of by the clock."""

    def __init__(self, options: ChaosOptions, display: Display, mark: str) -> None:
        super().__init__(options, display)
        self._mark = mark
        self.before: Holdings | None = None
        self.after: Holdings | None = None

    async def _train(self) -> None:
        await self._until_all_train("warming up")
        self.before = await self._look()
        began = time.monotonic()
        self._conductor.begin(began)
        for tick in range(1, 2 * len(self._plan.events) + 1):
            self._conductor.advance(began + tick * TICK_SECONDS)
            if not self._conductor.restarts_pending:
                await self._until_all_train(f"restart {tick // 2} of {len(self._plan.events)}")
        self.after = await self._look()
        self._window = Window(began, time.monotonic())

    async def _until_all_train(self, phase: str) -> None:
        await self._until(phase, lambda: self.watch.everyone_trains, PATIENCE_SECONDS, self._leave)
        if not self.watch.everyone_trains:
            raise LocalError(f"{phase}: not everybody came to train")

    async def _look(self) -> Holdings:
        await asyncio.sleep(SETTLING_SECONDS)
        pids = {name: snapshot.pid for name, snapshot in self.watch.latest.items()}
        return await asyncio.to_thread(holdings, pids, self._mark)


def plan_of(restarts: int, peers: int) -> Plan:
    """Return a plan of one kill after the other, of all peers except the first in turn."""
    victims = range(len(KEPT), peers + 1)
    events = tuple(
        Event(
            do="kill",
            at_seconds=(2 * number + 1) * TICK_SECONDS,
            for_seconds=TICK_SECONDS,
            peer=victims[number % len(victims)],
        )
        for number in range(restarts)
    )
    return Plan.of(peers, (2 * restarts + 2) * TICK_SECONDS, events)


def restart(restarts: int, peers: int, step_seconds: float, config_path: Path | None = None) -> dict[str, Any]:
    """Run the restarts; returns the findings during them, and once all processes should be gone."""
    shared_before = shared_memory()
    swarm = SwarmOptions(
        config=run_config(config_path, None), config_path=config_path, peers=peers, step_seconds=step_seconds
    )
    options = ChaosOptions(swarm, plan_of(restarts, peers), Loopback())
    with _own_place() as (folder, mark):
        run = RestartingSwarm(options, PlainLines(lambda line: print(line, flush=True)), mark)
        report = asyncio.run(run.measure())
        deadline = time.monotonic() + ENDING_SECONDS
        while (left := marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        files = sorted(
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_socket() or _is_data(path)
        )
    assert run.before is not None
    assert run.after is not None
    return {
        "restarts": report.faults.get("kill", 0),
        "agreement": report.agreement,
        "processes": [run.before.processes, run.after.processes],
        "orphans": len(run.after.in_no_family),
        "descriptors": growth(run.before, run.after, KEPT),
        "shared_memory_during": sorted(run.after.shared_memory - shared_before),
        "processes_left": sorted(left),
        "shared_memory_left": sorted(shared_memory() - shared_before),
        "files_left": files,
    }


def leaks(found: dict[str, Any]) -> list[str]:
    """Return what is wrong with the findings, in words."""
    wrong = [f"{name}: {found[name]}" for name in ("processes_left", "shared_memory_left", "files_left") if found[name]]
    if found["orphans"] or found["processes"][1] > found["processes"][0]:
        wrong.append(f"{found['orphans']} orphans; processes {found['processes']}")
    for process, kinds in found["descriptors"].items():
        grown = {kind: counts for kind, counts in kinds.items() if counts[1] > counts[0] + GROWTH_MAX}
        wrong += [f"{process}: {kind} {counts}" for kind, counts in grown.items()]
    return wrong


@contextmanager
def _own_place() -> Iterator[tuple[Path, str]]:
    """Yield a temporary folder for all processes started meanwhile, and the mark in their environment."""
    with tempfile.TemporaryDirectory() as folder:
        mine = {"TMPDIR": folder, MARK: folder}
        before = {name: os.environ.get(name) for name in mine}
        os.environ.update(mine)
        tempfile.tempdir = folder
        try:
            yield Path(folder), f"{MARK}={folder}"
        finally:
            tempfile.tempdir = None
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _is_data(path: Path) -> bool:
    """Whether it is a file that a peer made: neither the user's gate nor torch's empty cache."""
    return path.is_file() and path.name != "lock" and "torchinductor" not in str(path)


def main() -> None:
    options = parser().parse_args()
    found = restart(options.restarts, options.peers, options.step_seconds, options.config)
    found["leaks"] = leaks(found)
    print(json.dumps(found, indent=1))
    if options.report is not None:
        options.report.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if found["leaks"] else 0)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--config", type=Path, help="run file; default: the tiny run")
    parser.add_argument("--report", type=Path)
    return parser


if __name__ == "__main__":
    main()
