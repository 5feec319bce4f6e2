"""The learner of a peer, seen from the peer: started paused, resumed once we hold what the others hold."""

from __future__ import annotations

from pathlib import Path

import structlog

from coordinator.run.manifest import Manifest, RunConfig
from dht.errors import UsageError
from dht.identity import PeerId
from peer.learner.client import LearnerClient, OnSteps
from peer.learner.devices import cpu_name
from peer.learner.memory_estimate import RUNTIME_BYTES, available_bytes, check_memory, footprint
from peer.learner.spawn import LearnerOptions
from peer.machine.limits import GIGABYTE_BYTES, Limits
from peer.node.options import NodeOptions
from peer.rounds.counters import LearnerProgress

log = structlog.get_logger(__name__)


class LearnerControl:
    """Wraps one learner process."""

    def __init__(
        self, client: LearnerClient, manifest: Manifest, options: NodeOptions, progress: LearnerProgress
    ) -> None:
        self.client = client
        self.progress = progress
        self._manifest = manifest
        self._options = options
        self._threads = options.limits.threads(options.threads)
        self._compute_share = options.limits.compute_share
        self._told: tuple[int, int | None] = (-1, None)  # certified steps, and where to read on
        self.paused = True

    @classmethod
    async def start(
        cls,
        manifest: Manifest,
        peer: PeerId,
        options: NodeOptions,
        state: Path | None,
        progress: LearnerProgress,
        on_steps: OnSteps,
    ) -> LearnerControl:
        """Spawn the learner, paused; raises UsageError if the model does not fit, LocalError if the process fails.

        `progress` goes on with it, where an earlier process has ended.
        """
        # before the memory that is shared with the learner is taken
        check_memory(_beside_bytes(manifest.config), available_bytes("cpu"))
        settings = LearnerOptions(
            device=options.device,
            compiled=options.compiled,
            memory_bytes=learner_bytes(manifest.config, options.limits),
            threads=options.limits.threads(options.threads),
            niceness=max(options.niceness, options.limits.niceness),
            compute_share=options.limits.compute_share,
            gpu_memory_share=options.limits.gpu_memory_share,
            step_seconds=options.step_seconds,
            paused=True,
            state_path=state,
            attack=options.trial.learner_attack,
            program=options.learner_program,
            files=options.files,
            loading_threads=options.loading.threads,
            tell=options.tell,
        )
        # what an earlier try to join has ended is of no use to this one
        ahead = None if options.spawned is None or options.spawned.closed else options.spawned
        client = await LearnerClient.start(
            manifest.config, manifest.run_id, peer, settings, on_steps, options.session or ahead
        )
        ready = client.ready
        progress.begin(ready.step, ready.device, ready.use)
        if ready.data_note:
            log.info("own_text", note=ready.data_note)
            options.tell(f"of your text: {ready.data_note}", None)
        return cls(client, manifest, options, progress)

    @property
    def step_seconds(self) -> float | None:
        """How far apart steps come as a rule, the owner's pace included; None while that is not known."""
        busy_seconds = self.progress.step_seconds
        return None if busy_seconds is None else max(self._options.step_seconds, busy_seconds / self._compute_share)

    def resume(self) -> None:
        if self.paused:
            self.client.resume()
            self.paused = False

    def pause(self) -> None:
        if not self.paused:
            self.client.pause()
            self.progress.rest()
            self.paused = True

    def check(self, limits: Limits) -> None:
        """Raise UsageError if this run cannot live with them."""
        learner_bytes(self._manifest.config, limits)

    def respect(self, limits: Limits) -> None:
        """Compute with as many threads, and so much of the time, as the owner allows; a session's loop is its own."""
        if self._options.session is not None:
            return
        if limits.compute_share != self._compute_share:
            self.client.set_pace(self._options.step_seconds, limits.compute_share)
            self._compute_share = limits.compute_share
        threads = limits.threads(self._options.threads)
        if threads == self._threads:
            return
        self.client.set_threads(threads)
        self.progress.forget_timing()
        if self.progress.device == cpu_name(self._threads):
            self.progress.device = cpu_name(threads)
        self._threads = threads

    def follow(self, versions: int, window: int | None) -> None:
        """Learning rate and warm-up follow certified progress: mean version times H (design §8); so may the windows."""
        pace = self._manifest.config.pace
        told = versions * pace.steps_per_version // pace.fragments, window
        if told != self._told:
            self._told = told
            self.client.set_progress(*told)


def learner_bytes(config: RunConfig, limits: Limits) -> int:
    """What the owner's limit leaves to the learner's process, 0 without one; raises UsageError if that is nothing."""
    if not limits.memory_gigabytes:
        return 0
    beside = _beside_bytes(config)
    left = int(limits.memory_gigabytes * GIGABYTE_BYTES) - beside
    if left <= RUNTIME_BYTES:
        raise UsageError(
            f"memory_gigabytes = {limits.memory_gigabytes:g} is less than this run takes on any machine; "
            f"allow at least {(beside + 2 * RUNTIME_BYTES) / GIGABYTE_BYTES:.1f}"
        )
    return left


def _beside_bytes(config: RunConfig) -> int:
    """What a peer takes of the host's memory beside its learner's process."""
    return RUNTIME_BYTES + footprint(config).bytes_in("host")
