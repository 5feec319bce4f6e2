"""The peer's handle on its learner process. Awaiting it never makes the learner wait."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, MusterError, UsageError
from peer.data.tally import Tell, tell_nobody
from peer.learner.devices import cpu_name
from peer.learner.messages import (
    LENGTH_BYTES,
    AdoptFragment,
    CertifiedProgress,
    Command,
    Done,
    Failed,
    Message,
    Obeyed,
    PauseSteps,
    Preparing,
    Ready,
    Refused,
    Save,
    SetPace,
    SnapshotTaken,
    Start,
    Steps,
    Stop,
    TakeSnapshot,
    Threads,
    decode_frame,
    encode_frame,
    frame_length,
)
from peer.learner.shared_memory import FreeSlots, SharedSlots
from peer.learner.spawn import LearnerEnd, LearnerGoneError
from peer.learner.work_counters import Counters, LearnerProgress
from peer.machine.buffer_pool import new_vector
from peer.machine.stall_detector import StallDetector, work_done
from peer.storage.anchors import layouts_of

STARTUP_STALL_SECONDS = 120.0  # enough for a machine that swaps; loading may take longer as long as something happens
LOOK_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0  # the peer has requested every save before it stops the learner
UNSENT_BYTES_MAX = 1 << 20

OnSteps = Callable[[Steps], None]
Answer = tuple[SnapshotTaken | Done, Tensor | None]


class LearnerStoppedError(LearnerGoneError):
    """The learner has ended because the peer stopped it."""

    def __init__(self) -> None:
        super().__init__("the learner was stopped")


def _ignore(_: Obeyed) -> None:
    """Ignore the message: no tape is being recorded."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An unanswered command. It keeps its slots until the answer, even if nobody waits for that any more."""

    answer: asyncio.Future[Answer]
    slots: tuple[int, ...]
    fragment: int | None = None


class _PendingCommands:
    """All unanswered commands, by ticket, and the shared memory that carries their tensors."""

    def __init__(self, slots: SharedSlots) -> None:
        self.slots = slots
        self.free = FreeSlots(slots.count)
        self._tickets = itertools.count()
        self._pending: dict[int, _Pending] = {}

    def ticket(self) -> int:
        """Return the ticket of one more command."""
        return next(self._tickets)

    def add(self, command: Command, slots: tuple[int, ...]) -> asyncio.Future[Answer]:
        """Register a command that is about to be sent; returns the future of its answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        fragment = command.fragment if isinstance(command, TakeSnapshot) else None
        self._pending[command.ticket] = _Pending(answer, slots, fragment)
        return answer

    def drop(self, command: Command) -> None:
        """Forget a command that could not be sent."""
        self.free.give_back(self._pending.pop(command.ticket).slots)

    def settle(self, message: SnapshotTaken | Done | Refused) -> None:
        """Resolve the command that the learner has answered."""
        pending = self._pending.pop(message.ticket)
        if not pending.answer.done():
            if isinstance(message, Refused):
                pending.answer.set_exception(LocalError(f"the learner refused: {message.reason}"))
            else:
                pending.answer.set_result((message, self._taken(pending)))
        self.free.give_back(pending.slots)

    def _taken(self, pending: _Pending) -> Tensor | None:
        """Return a copy of the requested snapshot, as another command may use its slot next."""
        if pending.fragment is None:
            return None
        shared = self.slots.slot(pending.slots[0], pending.fragment)
        return new_vector(len(shared)).copy_(shared)

    def release(self, reason: MusterError) -> None:
        """Fail all pending commands with `reason`: no more answers will come."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(reason)
            self.free.give_back(pending.slots)
        self._pending.clear()


