"""The peer's handle on its learner process. Awaiting it never makes the learner wait."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, MusterError, UsageError
from peer.data.tally import Tell, tell_nobody
from peer.learner.attached import AttachedSession
from peer.learner.messages import (
    LENGTH_BYTES,
    AdoptFragment,
    CertifiedProgress,
    Command,
    Done,
    Failed,
    LoadAll,
    Message,
    Obeyed,
    PauseSteps,
    Preparing,
    Ready,
    Refused,
    Save,
    SetPace,
    SnapshotTaken,
    Steps,
    Stop,
    TakeSnapshot,
    Threads,
    decode_frame,
    encode_frame,
    frame_length,
)
from peer.learner.shared_memory import SharedPlanes
from peer.learner.spawn import LearnerEnd, LearnerOptions, LearnerSpawn
from peer.learner.work_counters import Counters
from peer.machine.silence import Silence, work_done
from peer.model.build import parameter_specs
from peer.numerics.fragments import FragmentLayout, split_fragments

STARTUP_SILENCE_SECONDS = 120.0  # a machine that swaps; a large model or corpus takes as long as it takes
LOOK_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0  # what it would still save was asked for before
UNSENT_BYTES_MAX = 1 << 20

OnSteps = Callable[[Steps], None]


class LearnerStoppedError(LocalError):
    """The learner has ended because we wanted it to, so nothing is wrong with whoever still asked for something."""

    def __init__(self) -> None:
        super().__init__("the learner was stopped")


def _ignore(_: Obeyed) -> None:
    """Nobody keeps a tape."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A command without an answer. Its locks guard its regions of the planes, even if nobody waits for it any more."""

    answer: asyncio.Future[tuple[SnapshotTaken | Done, Tensor | None]]
    locks: tuple[asyncio.Lock, ...]
    fragment: int | None = None


