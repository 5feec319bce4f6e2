"""A swarm to which a plan is done (`muster chaos`): started, warmed up, broken, repaired, drained, measured.

It asks every process, so it goes on measuring when any of them dies, the host included.
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
from peer.chaos.record import Accident, ChaosWatch
from peer.chaos.score import Window
from peer.machine.clock import SKEW_FILE
from peer.swarm.processes import KILLED_SECONDS_MAX, PeerProcess
from peer.swarm.run import HOST, Display, Swarm, SwarmOptions

WARM_UP_SECONDS_MAX = 300.0
RETURN_SECONDS_MAX = 90.0  # for the process that was hit last
VERSIONS_SPARE = 1.5  # more versions than a run without faults could certify: the plan ends it, not the manifest


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What to start, what to do to it, and where."""

    swarm: SwarmOptions  # its minutes and faults are the plan's
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
        self._conductor = Conductor(plan, self._executor, self._processes, self._restart, self.watch.happenings.append)
        self._window: Window | None = None

    async def measure(self) -> ChaosReport:
        """As `run`, with what is measured. Raises LocalError also if the peers never came to train."""
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
        self._conductor.advance(time.monotonic())  # what died at a point comes back before anything is measured
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
        """The same command line as its user typed it the first time, invite included; but it dies at no point.

        A peer that attacks once is not believed any more, nor expected to hold what the others hold: a ban lasts.
        """
        _, words = self._arguments[name]
        if "--fault" in words:
            at = words.index("--fault")
            words = (*words[:at], *words[at + 2 :])
        if attack is not None:
            words = (*words, "--attack", attack)
            self.watch.hostile |= {name}
        self._processes[name].has_ended(KILLED_SECONDS_MAX)  # and has given up its folder
        self._run_process(name, words)
        self.watch.note_restart(name)
        self._processes[name].tell(self._invite_text)
        self._follow(self._processes[name])

    def _note_end(self, peer: PeerProcess) -> None:
        if self._processes[peer.name] is not peer:
            return  # another one is there already
        super()._note_end(peer)
        if not self._conductor.note_death(peer.name, peer.exit_code, time.monotonic()):
            self.watch.accidents.append(Accident(peer.name, peer.last_words(), time.monotonic()))

    def _is_deserted(self) -> bool:
        return super()._is_deserted() and not self._conductor.restarts_pending


def long_enough(config: RunConfig, step_seconds: float, seconds: float) -> RunConfig:
    """The run, with more versions if a paced swarm could otherwise reach its end before the plan does."""
    if not step_seconds:
        return config
    pace = config.pace
    possible = (WARM_UP_SECONDS_MAX + seconds) / step_seconds / pace.steps_per_version * pace.fragments
    enough = math.ceil(min(VERSIONS_SPARE * possible, VERSIONS_MAX))
    return config.model_copy(update={"versions": max(config.versions, enough)})
