"""A swarm of real peers on this machine, from the first process to the report (`muster swarm`).

This process only starts, watches and ends others: it never imports code that trains or that talks to the network.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coordinator.run.manifest import PEERS_PER_GROUP_MAX, RunConfig
from coordinator.views.control import Command, StartingError, ask, snapshot
from coordinator.views.report import SwarmReport
from dht.errors import LocalError, MusterError, UsageError
from dht.locks import RuntimeDirectory
from peer.data.hub import HUB
from peer.machine.cores import usable_cores
from peer.machine.signals import ENDING, on_signals
from peer.machine.timed_wait import pause
from peer.rounds.tape_parts import PART_NAME, join_parts, refuse_earlier
from peer.service.process import remove_abandoned
from peer.service.trackers import Tracking
from peer.swarm.processes import PeerProcess, end_all, kill_all, make_identity
from peer.swarm.report import report_of
from peer.swarm.watch import SwarmWatch

PEERS_MAX = 64
POLL_SECONDS = 0.5
LOOK_SECONDS = 1.0  # between two snapshots of a process, each of which costs its steps milliseconds
INVITE_POLL_SECONDS = 0.1
START_SECONDS_MAX = 300.0  # imports take long on a small machine when all peers start at once
DRAIN_SECONDS_MAX = 90.0
DRAIN_ROUNDS = 4  # wait for so many rounds' deadlines, if that is longer
DEATH_SECONDS = 2.0  # a dying process closes its socket before it is gone
END_SECONDS_MAX = 20.0
HOST = "host"
UNLIMITED = ("pause_on_battery=false", "pause_for_gpu_programs=false")  # a swarm must not pause


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """What to start, and when to end it. Peers are numbered from 1; `slow` multiplies some peers' step seconds."""

    config: RunConfig
    config_path: Path | None = None  # None: the run that ships with Muster
    settings: tuple[str, ...] = ()  # TABLE.KEY=VALUE over those in the file; `config` has them already
    peers: int = 4
    minutes: float | None = None
    step_seconds: float = 0.0
    data_directory: Path | None = None  # None: a temporary one
    slow: dict[int, float] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    attacks: dict[int, str] = field(default_factory=dict)  # of hostile peers, as `join --attack` takes it
    base: str = ""  # folder of the base model, if the run file does not name it
    tape: Path | None = None  # file of the event tape; with it, learners use the processor
    compiled: bool | None = None  # as `join --compile`; None: as suits each peer's device
    tracking: Tracking | None = None  # done by the host
    verbose: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.peers <= PEERS_MAX:
            raise UsageError(f"a swarm on one machine has 1 to {PEERS_MAX} peers, not {self.peers}")
        for number in (*self.slow, *self.faults, *self.attacks):
            if not 1 <= number <= self.peers:
                raise UsageError(f"there is no peer {number}; they are numbered from 1 to {self.peers}")
        if self.slow and not self.step_seconds:
            raise UsageError("a peer can only be slower than a pace; give --step-seconds too")
        if self.tape is not None:
            self._check_tape()

    @property
    def bytewise(self) -> bool:
        """Whether this swarm reads the standard library byte by byte."""
        return self.config.data.source == "stdlib" and not self.config.data.tokenizer

    def _check_tape(self) -> None:
        if self.attacks:
            raise UsageError("--tape and --attack do not go together: a tape holds nothing of what attackers make up")
        if self.config.uses_cells and self.peers > PEERS_PER_GROUP_MAX:
            raise UsageError(f"a tape holds no cells: with --tape a swarm has at most {PEERS_PER_GROUP_MAX} peers")


class Display(Protocol):
    """Shows a swarm while it runs."""

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None: ...


