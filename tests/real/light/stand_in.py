"""A learner that makes no steps, in a thread of its peer. Its messages go the same way as those of a real learner.

It counts steps as they come due. Its contribution is drawn from a seed: a direction common to all, and its own noise.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from dht.statement import digest_of
from peer.learner.channel import Channel, PeerGoneError
from peer.learner.commands import LearnerCommands
from peer.learner.learner import StepReport
from peer.learner.loop import CommandLoop, train
from peer.learner.messages import Message, Ready, Start
from peer.learner.shared_memory import SharedSlots, new_memory
from peer.learner.work_counters import Counters, LocalCount
from peer.storage.anchors import layouts_of

END_SECONDS_MAX = 5.0
LENGTH_PER_STEP = 1e-3


class StandIn:
    """A `peer.learner.commands.Replica` without a model: the newest anchors, and a count of steps."""

    def __init__(self, config: RunConfig, seed: str) -> None:
        self.fragments = layouts_of(config)
        self.skipped = 0
        self._seed = seed
        self._tokens_per_step = config.tokens_per_step
        self._count = LocalCount(len(self.fragments))
        self._held = [torch.zeros(layout.elements) for layout in self.fragments]

    @property
    def step_count(self) -> int:
        return self._count.steps

    def step(self) -> StepReport:
        """Count one step."""
        self._count.step(self._tokens_per_step)
        return StepReport(self.step_count, 1.0, self._tokens_per_step)

    def rest(self) -> None:
        """Do nothing: there is no memory to give up."""

    def set_progress(self, progress_steps: int, window: int | None = None) -> None:
        """Do nothing: there is no learning rate."""

    def set_threads(self, threads: int) -> None:
        """Do nothing: it computes with no threads."""

    def snapshot(self, fragment: int, out: Tensor) -> Counters:
        """Write the anchor to `out`, moved as far as training might have moved it."""
        counters = self._count.of(fragment)
        common, own = drawn(len(out), f"{fragment}"), drawn(len(out), f"{fragment} {self._seed} {counters.at_step}")
        torch.add(self._held[fragment], common + own, alpha=LENGTH_PER_STEP * counters.steps, out=out)
        return counters

    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None:
        self._held[fragment].copy_(new)
        if reference is None:
            self._count.restart(fragment)
        else:
            self._count.count(fragment, counted_steps, counted_tokens)

    def export_state(self, copied: bool = True) -> dict[str, Tensor]:
        return {"steps": torch.tensor([self.step_count])}


def drawn(elements: int, seed: str) -> Tensor:
    """Draw float32[elements] from a normal distribution."""
    number = int.from_bytes(digest_of(b"stand-in", seed.encode())[:7], "big")
    return torch.randn(elements, generator=torch.Generator().manual_seed(number))


@dataclass(slots=True)
class StandInEnd:
    """The `peer.learner.spawn.LearnerEnd` of a thread."""

    connection: socket.socket
    slots_descriptor: int
    thread: Thread
    closed: bool = False

    @classmethod
    def begin(cls) -> StandInEnd:
        """Start the thread, as `LearnerSpawn.begin` starts a process."""
        ours, theirs = socket.socketpair()
        slots_descriptor = new_memory()
        thread = Thread(target=serve, args=(theirs, slots_descriptor), daemon=True)
        thread.start()
        return cls(ours, slots_descriptor, thread)

    @property
    def pid(self) -> int:
        return os.getpid()

    def kill(self) -> None:
        """End it as a learner ends whose peer is gone."""
        with suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def reap(self) -> int:
        self.thread.join(END_SECONDS_MAX)
        return 0

    def ending(self, code: int) -> LocalError:
        return LocalError("the stand-in learner has ended")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.slots_descriptor)


def serve(connection: socket.socket, slots_descriptor: int) -> None:
    """Serve commands as `peer.learner.loop.serve` does once it has its model."""
    with connection, suppress(PeerGoneError):
        channel = Channel(connection)
        messages: list[Message] = []
        while not messages:
            messages = channel.receive(None)
        start, *early = messages
        assert isinstance(start, Start)
        stand_in: Any = StandIn(start.config, start.peer_id)
        slots = SharedSlots(slots_descriptor, stand_in.fragments, start.config.pace.overlap)
        commands = LearnerCommands(stand_in, slots, channel)
        loop = CommandLoop(stand_in, commands, channel, start, used=lambda: 0.0)
        parameters = sum(layout.elements for layout in stand_in.fragments)
        channel.send(Ready(startup_cpu_seconds=0.0, parameters=parameters, data_digest=b"", step=0))
        train(stand_in, loop, early)
        while not channel.is_idle:
            channel.flush()