class LearnerClient:
    """One learner process from start to end. Every method may raise LocalError once the process is dead.

    The error is LearnerStoppedError if the peer stopped the process itself.
    Commands queue at the learner, which looks at them between steps; an answer therefore takes up to one step.
    """

    def __init__(
        self, start: Start, spawned: LearnerEnd, slots: SharedSlots, on_steps: OnSteps, progress: LearnerProgress
    ) -> None:
        self.settings = start.settings  # as changed since the start
        self.paused = start.paused
        self.progress = progress
        self._pace = start.config.pace
        self._told: tuple[int, int | None] = (-1, None)  # certified steps, and the window to go on with
        self._spawned = spawned
        self._commands = _PendingCommands(slots)
        self._on_steps = on_steps
        self.on_obeyed: Callable[[Obeyed], None] = _ignore  # called with the step at which progress or threads changed
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tell: Tell = tell_nobody  # called with the learner's preparations before the first step
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._failure: MusterError | None = None
        self._stopping = False
        self.heard = 0  # messages received from the learner

    @classmethod
    async def start(
        cls,
        start: Start,
        spawned: LearnerEnd,
        on_steps: OnSteps,
        progress: LearnerProgress | None = None,
        tell: Tell = tell_nobody,
    ) -> Self:
        """Have the running process `spawned` train as `start` says; wait until it is ready.

        `on_steps` is called with every report. `progress` continues the count of an earlier process that has ended.
        `tell` is called with the preparations before the first step. Raises UsageError if the run does not fit this
        machine, LocalError if the process fails; in both cases the learner has ended.
        """
        client = cls(start, spawned, _slots_of(spawned, start.config), on_steps, progress or LearnerProgress())
        client._tell = tell
        try:
            reader, client._writer = await asyncio.open_unix_connection(sock=spawned.connection)
            client._reading = asyncio.create_task(client._read(reader))
            client._send(start)
            await _until(client._ready, lambda: (client.heard, *work_done(client.pid)))
        except BaseException:
            await client.kill()
            raise
        client.progress.begin(client.ready.step, client.ready.device, client.ready.use)
        return client

    @property
    def ready(self) -> Ready:
        """The learner's message that it was ready."""
        return self._ready.result()

    @property
    def pid(self) -> int:
        """The process id of the learner."""
        return self._spawned.pid

    @property
    def failure(self) -> MusterError | None:
        """The error with which the learner ended by itself; None while it lives and after `stop` or `kill`."""
        return self._failure

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        """Return a copy of a fragment at the next step boundary, float32[elements], and the work that went into it."""
        (slot,) = slots = await self._commands.free.take(1)
        command = TakeSnapshot(ticket=self._commands.ticket(), fragment=fragment, slot=slot)
        answer, vector = await self._ask(command, slots)
        if not isinstance(answer, SnapshotTaken) or vector is None:
            raise LocalError("the learner answered a snapshot with something else")
        windows = answer.window_first, answer.window_count
        return vector, Counters(answer.steps, answer.tokens, *windows, answer.at_step)

    async def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int = 0, counted_tokens: int = 0
    ) -> int:
        """Call `Learner.adopt` at the learner's next step boundary; returns how many steps it had made by then.

        The tensors are float32[elements]; they have been copied by the time this first waits for the learner.
        """
        tensors = [new] if reference is None else [new, reference]
        shared = self._commands.slots
        shape = shared.slot(0, fragment).shape
        if any(tensor.shape != shape for tensor in tensors):
            raise ValueError(f"fragment {fragment} has another size")
        slots = await self._commands.free.take(len(tensors))
        for slot, tensor in zip(slots, tensors, strict=True):
            shared.slot(slot, fragment).copy_(tensor)
        command = AdoptFragment(
            ticket=self._commands.ticket(),
            fragment=fragment,
            slot=slots[0],
            reference=slots[1] if reference is not None else None,
            counted_steps=counted_steps,
            counted_tokens=counted_tokens,
        )
        return (await self._ask(command, slots))[0].at_step

    async def load(self, anchors: Mapping[int, Tensor]) -> None:
        """Have a learner that makes no steps start from these anchors: float32[elements] per fragment."""
        for fragment, anchor in anchors.items():
            await self.adopt(fragment, anchor, None)

    def lay_out(self, anchors: Sequence[Tensor]) -> None:
        """Leave the newest anchors in shared memory for a session that ends; raises LocalError."""
        self._commands.slots.lay_out(anchors)

    async def save(self, path: Path) -> Done:
        """Have the learner write its state to `path` (safetensors); returns its number of steps and the time taken."""
        answer, _ = await self._ask(Save(ticket=self._commands.ticket(), path=str(path)), ())
        if not isinstance(answer, Done):
            raise LocalError("the learner answered that it should save with something else")
        return answer

    @property
    def step_seconds(self) -> float | None:
        """Usual seconds from one step to the next, the owner's pace included; None while unknown."""
        busy_seconds, settings = self.progress.step_seconds, self.settings
        return None if busy_seconds is None else max(settings.step_seconds, busy_seconds / settings.compute_share)

    def follow(self, versions: int, window: int | None = None) -> None:
        """Report certified progress, mean version times H (design §8), and in passes also the next window."""
        told = versions * self._pace.steps_per_version // self._pace.fragments, window
        if told != self._told:
            self._told = told
            self._send(CertifiedProgress(steps=told[0], window=window))

    def change(self, threads: int, compute_share: float) -> None:
        """Limit computing to `threads` threads and to `compute_share` of the time from now on."""
        before = self.settings
        self.settings = before.model_copy(update={"threads": threads, "compute_share": compute_share})
        if compute_share != before.compute_share:
            self._send(SetPace(step_seconds=before.step_seconds, compute_share=compute_share))
        if threads != before.threads:
            self._send(Threads(threads=threads))
            self.progress.change_threads(cpu_name(before.threads), cpu_name(threads))

    def pause(self) -> None:
        """Stop making steps; snapshots and adoptions continue."""
        if not self.paused:
            self._send(PauseSteps(paused=True))
            self.progress.rest()
            self.paused = True

    def resume(self) -> None:
        """Make steps again."""
        if self.paused:
            self._send(PauseSteps(paused=False))
            self.paused = False

    async def stop(self) -> None:
        """End after the current step, with a last report; kills the process if that takes too long. Never raises."""
        self._stopping = True
        try:
            self._send(Stop())
            await asyncio.wait_for(self.wait(), STOP_SECONDS_MAX)
        except (TimeoutError, MusterError):
            await self.kill()

    async def kill(self) -> None:
        """End the process at once and wait until it is gone. Never raises."""
        self._stopping = True
        self._spawned.kill()
        if self._reading is None:
            self._release(LearnerStoppedError())
            self._spawned.reap()
        else:
            await asyncio.shield(self._reading)

    async def wait(self) -> None:
        """Return when the learner has ended because it was told to; raises LocalError if it ends by itself."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._failure is not None:
            raise self._failure

    async def _ask(self, command: Command, slots: tuple[int, ...]) -> Answer:
        answer = self._commands.add(command, slots)
        try:
            self._send(command)
        except MusterError:
            self._commands.drop(command)
            raise
        return await answer

    def _send(self, message: Message) -> None:
        if self._failure is not None:
            raise self._failure
        if self._writer is None or self._writer.is_closing():
            raise LearnerStoppedError
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            raise LocalError("the learner has not read its commands for a long time")
        self._writer.write(encode_frame(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Dispatch the learner's messages until the stream ends, then settle all pending commands."""
        failed: MusterError | None = None
        try:
            while True:
                length = frame_length(await reader.readexactly(LENGTH_BYTES))
                message = decode_frame(await reader.readexactly(length))
                if isinstance(message, Failed):
                    failed = UsageError(message.reason) if message.usage else LocalError(message.reason)
                self.heard += 1
                self._dispatch(message)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has ended; the reason is found below
        except MusterError as error:
            failed = error
        finally:
            code = await asyncio.to_thread(self._spawned.reap)
            if not self._stopping:
                self._failure = failed or self._spawned.ending(code)
            self._release(self._failure or LearnerStoppedError())

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, Steps):
            self._on_steps(message)
        elif isinstance(message, Obeyed):
            self.on_obeyed(message)
        elif isinstance(message, Preparing):
            self._tell(message.doing, message.share)
        elif isinstance(message, Ready):
            self._ready.set_result(message)
        elif isinstance(message, SnapshotTaken | Done | Refused):
            self._commands.settle(message)

    def _release(self, reason: MusterError) -> None:
        """Fail all pending commands with `reason` and close the connection."""
        self._commands.release(reason)
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()  # marks it as retrieved: `start` may have given up on it already
        if self._writer is None:
            self._spawned.connection.close()
        else:
            self._writer.close()
        self._spawned.close()


async def _until(ready: asyncio.Future[Ready], sign: Callable[[], Hashable]) -> None:
    """Wait for `ready` while `sign` keeps changing; raises its error, or LocalError if nothing changes for long."""
    loop, detector = asyncio.get_running_loop(), StallDetector(STARTUP_STALL_SECONDS)
    while not ready.done():
        if detector.look(sign(), loop.time()):
            raise LocalError(f"the learner has done nothing for {STARTUP_STALL_SECONDS:.0f} seconds")
        await asyncio.wait({ready}, timeout=LOOK_SECONDS)
    ready.result()


def _slots_of(learner: LearnerEnd, config: RunConfig) -> SharedSlots:
    """Return the memory shared with a learner; ends the learner and raises LocalError if there is not enough."""
    try:
        layout = layouts_of(config)
        return SharedSlots.behind(learner.slots_descriptor, layout, config.pace.overlap)
    except BaseException:
        learner.kill()
        learner.reap()
        learner.close()
        raise
