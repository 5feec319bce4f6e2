"""A chaos run on a docker-compose swarm (`muster chaos --beside CONTAINER`).

The swarm trains already and continues afterwards: nothing is started or drained, only broken, repaired and measured.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from coordinator.run.manifest import RunConfig
from coordinator.views.control import Command, ask, snapshot
from coordinator.views.report import ChaosReport
from dht.errors import LocalError, MusterError
from peer.chaos.conductor import Conductor
from peer.chaos.containers import Containers
from peer.chaos.measure import UndisturbedPace, chaos_report
from peer.chaos.plan import HOST, Plan, name_of
from peer.chaos.record import ChaosWatch, UnplannedExit
from peer.chaos.score import Window
from peer.chaos.swarm import RETURN_SECONDS_MAX, WARM_UP_SECONDS_MAX
from peer.machine.signals import ENDING, on_signals
from peer.swarm.report import report_of
from peer.swarm.run import DRAIN_SECONDS_MAX, POLL_SECONDS, Display
from peer.swarm.watch import at_rest, same_heads

COMPARISONS_MAX = 3  # polls lag: a round may begin while processes are asked one after the other


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The running swarm's configuration, as its user knows it, and the plan to carry out."""

    config: RunConfig
    step_seconds: float
    plan: Plan


class ContainerSwarm:
    """One run of `muster chaos` on containers."""

    def __init__(self, options: ContainerOptions, place: Containers, display: Display) -> None:
        self._options = options
        self._place = place
        self._display = display
        names = tuple(name_of(number) for number in range(1, options.plan.peers + 1))
        self.watch = ChaosWatch(HOST, names, options.config.versions, options.plan.seconds)
        targets = {name: name for name in self.watch.names}
        self._conductor = Conductor(options.plan, place, targets, self._restart, self.watch.outcomes.append)
        self._lives = Counter[str]()
        self._is_stopped = False
        self._started_at = time.monotonic()

    async def measure(self) -> ChaosReport:
        """Carry out the plan and return the report.

        Raises LocalError if not every peer comes to train, if the run is stopped, or if not all can be restored.
        """
        followers = [asyncio.create_task(self._follow(name)) for name in self.watch.names]
        with on_signals(ENDING, self._stop):
            try:
                window = await self._break()
                await self._compare()
            finally:
                for follower in followers:
                    follower.cancel()
                await asyncio.gather(*followers, return_exceptions=True)
                self._place.close()
        report = report_of(self.watch, os.cpu_count() or 1, time.monotonic() - self._started_at)
        pace = UndisturbedPace(self._options.config.tokens_per_step, self._options.step_seconds)
        return chaos_report(report, self.watch, window, pace)

    def _stop(self, _: signal.Signals) -> None:
        """Stop at the next poll only: a repair in progress is never interrupted, however many signals come."""
        self._is_stopped = True

    async def _break(self) -> Window:
        conductor, watch = self._conductor, self.watch
        if not await self._until("warming up", lambda: watch.everyone_trains, WARM_UP_SECONDS_MAX):
            raise LocalError("not every peer came to train, so nothing was measured; see docker compose logs")
        start = time.monotonic()
        conductor.begin(start)
        await self._until("chaos", self._is_over, self._options.plan.seconds)
        window = Window(start, time.monotonic())
        conductor.end(time.monotonic())
        await self._until("returning", lambda: watch.everyone_is_back, RETURN_SECONDS_MAX)
        return window

    async def _compare(self) -> None:
        """Pause all learners until every process holds the same state, and fetch its digests."""
        try:
            await self._tell("pause", self.watch.living_learners)
            for _ in range(COMPARISONS_MAX):
                await self._until("comparing", self._is_settled, DRAIN_SECONDS_MAX)
                await self._ask_finals()
                if same_heads(list(self.watch.final.values())):
                    break
        finally:
            await self._tell("resume", self.watch.living_learners)

    async def _ask_finals(self) -> None:
        for name in self.watch.living:
            with suppress(MusterError):
                last = await asyncio.to_thread(snapshot, self._place.data_directory(name), "final")
                self.watch.note_final(name, last, time.monotonic())

    async def _follow(self, name: str) -> None:
        """Poll one process repeatedly, even after it was replaced."""
        while True:
            with suppress(MusterError):
                directory = await asyncio.to_thread(self._place.data_directory, name)
                self.watch.note(name, await asyncio.to_thread(snapshot, directory), time.monotonic())
            lives = self._lives[name]
            code = None if name in self.watch.died else await asyncio.to_thread(self._place.exit_code, name)
            if code is not None and lives == self._lives[name]:
                words = f"ended with exit code {code}"
                self.watch.note_death(name, words)
                if not self._conductor.note_death(name, code, time.monotonic()):
                    self.watch.unplanned_exits.append(UnplannedExit(name, words, time.monotonic()))
            await asyncio.sleep(POLL_SECONDS)

    def _restart(self, name: str, _: str | None) -> None:
        self._lives[name] += 1
        self._place.restart(name)
        self.watch.note_restart(name)

    def _is_over(self) -> bool:
        self._conductor.advance(time.monotonic())
        return self.watch.training_is_over

    def _is_settled(self) -> bool:
        known = [self.watch.latest.get(name) for name in self.watch.living]
        told = [one for one in known if one is not None]
        return len(told) == len(known) and at_rest(told)

    async def _tell(self, command: Command, names: Iterable[str]) -> None:
        for name in names:
            with suppress(MusterError):
                await asyncio.to_thread(ask, self._place.data_directory(name), command)

    async def _until(self, phase: str, done: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not done():
            if self._is_stopped:
                raise LocalError("chaos was stopped, so there is no report; what it had broken is as it was")
            if time.monotonic() >= deadline:
                return False
            self._display.show(self.watch, phase, time.monotonic() - self._started_at)
            await asyncio.sleep(POLL_SECONDS)
        return True
