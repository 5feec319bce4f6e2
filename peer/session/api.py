"""Connects a researcher's own loop to a run (docs/reference/session.md): `with Session(run, model) as session`.

The loop's process acts as the learner. A peer in another process does everything else, so a step never waits for the
network. `step` copies a fragment out or in, if the peer has asked for it since the last step.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, SupportsFloat, SupportsInt

from torch import nn

from coordinator.run.manifest import RunConfig
from coordinator.views.control import SAVE_SECONDS_MAX, Command, PeerNotRunningError, ask, snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, MusterError, UsageError
from dht.invite import Invite, looks_like_invite
from peer.learner.channel import Channel, PeerGoneError
from peer.learner.commands import LearnerCommands
from peer.learner.group.saved import read_state
from peer.learner.handover import write_values
from peer.learner.loop import CommandLoop, cpu_seconds
from peer.learner.messages import Failed, Message, Ready, SessionStart, Start, StepEntry
from peer.learner.module_adapter import ModuleAdapter
from peer.learner.shared_memory import SharedSlots, new_memory
from peer.learner.spawn import last_line, start_child
from peer.machine.log import LOG_NAME
from peer.machine.paths import data_directory as default_directory
from peer.model.description import OWN_DATA, own_model
from peer.model.own_module import BufferWatch, frozen_digest, named_values
from peer.session.numbers import finite_loss, whole_number
from peer.storage.anchors import layouts_of

START_SECONDS_MAX = 180.0  # to find other peers, on a busy home machine
LEAVE_SECONDS_MAX = 90.0  # to finish the rounds under way and leave; at least a round's deadline
STOP_SECONDS_MAX = 30.0
LISTEN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """The peer's data folder and network settings; None: this user's own folder, any free port.

    `track` is a library that draws curves, as for `--track` of `muster join`.
    """

    data_directory: Path | str | None = None
    port: int | None = None
    listen_host: str = "127.0.0.1"
    announce: tuple[str, ...] = ()
    name: str = ""
    track: str = ""


class Session:
    """Takes part in a run with a module. Use it only in the thread that creates it.

    `run` is an invite, or for an organiser a `RunConfig` or the path of a run file. The first session of a run begins
    it, and its parameters are version 0. Only parameters that require a gradient are synchronised. Buffers and the
    optimizer's state stay local.
    """

    def __init__(self, run: str | Path | RunConfig, model: nn.Module, place: Place | None = None) -> None:
        """Start the peer and wait until it trains, with the run's parameters in `model`.

        Raises UsageError, NetworkError or LocalError, with nothing left behind.
        """
        place = place or Place()
        self._directory = default_directory(None if place.data_directory is None else Path(place.data_directory))
        self._module = model
        self._closed = False
        self._begun = False
        self._warned = False
        self._last_at = time.monotonic()
        start, descriptor = _prepared(run, model, place, self._directory)
        self._buffers: BufferWatch | None = BufferWatch(model)
        self._warn_of(self._buffers.known())
        self._peer = _PeerProcess.begin(descriptor)
        try:
            self._channel = Channel(self._peer.connection)
            self._channel.send(start)
            self._begin(descriptor)
        except BaseException:
            self._peer.end()
            raise
        finally:
            os.close(descriptor)

    def _begin(self, descriptor: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        messages: list[Message] = []
        while not messages:
            messages = self._receive(True, LISTEN_SECONDS)
            self._check_patience(deadline)
        first, *early = messages
        if not isinstance(first, Start):
            raise LocalError("the peer says first what is trained")
        self.config = first.config
        layouts = layouts_of(first.config)
        self._replica = ModuleAdapter(self._module, layouts, first.config)
        if first.state_path is not None:
            self._replica.import_state(read_state(first.state_path))
        self._slots = SharedSlots(os.dup(descriptor), layouts, first.config.pace.overlap)
        self._command_loop = CommandLoop(
            self._replica, LearnerCommands(self._replica, self._slots, self._channel), self._channel, first
        )
        self._begun = True
        self._channel.send(
            Ready(
                startup_cpu_seconds=cpu_seconds(),
                parameters=sum(layout.elements for layout in layouts),
                data_digest=OWN_DATA,  # the peer has already compared the frozen part with the run's
                step=self._replica.step_count,
            )
        )
        for message in early:
            self._command_loop.obey(message)
        while self._command_loop.paused and not self._command_loop.stopped:
            self._check_patience(deadline)
            self._listen(wait=True)
        self._last_at = time.monotonic()

    def _check_patience(self, deadline: float) -> None:
        if time.monotonic() <= deadline:
            return
        with suppress(MusterError):
            if self._begun and self.status().state in ("catching up", "paused"):
                return  # a large state on a slow line, or hours excluded by the owner
        raise LocalError(
            f"the peer was not ready after {START_SECONDS_MAX:.0f} seconds; {self._directory / LOG_NAME} says why"
        )

    # -- the loop

    def step(self, tokens: SupportsInt, loss: SupportsFloat | None = None) -> bool:
        """Report a step; call it after every step of the optimizer. Returns False once the run is over: leave then.

        `tokens` is the number of tokens, images or other units that this step has read, at most
        `config.tokens_per_step`. `loss` is only for display; others see no negative ones. Numbers of NumPy and tensors
        of one number will do. Waits while the peer is paused. Raises UsageError, or LocalError if the peer has ended.
        """
        if self._closed:
            raise UsageError("this session is closed; make a new one to go on")
        count, shown = whole_number(tokens, "tokens"), finite_loss(loss)
        if not 0 < count <= self.config.tokens_per_step:
            raise UsageError(
                f"a step of this run reads 1 to {self.config.tokens_per_step} tokens, not {count}; the organiser's "
                "data.context_tokens times data.sequences_per_step says so"
            )
        if self._command_loop.stopped:
            return False
        now = time.monotonic()
        self._replica.count.step(count)
        if self._buffers is not None:
            self._warn_of(self._buffers.changed())
            self._buffers = None  # the first step has changed every buffer that training changes
        entry = StepEntry(step=self._replica.step_count, loss=shown, tokens=count)
        with suppress(PeerGoneError):  # the next message tells why
            self._command_loop.note(entry, now - self._last_at, now)
        self._listen(wait=False)
        while self._command_loop.paused and not self._command_loop.stopped:
            self._listen(wait=True)
        self._last_at = time.monotonic()
        return not self._command_loop.stopped

    def _warn_of(self, buffers: list[str]) -> None:
        """Warn once that peers have different values in these buffers, and so different models."""
        if buffers and not self._warned:
            self._warned = True
            more = f" and {len(buffers) - 1} more" if len(buffers) > 1 else ""
            warnings.warn(
                f"training changes the buffer {buffers[0]}{more}, and only parameters are synchronised: peers will "
                "evaluate to different results; use norms without running statistics, as GroupNorm",
                stacklevel=3,
            )

    @property
    def progress(self) -> float:
        """Certified share of the run, 0 to 1, for a learning rate that all peers share (design §8)."""
        pace = self.config.pace
        total = max(1, self.config.versions * pace.steps_per_version // pace.fragments)
        return min(1.0, self._replica.progress_steps / total)

    # -- the session's peer

    @property
    def invite(self) -> str:
        """The line of text with which others take part."""
        with self._peer_alive():
            return str(ask(self._directory, "invite")["invite"])

    def status(self) -> PeerSnapshot:
        """Return the snapshot that `muster status` shows."""
        with self._peer_alive():
            return snapshot(self._directory)

    @contextmanager
    def _peer_alive(self) -> Iterator[None]:
        """Raise LocalError in a session's words if the peer has ended before it is asked in this block."""
        try:
            yield
        except PeerNotRunningError:
            raise LocalError(
                f"the run in {self._directory} is over, and its peer has ended; a new run needs a new folder"
            ) from None

    def close(self) -> None:
        """Finish the rounds under way, save and leave; then `model` holds the newest certified parameters."""
        if not self._closed:
            try:
                self._leave("drain", max(LEAVE_SECONDS_MAX, self.config.pace.round_seconds))
                for fragment, anchor in enumerate(self._slots.laid_out() or ()):
                    self._replica.adopt(fragment, anchor, None, 0, 0)
            finally:
                self._slots.close_descriptor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:  # the user must see the loop's own error
            with suppress(MusterError):
                self._leave("stop", STOP_SECONDS_MAX)
            self._slots.close_descriptor()

    def _leave(self, command: Command, seconds: float) -> None:
        """Ask the peer to end, and serve it until it has; saving may take extra time after these seconds."""
        self._closed = True
        deadline = time.monotonic() + seconds + SAVE_SECONDS_MAX
        try:
            if not self._command_loop.stopped:
                with suppress(MusterError):  # it may be ending already
                    ask(self._directory, command)
            while not self._command_loop.stopped and time.monotonic() < deadline:
                self._listen(wait=True)
            with suppress(PeerGoneError):
                self._command_loop.report()
        finally:
            self._peer.end(max(0.0, deadline - time.monotonic()))
        if self._peer.process.returncode:
            raise self._peer.failure()

    def _listen(self, wait: bool) -> None:
        for message in self._receive(wait, LISTEN_SECONDS):
            self._command_loop.obey(message)

    def _receive(self, wait: bool, seconds: float) -> list[Message]:
        """Return the peer's messages; raises LocalError or UsageError if it has failed or ended early."""
        try:
            messages = self._channel.receive(seconds if wait else 0.0)
        except PeerGoneError:
            self._peer.end(STOP_SECONDS_MAX + SAVE_SECONDS_MAX)
            if self._peer.process.returncode or not self._begun:
                self._closed = True
                raise self._peer.failure() from None
            self._command_loop.stopped = True  # it ended before we read that it stops
            return []
        for message in messages:
            if isinstance(message, Failed):
                raise (UsageError if message.usage else LocalError)(message.reason)
        return messages


