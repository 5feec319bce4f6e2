"""The learner's loop: inner steps, and the peer's commands between two steps (design §3).

It never waits for its peer. Commands are read between steps, answers wait in a bounded buffer, and reports are
merged until they can be sent.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from dht.errors import LocalError
from peer.learner.channel import Channel
from peer.learner.commands import LearnerCommands, Replica
from peer.learner.device_copies import DeviceCopies, StreamCopies
from peer.learner.devices import devices_name
from peer.learner.learner import Learner
from peer.learner.messages import (
    STEPS_PER_REPORT_MAX,
    TEXT_MAX,
    CertifiedProgress,
    Command,
    Message,
    Obeyed,
    PauseSteps,
    Preparing,
    Ready,
    SetPace,
    Start,
    StartRank,
    StepEntry,
    Steps,
    Stop,
    Threads,
)
from peer.learner.ranks.first_rank import LeadingLearner
from peer.learner.ranks.further_rank import follow
from peer.learner.setup import AttackNamed, prepare_learner, prepare_rank
from peer.learner.shared_memory import SharedSlots

REPORT_SECONDS = 0.2


def cpu_seconds() -> float:
    """Return the CPU seconds that this process has used, in all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(channel: Channel, descriptor: int, attack_named: AttackNamed | None = None) -> None:
    """Read Start, build the learner, send Ready, train until stopped; or read StartRank and follow the first process.

    `descriptor` refers to the memory shared with the peer, or to the store where the learner's processes meet.
    Raises PeerGoneError when the peer ends, UsageError if the run does not fit this machine, LocalError otherwise.
    """
    messages: list[Message] = []
    while not messages:
        messages = channel.receive(None)
    start, *early = messages
    torch.set_num_interop_threads(1)
    if isinstance(start, StartRank):
        os.nice(start.start.settings.niceness)
        follow(prepare_rank(start, descriptor), channel)
        return
    if not isinstance(start, Start):
        raise LocalError("a learner is told first what to train")
    os.nice(start.settings.niceness)
    torch.set_num_threads(start.settings.threads)
    prepared = prepare_learner(start, attack_named, ProgressReporter(channel).tell)
    learner, others = prepared.learner, prepared.others
    gc.freeze()  # keep imported objects out of collections; see peer.learner.imports.import_quickly
    gc.enable()
    slots = SharedSlots(descriptor, learner.fragments, start.config.pace.overlap)
    crossings = DeviceCopies()
    if learner.placement.is_cuda:
        slots.pin()
        crossings = StreamCopies(learner.placement.device)
    replica = learner if others is None else LeadingLearner(learner, others)
    commands = LearnerCommands(replica, slots, channel, crossings)
    used = cpu_seconds if others is None else lambda: cpu_seconds() + others.cpu_seconds()
    command_loop = CommandLoop(replica, commands, channel, start, used)
    channel.send(
        Ready(
            startup_cpu_seconds=used(),
            parameters=sum(layout.elements for layout in learner.fragments),
            data_digest=prepared.data_digest,
            step=learner.step_count,
            device=devices_name(prepared.devices, start.settings.threads),
            use=prepared.words,
            threads=start.settings.threads,
            sequences=learner.placement.sequences,
            recompute=learner.placement.recompute,
            data_note=prepared.data_note[:TEXT_MAX],
        )
    )
    train(replica, command_loop, early)
    if others is not None:
        others.end()


