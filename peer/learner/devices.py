"""Where, and in what pieces, one machine makes the steps of its learner. The batch and its tokens stay the run's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dht.errors import UsageError
from dht.statement import digest_of
from peer.learner.spawn import AUTO

Products = Literal["fastest", "float32", "float16", "bfloat16"]

FLOAT16_CAPABILITY = (7, 0)  # of the first cards that multiply in float16 faster than in float32
TRIAL_ELEMENTS = 64  # a side of the matrices with which a GPU shows that it works
PROCESSOR_TOKENS_AT_ONCE = 2048  # more take memory in proportion, and are hardly faster: tests/bench/bench_pieces.py


@dataclass(frozen=True, slots=True)
class Placement:
    """What a learner is told about its machine.

    A batch goes through the model so many `sequences` at a time, None for as many as are fastest (`at_once`), and their
    gradients add up to the batch's. `recompute` keeps no activations but those between layers, and computes the others
    again for the gradient (Chen et al. 1604.06174). `products` of float32 parameters are made in the device's `fastest`
    type unless another one is named. `rounding_key` draws the rounding of bfloat16 parameters.
    """

    device: str = "cpu"
    sequences: int | None = None
    recompute: bool = False
    compiled: bool = False
    rounding_key: bytes = b""
    products: Products = "fastest"

    @property
    def half(self) -> torch.dtype | None:
        """The type of products of float32 parameters, if it is a shorter one."""
        if self.products == "fastest":
            return _half_type(torch.device(self.device))
        return None if self.products == "float32" else getattr(torch, self.products)

    @property
    def is_cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def at_once(self, context_tokens: int) -> int | None:
        """How many sequences of this length one device takes at a time; None for its share of the batch."""
        if self.is_cuda:
            return self.sequences
        most = max(1, PROCESSOR_TOKENS_AT_ONCE // context_tokens)
        return min(self.sequences or most, most)


def _half_type(device: torch.device) -> torch.dtype | None:
    """bfloat16 where a GPU has it: others would only imitate it, slower than float32. float16 where that is fast."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(False):
            return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= FLOAT16_CAPABILITY else None


def rounding_key(run_key: bytes, peer_id: str) -> bytes:
    """Draws the rounding of this peer's bfloat16 parameters in this run."""
    return digest_of(b"muster-rounding", run_key, peer_id.encode())


def rounding_seed(key: bytes, step: int) -> int:
    """Draws that of one step."""
    return int.from_bytes(digest_of(b"muster-rounding", key, step.to_bytes(8, "big"))[:8], "big", signed=True)


def choose_devices(wanted: str, needed_bytes: Callable[[int], int], memory_share: float) -> tuple[tuple[str, ...], str]:
    """The devices to train on, and in words why no GPU, if that was left to us.

    `auto` takes the CUDA device with the most free memory if that computes and has room within `memory_share` of it,
    `cuda` the same one or none; else names stand with commas between them. `needed_bytes` says how much each of so
    many devices that share a model needs. Raises UsageError if one does not work.
    """
    if wanted != AUTO:
        named = (_best(memory_share),) if wanted == "cuda" else tuple(wanted.split(","))
        for device in named:
            problem = "" if device == "cpu" else _problem(device, needed_bytes(len(named)), memory_share)
            if problem:
                raise UsageError(f"--device {wanted}: {problem}; choose --device cpu, or auto")
        return named, ""
    best = _best(memory_share)
    problem = _problem(best, needed_bytes(1), memory_share)
    return ("cpu" if problem else best,), problem


def _best(memory_share: float) -> str:
    """The CUDA device with the most free memory, by its number: some of torch's functions take no other name."""
    return max(_cuda_devices(), key=lambda name: _free_bytes(name, memory_share), default="cuda")


def _cuda_devices() -> list[str]:
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def _free_bytes(device: str, memory_share: float) -> int:
    try:
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, AssertionError, ValueError):
        return 0
    return min(free, int(memory_share * total))


def _problem(device: str, needed_bytes: int, memory_share: float) -> str:
    if not torch.cuda.is_available():
        return "torch finds no GPU here"
    if device not in (there := _cuda_devices()):
        return f"torch finds no such GPU, only {', '.join(there)}"
    free_bytes = _free_bytes(device, memory_share)
    if free_bytes < needed_bytes:
        needed = f"{needed_bytes / 2**30:.1f} GiB are needed on one card at least"
        return f"{needed}, and {device} has {free_bytes / 2**30:.1f} for us"
    try:
        ones = torch.ones(TRIAL_ELEMENTS, TRIAL_ELEMENTS, device=device)
        if bool((ones @ ones == TRIAL_ELEMENTS).all()):
            return ""
    except RuntimeError as error:  # an old card for which this torch has no kernels, a broken driver
        return f"{device} does not work: {str(error).strip().splitlines()[0]}"
    return f"{device} computes wrongly"


def devices_name(devices: Sequence[str], threads: int) -> str:
    """What people call them: `NVIDIA H200`, `2 × NVIDIA H200`, or `CPU, 2 threads`."""
    if torch.device(devices[0]).type == "cuda":
        counts = Counter(torch.cuda.get_device_name(device) for device in devices)
        return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())
    count = len(devices)
    return cpu_name(threads) if count == 1 else f"{count} × {cpu_name(max(1, threads // count))}"


def cpu_name(threads: int) -> str:
    """What people call a processor of which so many threads are used."""
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"
