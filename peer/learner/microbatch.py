"""How many sequences a machine brings through its model at once: found by trying, within the memory that it may take.

Memory grows by as much with every sequence, so two trials tell how many fit, and one more makes sure of it.
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
"""Bytes of the device in use at the peak of a step with so many sequences at once; None if they were not enough."""

_PEAK_RESET = "5"  # proc_pid_clear_refs(5)


@dataclass(frozen=True, slots=True)
class Fit:
    """So many sequences at once fit; `peak_bytes` were in use then, on the device."""

    sequences: int
    peak_bytes: int


def fit_sequences(trial: Trial, sequences: int, room_bytes: int) -> Fit | None:
    """The most sequences at once, in pieces of about one size, of a step of so many; None if not even one fits."""
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
    """At most `most` at once, in the same number of pieces but of one size."""
    return math.ceil(sequences / math.ceil(sequences / max(1, min(sequences, most))))


def measured_peak(work: Callable[[], None], device: str) -> int | None:
    """Bytes in use at the peak of `work`, counted as `bytes_in_use` does; None if it ran out of memory."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # then it is the peak of this life so far
            Path("/proc/self/clear_refs").write_text(_PEAK_RESET)
    try:
        work()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return int(torch.cuda.max_memory_allocated(device)) if cuda else _peak_resident_bytes()


def bytes_in_use(device: str) -> int:
    """What torch holds on this GPU now; without one, what this whole process holds of RAM."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
