"""The commands that a learner carries out for its peer between two steps: snapshots, adoptions, saves.

Each is answered when it is done. Copies to and from a GPU take as long as steps do. A command that waits for one
therefore lets steps continue and is finished later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from torch import Tensor

from peer.learner.channel import Channel
from peer.learner.device_copies import Arrival, DeviceCopies, at_once
from peer.learner.messages import TEXT_MAX, AdoptFragment, Command, Done, Refused, Save, SnapshotTaken, TakeSnapshot
from peer.learner.shared_memory import SharedSlots
from peer.learner.work_counters import Counters
from peer.machine.heap import give_back_freed
from peer.numerics.fragments import FragmentLayout
from peer.storage.tensor_file import write_unhashed

Answer = SnapshotTaken | Done


class Replica(Protocol):
    """The model that a peer's rounds merge: `Learner` is one, and `peer.session` makes one from a user's module."""

    @property
    def fragments(self) -> Sequence[FragmentLayout]: ...
    @property
    def step_count(self) -> int: ...
    def set_progress(self, progress_steps: int, window: int | None = None) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    def snapshot(self, fragment: int, out: Tensor) -> Counters: ...
    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None: ...
    def export_state(self, copied: bool = True) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class _CommandUnderWay:
    ticket: int
    fragment: int | None  # None: all fragments
    has_arrived: Arrival
    finish: Callable[[], Answer]


class LearnerCommands:
    """Commands in progress, in their order. After `begin`, the caller also calls `go_on` between steps."""

    def __init__(
        self,
        learner: Replica,
        slots: SharedSlots,
        channel: Channel,
        crossings: DeviceCopies = DeviceCopies(),  # noqa: B008 - it has no state
    ) -> None:
        self._learner = learner
        self._slots = slots
        self._channel = channel
        self._crossings = crossings
        self._under_way: deque[_CommandUnderWay] = deque()

    def begin(self, command: Command, resting: bool) -> None:
        """Begin a command, and finish it unless it has to wait for a copy; `resting`: parameters are in host memory.

        Two commands for the same fragment never overlap.
        """
        fragment = command.fragment if isinstance(command, TakeSnapshot | AdoptFragment) else None
        if fragment in (None, *(one.fragment for one in self._under_way)):
            self.go_on(wait=True)
        with self._refusing(command.ticket):
            has_arrived, finish = self._start(command, DeviceCopies() if resting else self._crossings)
            self._under_way.append(_CommandUnderWay(command.ticket, fragment, has_arrived, finish))
        self.go_on()

    def go_on(self, wait: bool = False) -> None:
        """Finish the commands whose copies have arrived; `wait`: wait for all of them."""
        if wait:
            self._crossings.wait()
        while self._under_way and self._under_way[0].has_arrived():
            current = self._under_way.popleft()
            with self._refusing(current.ticket):
                self._channel.send(current.finish())

    @contextmanager
    def _refusing(self, ticket: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._channel.send(Refused(ticket=ticket, reason=reason[:TEXT_MAX]))

    def _start(self, command: Command, crossings: DeviceCopies) -> tuple[Arrival, Callable[[], Answer]]:
        if isinstance(command, TakeSnapshot | AdoptFragment) and command.fragment >= len(self._learner.fragments):
            raise ValueError(f"there is no fragment {command.fragment}")
        if isinstance(command, TakeSnapshot):
            return self._snapshot(command, crossings)
        if isinstance(command, AdoptFragment):
            slots = [slot for slot in (command.slot, command.reference) if slot is not None]
            fetched, arrival = crossings.fetch(*(self._slots.slot(slot, command.fragment) for slot in slots))
            return arrival, lambda: self._adopt(command, *fetched)
        return at_once, partial(self._save, command)

    def _snapshot(self, command: TakeSnapshot, crossings: DeviceCopies) -> tuple[Arrival, Callable[[], Answer]]:
        shared = self._slots.slot(command.slot, command.fragment)
        snapshot = crossings.room(shared)
        counters = self._learner.snapshot(command.fragment, snapshot)
        taken = SnapshotTaken(ticket=command.ticket, **asdict(counters))
        return crossings.send(snapshot, shared), lambda: taken

    def _adopt(self, command: AdoptFragment, new: Tensor, reference: Tensor | None = None) -> Done:
        self._learner.adopt(command.fragment, new, reference, command.counted_steps, command.counted_tokens)
        return self._done(command)

    def _save(self, command: Save) -> Done:
        began, path = time.monotonic(), Path(command.path)
        temporary = path.with_name(f"{path.name}.new")
        try:
            write_unhashed(temporary, self._learner.export_state(copied=False))
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        give_back_freed()
        return Done(ticket=command.ticket, at_step=self._learner.step_count, seconds=time.monotonic() - began)

    def _done(self, command: Command) -> Done:
        return Done(ticket=command.ticket, at_step=self._learner.step_count)
