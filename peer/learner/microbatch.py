"""The number of sequences that go through the model at once: found by trials, within the memory allowed.

Every sequence adds the same memory. Two trials therefore tell how many fit, and one more confirms it.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

Trial = Callable[[int], int | None]
"""Returns the peak bytes in use on the device with this many sequences at once; None if memory ran out."""

_PEAK_RESET = "5"  # proc_pid_clear_refs(5)


@dataclass(frozen=True, slots=True)
class Fit:
    """The sequences that fit at once, and the bytes in use on the device at the peak."""

    sequences: int
    peak_bytes: int


def fit_sequences(trial: Trial, sequences: int, room_bytes: int) -> Fit | None:
    """Return the most sequences of a step that fit at once, in pieces of about one size; None if not even one fits."""
    one = trial(1)
    if one is None or one > room_bytes:
        return None
    two = trial(2) if sequences > 1 else None
    if two is None or two > room_bytes:
        return Fit(1, one)
    tried = {1: one, 2: two}
    most = _even(sequences, 2 + (room_bytes - two) // max(1, two - one))
    while most > 2:
        peak = trial(most)
        if peak is not None and peak <= room_bytes:
            return Fit(most, peak)
        most = _even(sequences, most // 2)
    return Fit(most, tried[most])


def _even(sequences: int, most: int) -> int:
    """Return the size of equal pieces, in the smallest number of pieces of at most `most` sequences."""
    return math.ceil(sequences / math.ceil(sequences / max(1, min(sequences, most))))


def measured_peak(work: Callable[[], None], device: str) -> int | None:
    """Return the bytes in use at the peak of `work`, as `bytes_in_use` counts; None if memory ran out."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # without it, the peak is that since the process started
            Path("/proc/self/clear_refs").write_text(_PEAK_RESET)
    try:
        work()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return int(torch.cuda.max_memory_allocated(device)) if cuda else _peak_resident_bytes()


def bytes_in_use(device: str) -> int:
    """Return the bytes that torch has allocated on this GPU; without a GPU, the RAM of this process."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