class ProgressReporter:
    """The reports of work before the first step, limited in frequency."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told_at = -REPORT_SECONDS
        self._doing = ""

    def tell(self, doing: str, share: float | None) -> None:
        """Report an activity, as a `peer.data.tally.Tell`; raises PeerGoneError when the peer ends."""
        now = time.monotonic()
        if self._channel.is_idle and (doing != self._doing or now - self._told_at >= REPORT_SECONDS):
            self._told_at, self._doing = now, doing
            self._channel.send(Preparing(doing=doing[:TEXT_MAX], share=share))
        else:
            self._channel.flush()


class CommandLoop:
    """The work between two steps: reports to the peer, and the peer's commands."""

    def __init__(
        self,
        learner: Replica,
        commands: LearnerCommands,
        channel: Channel,
        start: Start,
        used: Callable[[], float] = cpu_seconds,
    ) -> None:
        """`used` returns the CPU seconds of all processes of the learner."""
        self.paused = start.paused
        self.stopped = False
        self.step_seconds = start.settings.step_seconds
        self.compute_share = start.settings.compute_share
        self._learner = learner
        self._channel = channel
        self._commands = commands
        self._pending: deque[StepEntry] = deque(maxlen=STEPS_PER_REPORT_MAX)
        self._dropped = 0
        self._used = used
        self._cpu_seconds_before = used()
        self._busy_seconds = 0.0
        self.skipped = 0
        self._reported_at = -REPORT_SECONDS

    def note(self, entry: StepEntry, seconds: float, now: float) -> None:
        """Record a step that took `seconds`; report it to the peer, but not too often."""
        self._busy_seconds += seconds
        self._dropped += len(self._pending) == STEPS_PER_REPORT_MAX
        self._pending.append(entry)
        if now - self._reported_at >= REPORT_SECONDS and self._channel.is_idle:
            self._reported_at = now
            self.report()

    def listen(self, wait_seconds: float | None) -> None:
        """Carry out the peer's commands, waiting up to `wait_seconds` for one; None waits without a limit.

        Raises PeerGoneError when the peer ends, LocalError on a message that is not for a learner.
        """
        self._commands.go_on(wait=wait_seconds != 0.0)  # while resting we can wait for copies
        for message in self._channel.receive(wait_seconds):
            self.obey(message)

    def finish(self) -> None:
        """Finish the commands in progress, and report."""
        self._commands.go_on(wait=True)
        self.report()

    def report(self) -> None:
        """Report all steps since the last report."""
        entries, self._pending = tuple(self._pending), deque(maxlen=STEPS_PER_REPORT_MAX)
        self._channel.send(
            Steps(
                entries=entries,
                dropped=self._dropped,
                cpu_seconds=self._used() - self._cpu_seconds_before,
                busy_seconds=self._busy_seconds,
                skipped=self.skipped,
            )
        )
        self._dropped = 0

    def obey(self, message: Message) -> None:
        """Carry out one message of the peer, and answer if it expects an answer."""
        if isinstance(message, Command):
            self._commands.begin(message, self.paused)
        elif isinstance(message, CertifiedProgress):
            self._learner.set_progress(message.steps, message.window)
            self._channel.send(Obeyed(at_step=self._learner.step_count, progress=message))
        elif isinstance(message, SetPace):
            self.step_seconds, self.compute_share = message.step_seconds, message.compute_share
        elif isinstance(message, Threads):
            self._learner.set_threads(message.threads)
            self._channel.send(Obeyed(at_step=self._learner.step_count, threads=message.threads))
        elif isinstance(message, PauseSteps):
            self.paused = message.paused
        elif isinstance(message, Stop):
            self.stopped = True
        else:
            raise LocalError(f"a learner is not told {type(message).__name__}")


def train(learner: Learner | LeadingLearner, command_loop: CommandLoop, early: Sequence[Message]) -> None:
    """Carry out the messages `early`, then make steps until told to stop.

    Raises PeerGoneError when the peer ends, LocalError when training cannot go on.
    """
    for message in early:
        command_loop.obey(message)
    due = time.monotonic()
    while not command_loop.stopped:
        if not command_loop.paused and time.monotonic() >= due:
            began = time.monotonic()
            report = learner.step()
            ended = time.monotonic()
            entry = StepEntry(step=report.step, loss=report.loss, tokens=report.tokens)
            command_loop.skipped = learner.skipped
            command_loop.note(entry, ended - began, ended)
            due = next_step_at(due, began, ended, command_loop.step_seconds, command_loop.compute_share)
        if command_loop.paused:
            learner.rest()
        command_loop.listen(None if command_loop.paused else max(0.0, due - time.monotonic()))
    command_loop.finish()


def next_step_at(due: float, began: float, ended: float, step_seconds: float, compute_share: float) -> float:
    """Return the time at which the next step is due, on the clock of `due`, `began` and `ended`, in seconds.

    Steps are due `step_seconds` apart. If a step begins late because the CPU was busy, the next one is still due as if
    it had been on time. Otherwise a pace of half a second would be two percent slower than it says. A delay of a whole
    step or more is not made up for. At most `compute_share` of the time goes to steps.
    """
    counted_from = due if began - due < step_seconds else began
    return max(counted_from + step_seconds, began + (ended - began) / compute_share)
