"""What a learner does for its peer between two steps: snapshots, adoptions, saving; each is answered when it is done.

Copies to and from a GPU take as long as steps do, so an errand that waits for one lets steps go on, and is gone on with
later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from peer.learner.channel import Channel
from peer.learner.device_copies import Arrival, DeviceCopies, at_once
from peer.learner.messages import (
    TEXT_MAX,
    AdoptFragment,
    Command,
    Done,
    LoadAll,
    Refused,
    Save,
    SnapshotTaken,
    TakeSnapshot,
)
from peer.learner.shared_memory import SharedPlanes
from peer.learner.work_counters import Counters
from peer.machine.heap import give_back_freed
from peer.numerics.fragments import FragmentLayout

Answer = SnapshotTaken | Done


class Replica(Protocol):
    """The model that a peer's rounds are about, as `Learner` has it and `peer.session` makes it of anybody's module."""

    @property
    def fragments(self) -> Sequence[FragmentLayout]: ...
    @property
    def step_count(self) -> int: ...
    def set_progress(self, progress_steps: int, window: int | None = None) -> None: ...
    def snapshot(self, fragment: int, out: Tensor) -> Counters: ...
    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None: ...
    def load_all(self, parameters: Tensor) -> None: ...
    def export_state(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class _Errand:
    ticket: int
    fragment: int | None  # None: all of them
    has_arrived: Arrival
    finish: Callable[[], Answer]


class LearnerCommands:
    """Commands that are being carried out, in their order. Whoever calls `begin` also calls `go_on`, between steps."""

    def __init__(
        self,
        learner: Replica,
        planes: SharedPlanes,
        channel: Channel,
        crossings: DeviceCopies = DeviceCopies(),  # noqa: B008 - it has no state
    ) -> None:
        self._learner = learner
        self._planes = planes
        self._channel = channel
        self._crossings = crossings
        self._under_way: deque[_Errand] = deque()

    def begin(self, command: Command, resting: bool) -> None:
        """Begin a command, and end it unless something has to be copied; `resting`: the parameters are in host memory.

        Two that concern the same fragment do not overlap.
        """
        fragment = command.fragment if isinstance(command, TakeSnapshot | AdoptFragment) else None
        if fragment in (None, *(one.fragment for one in self._under_way)):
            self.go_on(wait=True)
        with self._refusing(command.ticket):
            has_arrived, finish = self._start(command, DeviceCopies() if resting else self._crossings)
            self._under_way.append(_Errand(command.ticket, fragment, has_arrived, finish))
        self.go_on()

    def go_on(self, wait: bool = False) -> None:
        """End those whose copies have arrived; `wait`: all of them."""
        if wait:
            self._crossings.wait()
        while self._under_way and self._under_way[0].has_arrived():
            errand = self._under_way.popleft()
            with self._refusing(errand.ticket):
                self._channel.send(errand.finish())

    @contextmanager
    def _refusing(self, ticket: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError, SafetensorError) as error:
            self._channel.send(Refused(ticket=ticket, reason=str(error)[:TEXT_MAX]))

    def _start(self, command: Command, crossings: DeviceCopies) -> tuple[Arrival, Callable[[], Answer]]:
        if isinstance(command, TakeSnapshot | AdoptFragment) and command.fragment >= len(self._learner.fragments):
            raise ValueError(f"there is no fragment {command.fragment}")
        if isinstance(command, TakeSnapshot):
            return self._snapshot(command, crossings)
        if isinstance(command, AdoptFragment):
            wanted = (self._planes.incoming(command.fragment), self._planes.reference(command.fragment))
            fetched, arrival = crossings.fetch(*wanted[: 1 if command.overwrite else 2])
            return arrival, lambda: self._adopt(command, *fetched)
        if isinstance(command, LoadAll):
            return at_once, partial(self._load_all, command)
        return at_once, partial(self._save, command)

    def _snapshot(self, command: TakeSnapshot, crossings: DeviceCopies) -> tuple[Arrival, Callable[[], Answer]]:
        shared = self._planes.outgoing(command.fragment)
        snapshot = crossings.room(shared)
        counters = self._learner.snapshot(command.fragment, snapshot)
        taken = SnapshotTaken(ticket=command.ticket, **asdict(counters))
        return crossings.send(snapshot, shared), lambda: taken

    def _adopt(self, command: AdoptFragment, new: Tensor, reference: Tensor | None = None) -> Done:
        self._learner.adopt(command.fragment, new, reference, command.counted_steps, command.counted_tokens)
        return self._done(command)

    def _load_all(self, command: LoadAll) -> Done:
        self._learner.load_all(self._planes.all_incoming)
        return self._done(command)

    def _save(self, command: Save) -> Done:
        save_file(self._learner.export_state(), command.path)
        give_back_freed()
        return self._done(command)

    def _done(self, command: Command) -> Done:
        return Done(ticket=command.ticket, at_step=self._learner.step_count)