@dataclass(slots=True)
class _PeerProcess:
    """The peer's process, our end of its socket, and the unnamed file with its output."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    output: IO[bytes]
    words: str = ""  # its last line, once it has ended

    @classmethod
    def begin(cls, slots_descriptor: int) -> Self:
        return cls(*start_child("peer.session.process", slots_descriptor, "the peer of this session"))

    def end(self, patience_seconds: float = 0.0) -> None:
        """Wait this long for the process to end, then kill it."""
        self.connection.close()
        try:
            self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.output.closed:
            self.words = last_line(self.output)
            self.output.close()

    def failure(self) -> LocalError:
        """Return an error with the reason why it ended unasked, in its own last words."""
        words = self.words or f"it ended with exit code {self.process.returncode}"
        return LocalError(f"the peer of this session has ended: {words}")


def _prepared(run: str | Path | RunConfig, model: nn.Module, place: Place, directory: Path) -> tuple[SessionStart, int]:
    """Return the first message for the peer, and shared memory with our parameters if we begin the run."""
    invite, config, values = "", None, named_values(model)
    if isinstance(run, str) and looks_like_invite(run):
        Invite.parse(run)
        invite = run
        descriptor = new_memory()
    else:
        described = own_model(run if isinstance(run, RunConfig) else RunConfig.from_toml(Path(run)), model)
        config = described.config
        slots = SharedSlots.create(layouts_of(config), config.pace.overlap)
        write_values(slots, config, values)
        descriptor = slots.descriptor
    start = SessionStart(
        invite=invite,
        config=config,
        data_directory=str(directory),
        port=None if place.port is None else whole_number(place.port, "Place.port"),
        listen_host=place.listen_host,
        announce=place.announce,
        name=place.name,
        frozen=frozen_digest(model),
        track=place.track,
    )
    return start, descriptor
