"""From `Start` to a learner that fits: its device, its data, and how many sequences go through the model at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from coordinator.views import quantity
from dht.errors import LocalError, UsageError
from peer.data.tally import Loading, Tell, tell_nobody
from peer.data.windows import load_tokens, training_windows
from peer.learner.devices import Placement, choose_devices, rounding_key
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.group.collective import ALONE, Ranks, join
from peer.learner.group.saved import read_state
from peer.learner.imports import allow_compiling
from peer.learner.learner import Learner, make_learner
from peer.learner.memory_estimate import available_bytes, check_memory, least_bytes, optimizer_bytes
from peer.learner.messages import LearnerSettings, Start, StartRank
from peer.learner.microbatch import Fit, bytes_in_use, fit_sequences, measured_peak
from peer.learner.ranks.first_rank import OtherRanks
from peer.learner.ranks.further_rank import SharedBatches
from peer.machine.heap import limit_memory
from peer.machine.local_files import LocalFiles

NEVER = 1 << 62  # more bytes than any device has
MEMORY_SHARE = 0.9  # of what is free or allowed; the rest covers memory that a trial does not show


class LearnerAttack(Protocol):
    """The changes of a hostile learner (`peer.attacks.attack`)."""

    def read(self, windows: Batches) -> Batches: ...
    def prepare(self, learner: Learner) -> None: ...


AttackNamed = Callable[[str], LearnerAttack]


@dataclass(frozen=True, slots=True)
class PreparedLearner:
    """A learner that is ready. `memory_bytes` is the memory of its steps on a device; `note`: why no GPU is used.

    `data_note`: what was left out of this machine's text. `others` are the processes on further `devices`.
    """

    learner: Learner
    devices: tuple[str, ...]
    others: OtherRanks | None
    data_digest: bytes
    memory_bytes: int
    note: str
    data_note: str

    @property
    def words(self) -> str:
        """How the device is used, for people."""
        place, data = self.learner.placement, self.learner.config.data
        most, step, devices = place.at_once(data.context_tokens), data.sequences_per_step, len(self.devices)
        whole = most is None or most * devices >= step
        at_once = "all sequences of a step" if whole else f"{most} of {step} sequences"
        if devices > 1:
            at_once += f" on {devices} devices" + ", which share the model" * self.learner.group.sharded
        recompute = ", activations recomputed" if place.recompute else ""
        note = f"; {self.note}" if self.note else ""
        libraries = "" if torch.device(self.devices[0]).type == "cuda" else " with its libraries"
        return f"{at_once} at once, about {quantity.size(self.memory_bytes)}{libraries}{recompute}{note}"


def prepare_learner(start: Start, attack_named: AttackNamed | None = None, tell: Tell = tell_nobody) -> PreparedLearner:
    """Return a learner that fits; `tell` is called with the progress.

    Raises UsageError if the run does not fit this machine or its owner's limits.
    """
    config, settings = start.config, start.settings
    devices, note = choose_devices(
        settings.device, lambda size: least_bytes(config, devices=size), settings.gpu_memory_share
    )
    several = len(devices) > 1
    sharded = several and (_is_sharded(start, devices) if settings.sharded is None else settings.sharded)
    _room_bytes(start, devices[0], len(devices), sharded)  # before minutes of tokenizing a long text
    others = OtherRanks(start, devices, sharded) if several else None  # these processes import meanwhile
    bound_memory(settings, devices[0], len(devices))  # before any reading: text and tokenizer may come from the Hub
    files = LocalFiles(settings.corpus, settings.tokenizer, settings.cache)
    loading = Loading(tell, settings.loading_threads)
    tokens = load_tokens(config.data, config.model.vocabulary, files, loading=loading)
    tell("building the model", None)
    windows: Batches = training_windows(tokens.train, config, start.run_key, start.peer_id)
    with nullcontext() if others is None else others.together():
        group = ALONE if others is None else others.join()
        learner, memory_bytes, compiling = _fit_learner(start, devices[0], group, windows, attack_named, tell)
    notes = filter(None, (note, compiling))
    return PreparedLearner(learner, devices, others, tokens.digest, memory_bytes, "; ".join(notes), tokens.note)


def _fit_learner(
    start: Start,
    device: str,
    group: Ranks,
    windows: Batches | None,
    attack_named: AttackNamed | None = None,
    tell: Tell = tell_nobody,
) -> tuple[Learner, int, str]:
    """Return a learner that fits on this device, the memory of its steps there, and a note on compiling.

    All processes of a group call this together; only the first has `windows`.
    """
    config, settings = start.config, start.settings
    torch.set_num_threads(group.own_threads(settings.threads))
    room, on_gpu = _room_bytes(start, device, group.size, group.sharded), torch.device(device).type == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32, for the products that stay in float32
        torch.cuda.set_device(device)  # torch calls without a device then use this one
        torch.cuda.set_per_process_memory_fraction(settings.gpu_memory_share, device)
    if compiled := on_gpu if settings.compiled is None else settings.compiled:
        allow_compiling()
    placement = Placement(device, rounding_key=rounding_key(start.run_key, start.peer_id))
    if group.size > 1:
        windows = SharedBatches(group, config.data.sequences_per_step, config.data.context_tokens + 1, windows)
    assert windows is not None
    learner = _make(start, windows, placement, group, attack_named)
    _, memory_bytes = fitted(learner, bytes_in_use(device) + int(MEMORY_SHARE * room))
    if compiled:
        tell("compiling the steps", None)
    compiling = compile_steps(learner) if compiled else ""
    if start.state_path is not None:
        learner.import_state(read_state(start.state_path))
    return learner, memory_bytes, compiling


def prepare_rank(told: StartRank, store_descriptor: int) -> Learner:
    """Return the learner of a process that is not the first."""
    bound_memory(told.start.settings, told.device, told.size)
    group = join(store_descriptor, told.rank, told.size, told.device, told.sharded)
    return _fit_learner(told.start, told.device, group, None)[0]


def bound_memory(settings: LearnerSettings, device: str, size: int) -> None:
    """Limit one of `size` processes of a learner to its share of the owner's memory limit."""
    if settings.memory_bytes and torch.device(device).type != "cuda":  # CUDA maps far more than it uses
        limit_memory(settings.memory_bytes // size)


def _is_sharded(start: Start, devices: Sequence[str]) -> bool:
    """Whether one of these devices has no room for the whole model."""
    least = least_bytes(start.config, torch.device(devices[0]).type == "cuda")
    return any(_allowed_bytes(start.settings, device, len(devices)) < least for device in devices)


def compile_steps(learner: Learner) -> str:
    """Have torch compile the steps if it can; returns in words how long that took, or why it failed.

    Runs one trial at once, because the compiler may fail only then.
    """
    placement, began = learner.placement, time.monotonic()
    learner.place(replace(placement, compiled=True))
    try:
        learner.try_sequences(placement.sequences or _share(learner))
    except Exception as error:  # noqa: BLE001 - whatever error the compiler raises, steps go on without it
        learner.place(placement)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"not compiled, because {reason}"
    return f"compiled in {time.monotonic() - began:.0f} s"


def _room_bytes(start: Start, device: str, size: int, sharded: bool) -> int:
    """Return the bytes that the learner may still use on the device; raises UsageError if the run needs more."""
    allowed = _allowed_bytes(start.settings, device, size)
    check_memory(least_bytes(start.config, torch.device(device).type == "cuda", size if sharded else 1), allowed)
    return allowed


def _allowed_bytes(settings: LearnerSettings, device: str, size: int) -> int:
    """Return the bytes that one of `size` processes of a learner may still use on its device."""
    free = available_bytes(device)
    if torch.device(device).type == "cuda":
        return min(free, int(settings.gpu_memory_share * torch.cuda.mem_get_info(device)[1]))
    free //= size
    return min(free, settings.memory_bytes // size - bytes_in_use(device)) if settings.memory_bytes else free


def _make(
    start: Start, windows: Batches, placement: Placement, group: Ranks, attack_named: AttackNamed | None
) -> Learner:
    if start.attack is None:
        return make_learner(start.config, windows, placement, group)
    if attack_named is None or group.size > 1:
        raise LocalError(f"this learner is honest, or on several devices, and cannot attack by {start.attack}")
    attack = attack_named(start.attack)
    learner = make_learner(start.config, attack.read(windows), placement)
    attack.prepare(learner)
    return learner


def fitted(learner: Learner, limit_bytes: int) -> tuple[Placement, int]:
    """Place the learner so that it stays below `limit_bytes` of its device; returns the placement and its bytes.

    Raises UsageError if not even one sequence at a time fits with recomputed activations.
    """
    placement, config, group = learner.placement, learner.config, learner.group
    state_bytes = optimizer_bytes(config) // (group.size if group.sharded else 1)  # allocated at the first step
    for recompute in (False, True):
        learner.place(replace(placement, recompute=recompute))
        found = _try(learner, limit_bytes - state_bytes)
        if found is not None:
            whole = found.sequences == _share(learner)
            chosen = replace(placement, recompute=recompute, sequences=None if whole else found.sequences)
            learner.place(chosen)
            return chosen, found.peak_bytes + state_bytes
    raise UsageError(
        f"not even one sequence of {config.data.context_tokens} tokens fits into the {limit_bytes / 2**20:,.0f} MiB "
        "that are free or allowed; close other programs, allow more, or use another machine"
    )


def _try(learner: Learner, room_bytes: int) -> Fit | None:
    group = learner.group

    def trial(sequences: int) -> int | None:
        """Return the worst excess over the room on any device, plus this device's room, so that all choose alike."""
        peak = measured_peak(lambda: learner.try_sequences(sequences), learner.placement.device)
        worst = group.largest(NEVER if peak is None else peak - room_bytes)
        return None if worst == NEVER else worst + room_bytes

    return fit_sequences(trial, _share(learner), room_bytes)


def _share(learner: Learner) -> int:
    """Return the most sequences of a step that one device takes at a time."""
    data, placement = learner.config.data, learner.placement
    share = math.ceil(data.sequences_per_step / learner.group.size)
    return min(share, placement.at_once(data.context_tokens) or share)
