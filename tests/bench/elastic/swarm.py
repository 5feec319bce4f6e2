"""Runs workers of elastic data-parallel on separate machines, under a plan of faults as in `muster chaos`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from peer.chaos.conductor import Conductor
from peer.chaos.measure import UndisturbedPace
from peer.chaos.namespaces import UPLINK, Namespaces
from peer.chaos.plan import HOST, Plan, name_of
from peer.chaos.record import EventOutcome
from peer.chaos.score import Window
from peer.swarm.processes import CONSOLE_NAME, PeerProcess, kill_all
from tests.bench.elastic.score import Step, figures

STORE = "store"  # the machine of the rendezvous; a partition leaves it on the first side
POLL_SECONDS = 0.2
WARM_UP_SECONDS_MAX = 300.0
CONNECTION_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ElasticOptions:
    """What to start, the plan of faults, and the folder for the processes' output."""

    config: RunConfig
    config_path: Path | None
    plan: Plan
    step_seconds: float
    folder: Path


@dataclass
class ElasticSwarm:
    """One run, of which no process is left afterwards."""

    options: ElasticOptions
    say: Callable[[str], None]
    place: Namespaces = field(default_factory=Namespaces)
    steps: list[Step] = field(default_factory=list)  # appended to by the readers, one for each process
    outcomes: list[EventOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = [name_of(number) for number in range(1, self.options.plan.peers + 1)]
        self._processes: dict[str, PeerProcess] = {}
        plan = for_workers(self.options.plan)
        self._conductor = Conductor(plan, self.place, self._processes, self._start, self._note)

    def measure(self) -> dict[str, Any]:
        """Run the plan once every worker has made a step; returns the figures of that time."""
        store: subprocess.Popen[bytes] | None = None
        try:
            self.place.open((*self.workers, STORE))
            store = self._start_store()
            for name in self.workers:
                self._start(name)
            self._until("starting", lambda: len({one.name for one in self.steps}) == len(self.workers))
            start = time.monotonic()
            self._conductor.begin(start)
            self._go_on(start + self.options.plan.seconds)
            window = Window(start, time.monotonic())
            self._conductor.end(window.end)
        finally:
            kill_all(list(self._processes.values()))
            if store is not None:
                store.kill()
                store.wait()
            self.place.close()
        pace = UndisturbedPace(self.options.config.tokens_per_step, self.options.step_seconds)
        return figures(list(self.steps), self.outcomes, self.workers, window, pace)

    def _start_store(self) -> subprocess.Popen[bytes]:
        words = ("-m", "tests.bench.elastic.rendezvous", str(len(self.workers)), self.place.address(STORE))
        store = subprocess.Popen(self.place.inside(STORE, sys.executable, *words), stdout=subprocess.PIPE)
        assert store.stdout is not None
        if store.stdout.readline() != b"ready\n":
            raise LocalError("the rendezvous of elastic data-parallel cannot be started")
        return store

    def _start(self, name: str, _: str | None = None) -> None:
        """Start a worker's process, the first or a later one."""
        options = self.options
        words = ["-m", "tests.bench.elastic.worker", "--name", name, "--address", self.place.address(STORE)]
        words += ["--step-seconds", str(options.step_seconds), "--timeout-seconds", str(CONNECTION_TIMEOUT_SECONDS)]
        words += [] if options.config_path is None else ["--run", str(options.config_path)]
        directory = options.folder / name
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / CONSOLE_NAME).open("ab") as console:
            process = subprocess.Popen(
                self.place.inside(name, sys.executable, *words, "--parent", str(os.getpid())),
                stdout=subprocess.PIPE,
                stderr=console,
                env=os.environ | {"GLOO_SOCKET_IFNAME": UPLINK, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._processes[name] = PeerProcess(name, directory, process)
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.steps.append(Step(name=name, pid=process.pid, **json.loads(line)))

    def _note(self, outcome: EventOutcome) -> None:
        self.outcomes.append(outcome)
        refused = f": did not happen, {outcome.refusal}" if outcome.refusal else ""
        self.say(f"{outcome.event.do} {outcome.event.target}{refused}")

    def _until(self, phase: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WARM_UP_SECONDS_MAX
        while not done():
            self._check_living()
            if time.monotonic() > deadline:
                raise LocalError(f"{phase}: not every worker came to train; see {self.options.folder}")
            time.sleep(POLL_SECONDS)

    def _go_on(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            self._conductor.advance(now)
            self._check_living()
            time.sleep(POLL_SECONDS)

    def _check_living(self) -> None:
        for name, process in self._processes.items():
            code = process.exit_code
            if code is not None and not self._conductor.note_death(name, code, time.monotonic()):
                raise LocalError(f"{name} died of itself: {process.last_output()}")


def for_workers(plan: Plan) -> Plan:
    """Return the part of a plan that concerns workers.

    This method has no host, its rendezvous never fails, it trusts all workers, and it uses no wall clock.
    """
    left_out = {"attacker", "honest", "clock_skew", "clock_right"}
    events = tuple(event for event in plan.events if event.target != HOST and event.do not in left_out)
    return replace(plan, events=events)
