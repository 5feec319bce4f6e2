"""Measures newcomers in a training swarm: `python tests/bench/bench_joining.py [--newcomers 6] [--step-seconds 1]`.

Four real, paced peers train on loopback. Then others with empty folders join, one after the other; each leaves before
the next one comes. Prints for each the time to its first certified contribution, from the start of its process and from
the end of its imports (its learner's process, which starts first, may still be importing then). It also prints how many
steps the four made per second meanwhile, against the time just before, when no peer came or went. Peers are asked twice
a second, so times are good to half a second. Exits with 1 if a newcomer never contributed or one of the four died.

On shared cores a newcomer's imports slow the others' steps, which they would not on separate machines. The last column
leaves out the imports.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError
from peer.chaos.plan import name_of
from peer.chaos.record import ChaosWatch
from peer.chaos.score import Window
from peer.chaos.swarm import long_enough
from peer.cli.arguments import run_config
from peer.swarm.processes import PeerProcess
from peer.swarm.run import HOST, Display, Swarm, SwarmOptions
from peer.swarm.view import PlainLines
from tests.bench.joining.rates import Told, rate

DONORS = 4
WARM_UP_SECONDS_MAX = 600.0
JOIN_SECONDS_MAX = 300.0
LEAVE_SECONDS_MAX = 120.0
SETTLE_SECONDS = 5.0  # after a newcomer has left


@dataclass
class JoiningWatch(ChaosWatch):
    """A watch that keeps each peer's steps over time, and when its imports had ended."""

    told: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    imported_at: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, snapshot: PeerSnapshot, now: float) -> None:
        super().note(name, snapshot, now)
        self.told.setdefault(name, []).append((now, snapshot.steps))
        self.imported_at.setdefault(name, now - snapshot.wall_seconds)

    def contributed_at(self, name: str) -> float | None:
        """Return when a peer was first seen to have work in a version."""
        lives = self.lives_of.get(name)
        return lives[0].contributed_at if lives else None


@dataclass(frozen=True, slots=True)
class Join:
    """One newcomer: the quiet time before it, and when its process started, had imported and had contributed."""

    name: str
    quiet: Window
    started: float
    imported: float
    contributed: float | None

    @property
    def whole(self) -> Window:
        """The time from the start of its process to its contribution."""
        return Window(self.started, self.contributed or self.started + JOIN_SECONDS_MAX)

    @property
    def protocol(self) -> Window:
        """The same time without its imports."""
        return Window(self.imported, self.whole.end)


class JoiningSwarm(Swarm):
    """A swarm that lets newcomers come and go while it trains."""

    watch: JoiningWatch

    def __init__(self, options: SwarmOptions, display: Display, newcomers: int, quiet_seconds: float) -> None:
        super().__init__(options, display)
        self.watch = JoiningWatch(HOST, self.watch.learners, options.config.versions)
        self._newcomers = newcomers
        self._quiet_seconds = quiet_seconds
        self.joins: list[Join] = []

    async def _train(self) -> None:
        await self._until("warming up", lambda: self.watch.everyone_trains, WARM_UP_SECONDS_MAX, self._leave)
        if not self.watch.everyone_trains:
            raise LocalError("not everybody came to train; are there cores enough for this pace?")
        for number in range(DONORS + 1, DONORS + 1 + self._newcomers):
            if not self._leave.is_set():
                self.joins.append(await self._join(number))
                await self._part(name_of(number))

    def _note_end(self, peer: PeerProcess) -> None:
        """Note the end of a peer, unless it is a newcomer that has left."""
        if peer.name in self.watch.names:
            super()._note_end(peer)

    async def _join(self, number: int) -> Join:
        name, quiet_from = name_of(number), time.monotonic()
        await self._until("quiet", lambda: False, self._quiet_seconds, self._leave)
        started = time.monotonic()
        self._launch(name, self._processes[HOST].data_directory.with_name(name), self._peer_arguments(number))
        process = self._processes[name]
        process.tell(self._invite_text)
        self._follow(process)
        await self._until(
            f"{name} joins",
            lambda: self.watch.contributed_at(name) is not None or process.exit_code is not None,
            JOIN_SECONDS_MAX,
            self._leave,
        )
        if process.exit_code is not None:
            raise process.failure()
        imported = self.watch.imported_at.get(name, started)
        return Join(name, Window(quiet_from, started), started, imported, self.watch.contributed_at(name))

    async def _part(self, name: str) -> None:
        """Let a newcomer drain and end, as by Ctrl-C."""
        process = self._processes[name]
        process.process.terminate()
        await self._until(f"{name} leaves", lambda: process.exit_code is not None, LEAVE_SECONDS_MAX, self._leave)
        await self._until("settling", lambda: False, SETTLE_SECONDS, self._leave)


def table(joins: Sequence[Join], watch: JoiningWatch) -> str:
    """Return a table with a row for each newcomer, and one for all: the longest times and the overall rates."""
    told = {name: watch.told.get(name, []) for name in watch.learners}
    head = "newcomer | imports, s | first contribution, s after start | after imports"
    rows = [f"| {head} | donors' steps/s before | meanwhile | ratio | ratio without imports |", "| --- " * 8 + "|"]
    rows += [row(one.name, [one], told) for one in joins]
    return "\n".join([*rows, row("all; the longest", joins, told)])


def row(name: str, joins: Sequence[Join], told: Mapping[str, Told]) -> str:
    """Return one row for these newcomers together."""
    if not joins:
        return f"| {name} | nobody came |"
    late = any(one.contributed is None for one in joins)
    spans = [[one.whole for one in joins], [one.protocol for one in joins]]
    seconds = ["never" if late else f"{max(window.seconds for window in windows):.1f}" for windows in spans]
    before, whole, protocol = (
        rate(told, windows).steps_per_second for windows in ([one.quiet for one in joins], *spans)
    )
    ratios = [f"{one / before:.3f}" if before else "" for one in (whole, protocol)]
    imports = f"{max(one.imported - one.started for one in joins):.1f}"
    return f"| {' | '.join([name, imports, *seconds, f'{before:.3f}', f'{whole:.3f}', *ratios])} |"


def main() -> int:
    options = parser().parse_args()
    seconds = WARM_UP_SECONDS_MAX + options.newcomers * (JOIN_SECONDS_MAX + LEAVE_SECONDS_MAX + options.quiet_seconds)
    config = long_enough(run_config(options.config, None), options.step_seconds, seconds)
    swarm = JoiningSwarm(
        SwarmOptions(config=config, config_path=options.config, peers=DONORS, step_seconds=options.step_seconds),
        PlainLines(lambda line: print(line, flush=True)),
        options.newcomers,
        options.quiet_seconds,
    )
    report = asyncio.run(swarm.run())
    print(table(swarm.joins, swarm.watch))
    print(f"{report.versions_certified} versions, agreement: {report.agreement}")
    missing = len(swarm.joins) < options.newcomers or any(one.contributed is None for one in swarm.joins)
    return int(missing or not report.agreement or bool(swarm.watch.died))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newcomers", type=int, default=6)
    parser.add_argument("--step-seconds", type=float, default=1.0, help="pace of every learner")
    parser.add_argument("--quiet-seconds", type=float, default=30.0, help="before each newcomer")
    parser.add_argument("--config", type=Path, help="run file; default: the tiny run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
