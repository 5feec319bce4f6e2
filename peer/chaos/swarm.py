"""A swarm for a chaos run (`muster chaos`): started, warmed up, broken, repaired, drained, measured.

It polls every process, so it continues to measure when any of them dies, the host included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.run.manifest import VERSIONS_MAX, RunConfig
from coordinator.views.report import ChaosReport
from dht.errors import LocalError
from peer.chaos.conductor import Conductor
from peer.chaos.executor import Executor
from peer.chaos.measure import UndisturbedPace, chaos_report
from peer.chaos.plan import Plan
from peer.chaos.record import ChaosWatch, UnplannedExit
from peer.chaos.score import Window
from peer.machine.clock import SKEW_FILE
from peer.swarm.processes import KILLED_SECONDS_MAX, PeerProcess
from peer.swarm.run import HOST, Display, Swarm, SwarmOptions

WARM_UP_SECONDS_MAX = 300.0
RETURN_SECONDS_MAX = 90.0  # for the process that was hit last
VERSIONS_SPARE = 1.5  # more versions than a run without faults could certify, so that the plan ends first


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The swarm to start, the plan to carry out, and the place."""

    swarm: SwarmOptions  # the plan overrides its minutes and faults
    plan: Plan
    executor: Executor


class ChaosSwarm(Swarm):
    """One run of `muster chaos`."""

    watch: ChaosWatch

    def __init__(self, options: ChaosOptions, display: Display) -> None:
        plan = options.plan
        config = long_enough(options.swarm.config, options.swarm.step_seconds, plan.seconds)
        super().__init__(
            replace(options.swarm, config=config, peers=plan.peers, minutes=None, faults=plan.point_faults), display
        )
        self.watch = ChaosWatch(HOST, self.watch.learners, config.versions, plan.seconds)
        self._plan = plan
        self._executor = options.executor
        self._arguments: dict[str, tuple[Path, tuple[str, ...]]] = {}
        self._conductor = Conductor(plan, self._executor, self._processes, self._restart, self.watch.outcomes.append)
        self._window: Window | None = None

    async def measure(self) -> ChaosReport:
        """Run the swarm and return the measurements; raises LocalError as `run`, and if peers never came to train."""
        try:
            self._executor.open(self.watch.names)
            report = await self.run()
        finally:
            self._executor.close()
        if self._window is None:
            raise LocalError("the swarm ended before every peer trained, so nothing was measured")
        pace = UndisturbedPace(self._options.config.tokens_per_step, self._options.step_seconds)
        return chaos_report(report, self.watch, self._window, pace)

    async def _train(self) -> None:
        watch, conductor = self.watch, self._conductor
        await self._until("warming up", self._is_warm, WARM_UP_SECONDS_MAX, self._leave)
        if not watch.everyone_trains:
            return
        start = time.monotonic()
        conductor.begin(start)
        await self._until("chaos", self._is_over, self._plan.seconds, self._leave)
        self._window = Window(start, time.monotonic())
        conductor.end(time.monotonic())
        await self._until("returning", lambda: watch.everyone_is_back, RETURN_SECONDS_MAX, self._leave)

    def _is_warm(self) -> bool:
        self._conductor.advance(time.monotonic())  # peers that died at a point return before measuring begins
        return self.watch.everyone_trains

    def _is_over(self) -> bool:
        self._conductor.advance(time.monotonic())
        return self.watch.training_is_over

    def _launch(self, name: str, directory: Path, arguments: Iterable[str]) -> None:
        words = (*arguments, *(("--verbose",) if self._options.verbose else ()))
        if any((event.do, event.target) == ("clock_skew", name) for event in self._plan.events):
            words = (*words, "--skew-file", str(directory / SKEW_FILE))
        self._arguments[name] = (directory, words)
        self._run_process(name, words)

    def _run_process(self, name: str, words: tuple[str, ...]) -> None:
        temporary = self._options.data_directory is None
        self._processes[name] = self._executor.start(name, self._arguments[name][0], words, temporary)

    def _restart(self, name: str, attack: str | None) -> None:
        """Start a process again with its first command line, invite included, but without a fault point.

        A peer that attacks once is no longer believed, nor expected to hold the others' states: a ban lasts.
        """
        _, words = self._arguments[name]
        if "--fault" in words:
            at = words.index("--fault")
            words = (*words[:at], *words[at + 2 :])
        if attack is not None:
            words = (*words, "--attack", attack)
            self.watch.hostile |= {name}
        self._processes[name].has_ended(KILLED_SECONDS_MAX)  # so that it has released its folder
        self._run_process(name, words)
        self.watch.note_restart(name)
        self._processes[name].tell(self._invite_text)
        self._follow(self._processes[name])

    def _note_end(self, peer: PeerProcess) -> None:
        if self._processes[peer.name] is not peer:
            return  # it has been replaced already
        super()._note_end(peer)
        if not self._conductor.note_death(peer.name, peer.exit_code, time.monotonic()):
            self.watch.unplanned_exits.append(UnplannedExit(peer.name, peer.last_output(), time.monotonic()))

    def _is_deserted(self) -> bool:
        return super()._is_deserted() and not self._conductor.restarts_pending


def long_enough(config: RunConfig, step_seconds: float, seconds: float) -> RunConfig:
    """Return the run, with more versions if a paced swarm could otherwise finish before the plan does."""
    if not step_seconds:
        return config
    pace = config.pace
    possible = (WARM_UP_SECONDS_MAX + seconds) / step_seconds / pace.steps_per_version * pace.fragments
    enough = math.ceil(min(VERSIONS_SPARE * possible, VERSIONS_MAX))
    return config.model_copy(update={"versions": max(config.versions, enough)})