class LearnerClient:
    """One learner process from start to end. Every method may raise LocalError once the process is dead.

    LearnerStoppedError, if that was our wish.

    Commands queue at the learner, which looks at them between steps; an answer therefore takes up to one step.
    """

    def __init__(self, spawned: LearnerEnd, planes: SharedPlanes, fragments: int, on_steps: OnSteps) -> None:
        self._spawned = spawned
        self._planes = planes
        self._on_steps = on_steps
        self.on_obeyed: Callable[[Obeyed], None] = _ignore  # called with the step at which progress or threads changed
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tell: Tell = tell_nobody  # what is done before the first step
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._failure: MusterError | None = None
        self._stopping = False
        self.heard = 0  # messages of the learner
        self._tickets = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._outgoing = [asyncio.Lock() for _ in range(fragments)]
        self._incoming = [asyncio.Lock() for _ in range(fragments)]

    @classmethod
    async def start(
        cls,
        config: RunConfig,
        run_key: bytes,
        peer_id: str,
        options: LearnerOptions,
        on_steps: OnSteps,
        learner: LearnerEnd | None = None,
    ) -> Self:
        """Spawn a learner for this run, or take one that is there; wait until it is ready.

        `on_steps` is called with every report. Raises UsageError if the run does not fit this machine, LocalError if
        the process fails; then the learner is gone.
        """
        layout = split_fragments(parameter_specs(config.model), config.pace.fragments)
        spawned = learner or LearnerSpawn.begin(options.program)
        client = cls(spawned, _planes_of(spawned, layout), len(layout), on_steps)
        client._tell = options.tell
        try:
            reader, client._writer = await asyncio.open_unix_connection(sock=spawned.connection)
            client._reading = asyncio.create_task(client._read(reader))
            client._send(options.start_message(config, run_key, peer_id))
            await _until(client._ready, lambda: (client.heard, *work_done(client.pid)))
        except BaseException:
            await client.kill()
            raise
        return client

    @property
    def ready(self) -> Ready:
        """What the learner said when it was ready."""
        return self._ready.result()

    @property
    def pid(self) -> int:
        """The process id of the learner."""
        return self._spawned.pid

    @property
    def failure(self) -> MusterError | None:
        """Why the learner ended unasked; None while it lives and after `stop` or `kill`."""
        return self._failure

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        """A copy of the learner's fragment at its next step boundary, float32[elements], and what went into it."""
        locks = (self._outgoing[fragment],)
        await _acquire(locks)
        answer, vector = await self._ask(TakeSnapshot(ticket=next(self._tickets), fragment=fragment), locks)
        if not isinstance(answer, SnapshotTaken) or vector is None:
            raise LocalError("the learner answered a snapshot with something else")
        windows = answer.window_first, answer.window_count
        return vector, Counters(answer.steps, answer.tokens, *windows, answer.at_step)

    async def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int = 0, counted_tokens: int = 0
    ) -> int:
        """`Learner.adopt` at the learner's next step boundary; returns how many steps it had made by then.

        The tensors are float32[elements] and have been copied when this first waits for the learner's answer.
        """
        shape = self._planes.incoming(fragment).shape
        if new.shape != shape or (reference is not None and reference.shape != shape):
            raise ValueError(f"fragment {fragment} has another size")
        locks = (self._incoming[fragment],)
        await _acquire(locks)
        self._planes.incoming(fragment).copy_(new)
        if reference is not None:
            self._planes.reference(fragment).copy_(reference)
        command = AdoptFragment(
            ticket=next(self._tickets),
            fragment=fragment,
            counted_steps=counted_steps,
            counted_tokens=counted_tokens,
            overwrite=reference is None,
        )
        return (await self._ask(command, locks))[0].at_step

    async def load_all(self, parameters: Tensor) -> int:
        """Start from float32[all elements], the fragments in order; returns how many steps the learner had made."""
        if parameters.shape != self._planes.all_incoming.shape:
            raise ValueError("the model has another size")
        locks = tuple(self._incoming)
        await _acquire(locks)
        self._planes.all_incoming.copy_(parameters)
        return (await self._ask(LoadAll(ticket=next(self._tickets)), locks))[0].at_step

    def lay_out(self, parameters: Tensor) -> None:
        """Before any adoption: put all anchors where a session that ends takes those of what it never adopted."""
        self._planes.all_incoming.copy_(parameters)

    async def save(self, path: Path) -> int:
        """Have the learner write its state to `path` (safetensors); returns how many steps it holds."""
        return (await self._ask(Save(ticket=next(self._tickets), path=str(path)), ()))[0].at_step

    def set_progress(self, steps: int, window: int | None = None) -> None:
        """Tell the run's certified progress, which the learning rate follows, and where to read on (`Learner`)."""
        self._send(CertifiedProgress(steps=steps, window=window))

    def set_pace(self, step_seconds: float, compute_share: float = 1.0) -> None:
        """Have steps come this far apart or further, and take so much of the time at most."""
        self._send(SetPace(step_seconds=step_seconds, compute_share=compute_share))

    def set_threads(self, threads: int) -> None:
        """Compute with so many threads."""
        self._send(Threads(threads=threads))

    def pause(self) -> None:
        """Make no further steps; snapshots and adoptions go on."""
        self._send(PauseSteps(paused=True))

    def resume(self) -> None:
        """Make steps again."""
        self._send(PauseSteps(paused=False))

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
        """Return when the learner has ended because it was told to; raises LocalError when it ends unasked."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._failure is not None:
            raise self._failure

    async def _ask(
        self, command: Command, locks: tuple[asyncio.Lock, ...]
    ) -> tuple[SnapshotTaken | Done, Tensor | None]:
        answer: asyncio.Future[tuple[SnapshotTaken | Done, Tensor | None]]
        answer = asyncio.get_running_loop().create_future()
        fragment = command.fragment if isinstance(command, TakeSnapshot) else None
        self._pending[command.ticket] = _Pending(answer, locks, fragment)
        try:
            self._send(command)
        except MusterError:
            self._pending.pop(command.ticket)
            _release_locks(locks)
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
        """Dispatch what the learner says until its end, then settle everything that waits."""
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
            pass  # the end of the process, explained below
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
            pending = self._pending.pop(message.ticket)
            if not pending.answer.done():
                if isinstance(message, Refused):
                    pending.answer.set_exception(LocalError(f"the learner refused: {message.reason}"))
                else:
                    # copied here, where no later snapshot can have been asked for
                    taken = None if pending.fragment is None else self._planes.outgoing(pending.fragment).clone()
                    pending.answer.set_result((message, taken))
            _release_locks(pending.locks)

    def _release(self, reason: MusterError) -> None:
        """Nothing will be answered any more."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(reason)
            _release_locks(pending.locks)
        self._pending.clear()
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()  # `start` may have given up on it already
        if self._writer is None:
            self._spawned.connection.close()
        else:
            self._writer.close()
        self._spawned.close()


async def _until(ready: asyncio.Future[Ready], sign: Callable[[], Hashable]) -> None:
    """However long it takes while `sign` changes; raises what `ready` does, LocalError if nothing happens for long."""
    loop, silence = asyncio.get_running_loop(), Silence(STARTUP_SILENCE_SECONDS)
    while not ready.done():
        if silence.look(sign(), loop.time()):
            raise LocalError(f"the learner has done nothing for {STARTUP_SILENCE_SECONDS:.0f} seconds")
        await asyncio.wait({ready}, timeout=LOOK_SECONDS)
    ready.result()


def _planes_of(learner: LearnerEnd, layout: Sequence[FragmentLayout]) -> SharedPlanes:
    """The memory shared with a learner; raises UsageError if a session has made it for a model of another size."""
    try:
        return SharedPlanes.behind(learner.planes_descriptor, layout)
    except LocalError:
        if not isinstance(learner, AttachedSession):
            learner.kill()
            learner.reap()
            learner.close()
            raise
        raise UsageError("this model has another number of parameters than the run's; build the run's model") from None


async def _acquire(locks: tuple[asyncio.Lock, ...]) -> None:
    held: list[asyncio.Lock] = []
    try:
        for lock in locks:
            await lock.acquire()
            held.append(lock)
    except asyncio.CancelledError:
        _release_locks(held)
        raise


def _release_locks(locks: Iterable[asyncio.Lock]) -> None:
    for lock in locks:
        lock.release()