class Swarm:
    """One run of `muster swarm`."""

    def __init__(self, options: SwarmOptions, display: Display) -> None:
        self._options = options
        self._display = display
        needed = options.config.pace.min_group
        if options.peers < needed:
            raise UsageError(
                f"this run needs {needed} peers or more (pace.min_group), not {options.peers}: see --peers"
            )
        names = tuple(f"peer-{number}" for number in range(1, options.peers + 1))
        seconds = None if options.minutes is None else options.minutes * 60
        hostile = frozenset(names[number - 1] for number in options.attacks)
        self.watch = SwarmWatch(HOST, names, options.config.versions, seconds, hostile, options.bytewise)
        self._processes: dict[str, PeerProcess] = {}
        self._followers: list[asyncio.Task[None]] = []
        self._invite_text = ""
        self._leave = asyncio.Event()
        self._started_at = time.monotonic()
        self._counted_from = self._started_at  # the start of the time that is shown

    async def run(self) -> SwarmReport:
        """Start, train, drain and end the swarm; whatever happens, no process of it is left.

        Raises UsageError or LocalError if it never began, LocalError if a second signal stopped it.
        """
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._options.peers + 1))
        with self._folder() as root:
            try:
                wall_seconds = await self._run_in(root)
            except asyncio.CancelledError:
                raise LocalError("the swarm was stopped at once, so there is no report") from None
            finally:
                kill_all(list(self._processes.values()))
        return report_of(self.watch, len(os.sched_getaffinity(0)), wall_seconds)

    async def _run_in(self, root: Path) -> float:
        """Run the swarm from start to end; returns the seconds until it was drained."""
        try:
            with self._signals():
                await self._start(root)
                for peer in self._processes.values():
                    self._follow(peer)
                await self._train()
                await self._drain()
                wall_seconds = time.monotonic() - self._started_at
                await _stop(self._followers)
                await self._finish()
                await self._tell_all(self.watch.living, "stop")
                await asyncio.to_thread(end_all, list(self._processes.values()), END_SECONDS_MAX)
                if self._options.tape is not None:
                    join_parts([root / name / PART_NAME for name in self.watch.learners], self._options.tape)
                return wall_seconds
        finally:
            await _stop(self._followers)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Yield the folder of the peers' data; deletes a temporary one afterwards, and what killed peers left."""
        temporary = Path(tempfile.gettempdir())
        private = RuntimeDirectory(temporary)  # also removes the folder of an earlier swarm that was killed
        try:
            yield self._options.data_directory or private.path
        finally:
            private.close()
            remove_abandoned(temporary)

    # -- phases

    async def _start(self, root: Path) -> None:
        """Start all processes at once: the peers import while the host starts, and wait for its invite."""
        directories = {name: root / name for name in self.watch.names}
        if self._options.tape is not None:
            refuse_earlier(directories.values())
        self.watch.keys = {name: make_identity(directories[name]) for name in self.watch.learners}
        founders = list(self.watch.keys.values())[:PEERS_PER_GROUP_MAX]
        self._launch(HOST, directories[HOST], self._host_arguments(founders))
        self._processes[HOST].close_input()
        for number, name in enumerate(self.watch.learners, 1):
            self._launch(name, directories[name], self._peer_arguments(number))
        self._invite_text = await self._invite(self._processes[HOST], founders[0])
        for name in self.watch.learners:
            self._processes[name].tell(self._invite_text)

    async def _invite(self, host: PeerProcess, founder: str) -> str:
        """Wait for the host's invite, and return it. In a run by list it admits nobody, but founders need no more."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._leave.is_set():
                raise LocalError("the swarm was stopped before it had started")
            if host.exit_code is not None:
                raise host.failure()
            phase = "starting"
            try:
                answer = await asyncio.to_thread(ask, host.data_directory, "look", changes=(founder,))
                return str(answer["invite"])
            except StartingError as error:
                phase += f" (the host {error.doing.partition(' (')[0]})" if error.doing else ""
            except MusterError:
                pass
            self._show(phase)
            await pause(INVITE_POLL_SECONDS, self._leave)
        raise LocalError(f"the host was not ready within {START_SECONDS_MAX:g} seconds; is this machine overloaded?")

    async def _train(self) -> None:
        """Train until the goal is reached. The minutes begin with the first peer that is up, not with the start."""
        await self._until("starting", lambda: bool(self.watch.learner_snapshots()), START_SECONDS_MAX, self._leave)
        self._counted_from = time.monotonic()
        await self._until("training", lambda: self.watch.training_is_over, self.watch.seconds_goal, self._leave)

    async def _drain(self) -> None:
        await self._tell_all(self.watch.living, "drain")
        patience = max(DRAIN_SECONDS_MAX, DRAIN_ROUNDS * self._options.config.pace.round_seconds)
        nothing_more_to_ask = asyncio.Event()
        await self._until("draining", lambda: self.watch.settled, patience, nothing_more_to_ask)

    async def _finish(self) -> None:
        """Take the last snapshot of every living process, with digests hashed from the tensors."""
        self._show("counting")
        await asyncio.gather(*(self._ask_final(self._processes[name]) for name in self.watch.living))

    # -- processes

    def _launch(self, name: str, directory: Path, arguments: Iterable[str]) -> None:
        temporary = self._options.data_directory is None
        verbose = ("--verbose",) if self._options.verbose else ()
        self._processes[name] = PeerProcess.start(name, directory, (*arguments, *verbose), temporary)

    def _host_arguments(self, founders: Iterable[str]) -> list[str]:
        path, versions = self._options.config_path, self._options.config.versions
        arguments = ["host", *([] if path is None else [str(path.absolute())]), "--versions", str(versions)]
        arguments += [word for setting in self._options.settings for word in ("--set", setting)]
        arguments += ["--base", self._base] if self._base else []
        if (tracking := self._options.tracking) is not None:
            arguments += ["--track", f"{tracking.library}:{tracking.folder}"]
        return arguments + [word for founder in founders for word in ("--founder", founder)]

    def _peer_arguments(self, number: int) -> list[str]:
        seconds = self._options.step_seconds * self._options.slow.get(number, 1.0)
        fault = self._options.faults.get(number)
        arguments = ["join", "-", "--yes", "--name", f"peer-{number}", "--step-seconds", str(seconds)]
        arguments += ["--threads", str(max(1, usable_cores() // self._options.peers))]
        if self._options.compiled is not None:
            arguments.append("--compile" if self._options.compiled else "--no-compile")
        share = f"gpu_memory_share={1 / self._options.peers:.3f}"  # all may train on one GPU
        arguments += [word for limit in (*UNLIMITED, share) for word in ("--limit", limit)]
        data = self._options.config.data
        arguments += ["--corpus", data.path] if data.source not in ("stdlib", "hub") else []
        arguments += ["--tokenizer", data.tokenizer] if data.tokenizer and not data.tokenizer.startswith(HUB) else []
        arguments += ["--base", self._base] if self._base else []
        attack = self._options.attacks.get(number)
        arguments += [] if self._options.tape is None else ["--tape", "--device", "cpu"]
        arguments += [] if fault is None else ["--fault", fault]
        return arguments if attack is None else [*arguments, "--attack", attack]

    @property
    def _base(self) -> str:
        """The folder of an adapter's base for all peers of the swarm; empty if it is on the Hub."""
        source = self._options.config.model.source
        if self._options.config.adapter is None:
            return ""
        return self._options.base or ("" if source.startswith(HUB) else source)

    def _follow(self, peer: PeerProcess) -> None:
        self._followers.append(asyncio.create_task(self._poll(peer)))

    async def _poll(self, peer: PeerProcess) -> None:
        """Take snapshots of one process until it ends. Each has its own task, so one that hangs delays no other."""
        while peer.exit_code is None:
            with suppress(MusterError):
                self.watch.note(peer.name, await asyncio.to_thread(snapshot, peer.data_directory), time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)
        self._note_end(peer)

    def _note_end(self, peer: PeerProcess) -> None:
        self.watch.note_death(peer.name, peer.last_output())

    async def _ask_final(self, peer: PeerProcess) -> None:
        try:
            last = await asyncio.to_thread(snapshot, peer.data_directory, "final")
            self.watch.note_final(peer.name, last, time.monotonic())
        except MusterError:
            if await asyncio.to_thread(peer.has_ended, DEATH_SECONDS):  # else it counts as disagreeing
                self.watch.note_death(peer.name, peer.last_output())

    async def _tell_all(self, names: Iterable[str], command: Command) -> None:
        """Send a command to these processes; one that does not take it has died or will be ended by a signal."""
        directories = [self._processes[name].data_directory for name in names]
        asked: list[Awaitable[object]] = [asyncio.to_thread(ask, directory, command) for directory in directories]
        await asyncio.gather(*asked, return_exceptions=True)

    # -- time

    async def _until(self, phase: str, done: Callable[[], bool], seconds: float | None, leave: asyncio.Event) -> None:
        """Show the swarm until `done`, `leave`, the end of the time or the death of all learners.

        Raises the first learner's error if no learner ever came up.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not (done() or leave.is_set() or (deadline is not None and time.monotonic() >= deadline)):
            if self._is_deserted():
                self._raise_if_never_begun()
                return
            self._show(phase)
            await pause(POLL_SECONDS, leave)

    def _is_deserted(self) -> bool:
        return not self.watch.living_learners

    def _raise_if_never_begun(self) -> None:
        if not self.watch.learner_snapshots():
            raise self._processes[self.watch.learners[0]].failure()

    def _show(self, phase: str) -> None:
        self._display.show(self.watch, phase, time.monotonic() - self._counted_from)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let the first Ctrl-C or SIGTERM drain the swarm, and the second end everything now."""
        task = asyncio.current_task()
        assert task is not None
        asked_before = False

        def ask(_: signal.Signals) -> None:
            nonlocal asked_before
            if asked_before:
                task.cancel()
            asked_before = True
            self._leave.set()

        with on_signals(ENDING, ask):
            yield


async def _stop(followers: list[asyncio.Task[None]]) -> None:
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
