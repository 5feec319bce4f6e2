"""The first process of a learner on several devices: its peer talks to it, and the other processes follow it.

It tells them over sockets what to do next; tensors go through `Ranks`. No process works without the others, so when
one has ended, all end, and the peer starts another learner.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import IO, NoReturn

from torch import Tensor

from peer.learner.channel import Channel, PeerGoneError
from peer.learner.group.collective import Ranks, join
from peer.learner.learner import Learner, StepReport
from peer.learner.messages import (
    AdoptFragment,
    CertifiedProgress,
    MakeStep,
    Message,
    Rest,
    Save,
    Start,
    StartRank,
    Stop,
    TakeSnapshot,
    Threads,
)
from peer.learner.spawn import EXIT_LOST, LEARNER_PROGRAM, LearnerLostError, last_line, start_child
from peer.learner.work_counters import Counters
from peer.numerics.fragments import FragmentLayout

NOTICE_SECONDS = 5.0  # within which the kernel reports the end of a process whose connections are closed
END_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class _Other:
    """A process of this learner, for one device."""

    device: str
    process: subprocess.Popen[bytes]
    channel: Channel
    output: IO[bytes]

    def ending(self, code: int) -> str:
        """Return in words how the process ended."""
        how = f"was ended by signal {-code}" if code < 0 else last_line(self.output) or f"ended with code {code}"
        return f"the learner's process for {self.device}: {how}"


class OtherRanks:
    """All processes of a learner but the first, which is this one: it ends as soon as one of them has ended."""

    def __init__(self, start: Start, devices: Sequence[str], sharded: bool) -> None:
        """Start the processes; raises LocalError."""
        self._devices = tuple(devices)
        self._sharded = sharded
        self._store = os.memfd_create("muster-ranks", os.MFD_CLOEXEC)
        self._ending = Event()
        self._found = Event()
        self._lost = ""
        self._others = []
        for rank, device in enumerate(devices[1:], 1):
            name = f"the learner's process for {device}"
            process, connection, output = start_child(LEARNER_PROGRAM, self._store, name)
            other = _Other(device, process, Channel(connection), output)
            self._others.append(other)
            told = StartRank(start=start, rank=rank, size=len(devices), device=device, sharded=sharded)
            other.channel.send(told)
        for other in self._others:
            Thread(target=self._watch, args=(other,), daemon=True).start()

    def join(self) -> Ranks:
        """Join the group with the other processes."""
        return join(self._store, 0, len(self._devices), self._devices[0], self._sharded)

    def tell(self, message: Message) -> None:
        """Send `message` to every process; raises LearnerLostError if one has ended."""
        with self.together():
            for other in self._others:
                other.channel.send(message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise LearnerLostError for an error in the block if it came about because another process has ended."""
        try:
            yield
        except (RuntimeError, OSError, PeerGoneError) as error:
            if self._found.wait(NOTICE_SECONDS):
                raise LearnerLostError(self._lost) from error
            raise

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all threads of these processes; 0 for a process that has ended."""
        return sum(cpu_seconds_of(other.process.pid) for other in self._others)

    def end(self) -> None:
        """Stop the processes and wait until they have ended."""
        self._ending.set()
        for other in self._others:
            with suppress(PeerGoneError):
                other.channel.send(Stop())
        for other in self._others:
            try:
                other.process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                other.process.kill()

    def _watch(self, other: _Other) -> None:
        code = other.process.wait()
        if self._ending.is_set():
            return
        self._lost = other.ending(code)
        self._found.set()
        # this process may wait for the other for ever inside a library, where no exception reaches it
        if not self._ending.wait(NOTICE_SECONDS):
            _exit(self._lost, EXIT_LOST if code < 0 or code == 0 else code)


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds that a process has used, to a hundredth; 0 if there is no such process."""
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")  # the name may contain anything
    except OSError:
        return 0.0
    in_programs, in_kernel = fields.split()[11:13]
    return (int(in_programs) + int(in_kernel)) / os.sysconf("SC_CLK_TCK")


def _exit(reason: str, code: int) -> NoReturn:
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(code)


class LeadingLearner:
    """A `Learner` whose every call is also made by the other processes (`peer.learner.ranks.further_rank`)."""

    def __init__(self, learner: Learner, others: OtherRanks) -> None:
        self._learner = learner
        self._others = others

    @property
    def fragments(self) -> Sequence[FragmentLayout]:
        return self._learner.fragments

    @property
    def step_count(self) -> int:
        return self._learner.step_count

    @property
    def skipped(self) -> int:
        return self._learner.skipped

    def step(self) -> StepReport:
        self._others.tell(MakeStep())
        with self._others.together():
            return self._learner.step()

    def rest(self) -> None:
        if not self._learner.is_resting:
            self._others.tell(Rest())
            self._learner.rest()

    def set_progress(self, progress_steps: int, window: int | None = None) -> None:
        self._others.tell(CertifiedProgress(steps=progress_steps, window=window))
        self._learner.set_progress(progress_steps, window)

    def set_threads(self, threads: int) -> None:
        self._others.tell(Threads(threads=threads))
        self._learner.set_threads(threads)

    def snapshot(self, fragment: int, out: Tensor | None) -> Counters:
        self._others.tell(TakeSnapshot(ticket=0, fragment=fragment, slot=0))
        with self._others.together():
            return self._learner.snapshot(fragment, out)

    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None:
        told = AdoptFragment(
            ticket=0,
            fragment=fragment,
            slot=0,
            reference=None if reference is None else 0,
            counted_steps=counted_steps,
            counted_tokens=counted_tokens,
        )
        self._others.tell(told)
        with self._others.together():
            for one in (new, reference):
                if one is not None:
                    self._learner.group.share(one)
            self._learner.adopt(fragment, new, reference, counted_steps, counted_tokens)

    def export_state(self, copied: bool = True) -> dict[str, Tensor]:
        self._others.tell(Save(ticket=0, path=""))
        with self._others.together():
            return self._learner.export_state(copied)
