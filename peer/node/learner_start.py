"""Starts a peer's learner, paused, with its owner's settings and within its owner's limits."""

from __future__ import annotations

import math
from pathlib import Path

import structlog

from coordinator.run.manifest import Manifest, RunConfig
from dht.errors import UsageError
from dht.identity import PeerId
from dht.units import GIGABYTE_BYTES
from peer.learner.client import LearnerClient, OnSteps
from peer.learner.memory_estimate import RUNTIME_BYTES, available_bytes, check_memory, footprint, least_bytes
from peer.learner.messages import LearnerSettings, Start
from peer.learner.spawn import LearnerSpawn
from peer.learner.work_counters import LearnerProgress
from peer.machine.limits import Limits
from peer.model.located import located
from peer.node.options import NodeOptions

log = structlog.get_logger(__name__)


async def start_learner(
    manifest: Manifest,
    peer: PeerId,
    options: NodeOptions,
    state: Path | None,
    progress: LearnerProgress,
    on_steps: OnSteps,
) -> LearnerClient:
    """Start the learner's process; raises UsageError if the model does not fit, LocalError if the process fails."""
    # before the memory that is shared with the learner is allocated
    check_memory(_beside_bytes(manifest.config), available_bytes("cpu"))
    start = Start(
        config=located(manifest.config, options.files.base, options.files.base_precision),
        run_key=manifest.run_id,
        peer_id=peer,
        settings=learner_settings(manifest.config, options, options.limits),
        paused=True,
        state_path=None if state is None else str(state),
        attack=options.trial.learner_attack,
    )
    # a process that an earlier try to join has ended cannot be used
    ahead = None if options.spawned is None or options.spawned.closed else options.spawned
    spawned = options.session or ahead or LearnerSpawn.begin(options.learner_program)
    learner = await LearnerClient.start(start, spawned, on_steps, progress, options.tell)
    if learner.ready.data_note:
        log.info("own_text", note=learner.ready.data_note)
        options.tell(f"of your text: {learner.ready.data_note}", None)
    return learner


def learner_settings(config: RunConfig, options: NodeOptions, limits: Limits) -> LearnerSettings:
    """Return the owner's settings within these limits; raises UsageError if the limits are too small for this run."""
    return LearnerSettings(
        device=options.device,
        threads=limits.threads(options.threads),
        niceness=max(options.niceness, limits.niceness),
        step_seconds=options.step_seconds,
        compute_share=limits.compute_share,
        gpu_memory_share=limits.gpu_memory_share,
        memory_bytes=learner_bytes(config, limits),
        compiled=options.compiled,
        corpus=options.files.corpus,
        tokenizer=options.files.tokenizer,
        cache=options.files.cache,
        loading_threads=options.loading.threads,
    )


def learner_bytes(config: RunConfig, limits: Limits) -> int:
    """Return the bytes that the owner's limit leaves for the learner, 0 without one; UsageError if none are left."""
    if not limits.memory_gigabytes:
        return 0
    beside = _beside_bytes(config)
    left = int(limits.memory_gigabytes * GIGABYTE_BYTES) - beside
    if left <= RUNTIME_BYTES:
        least = beside + RUNTIME_BYTES + least_bytes(config, on_gpu=False)
        raise UsageError(
            f"memory_gigabytes = {limits.memory_gigabytes:g} is less than this run takes on any machine; "
            f"allow at least {math.ceil(10 * least / GIGABYTE_BYTES) / 10:g} to train on the processor"
        )
    return left


def _beside_bytes(config: RunConfig) -> int:
    """Return the host memory that a peer takes besides its learner's process, in bytes."""
    return RUNTIME_BYTES + footprint(config).bytes_in("host")
