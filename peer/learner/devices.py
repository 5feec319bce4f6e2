"""The devices on which a learner makes its steps, and how it splits a batch. The run fixes the batch itself."""

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

FLOAT16_CAPABILITY = (7, 0)  # of the first cards that multiply faster in float16 than in float32
TRIAL_ELEMENTS = 64  # rows and columns of the matrices that test whether a GPU works
PROCESSOR_TOKENS_AT_ONCE = 2048  # more need memory in proportion and are hardly faster: tests/bench/bench_pieces.py


@dataclass(frozen=True, slots=True)
class Placement:
    """A learner's settings for its machine.

    A batch goes through the model in pieces of `sequences`, or of the fastest size if that is None (`at_once`). The
    gradients of the pieces add up to the batch's. `recompute` keeps only the activations between layers and computes
    the others again for the gradient (Chen et al. 1604.06174). Products of float32 parameters use the device's
    `fastest` type unless `products` names another. `rounding_key` seeds the rounding of bfloat16 parameters.
    """

    device: str = "cpu"
    sequences: int | None = None
    recompute: bool = False
    compiled: bool = False
    rounding_key: bytes = b""
    products: Products = "fastest"

    @property
    def half(self) -> torch.dtype | None:
        """The 16-bit type for products of float32 parameters; None to multiply in float32."""
        if self.products == "fastest":
            return _half_type(torch.device(self.device))
        return None if self.products == "float32" else getattr(torch, self.products)

    @property
    def is_cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def at_once(self, context_tokens: int) -> int | None:
        """Return the number of such sequences per pass on one device; None for its whole share of the batch."""
        if self.is_cuda:
            return self.sequences
        most = max(1, PROCESSOR_TOKENS_AT_ONCE // context_tokens)
        return min(self.sequences or most, most)


def _half_type(device: torch.device) -> torch.dtype | None:
    """Return bfloat16 if the GPU has it (emulated, it is slower than float32), else float16 where that is fast."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(False):
            return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= FLOAT16_CAPABILITY else None


def rounding_key(run_key: bytes, peer_id: str) -> bytes:
    """Return the key for the rounding of this peer's bfloat16 parameters in this run."""
    return digest_of(b"muster-rounding", run_key, peer_id.encode())


def rounding_seed(key: bytes, step: int) -> int:
    """Return the seed for the rounding in one step."""
    return int.from_bytes(digest_of(b"muster-rounding", key, step.to_bytes(8, "big"))[:8], "big", signed=True)


def choose_devices(wanted: str, needed_bytes: Callable[[int], int], memory_share: float) -> tuple[tuple[str, ...], str]:
    """Return the devices to train on, and, if `wanted` is `auto` and finds no usable GPU, why not.

    `auto` takes the CUDA device with the most free memory if it computes and its share `memory_share` has room, else
    the CPU. `cuda` insists on that device; other values are device names, separated by commas. `needed_bytes` returns
    the bytes that each of N devices needs if they share a model. Raises UsageError if a device does not work.
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
    """Return the CUDA device with the most free memory, with its index, as some torch functions require one."""
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
    """Return a readable name of the devices: `NVIDIA H200`, `2 × NVIDIA H200`, or `CPU, 2 threads`."""
    if torch.device(devices[0]).type == "cuda":
        counts = Counter(torch.cuda.get_device_name(device) for device in devices)
        return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())
    count = len(devices)
    return cpu_name(threads) if count == 1 else f"{count} × {cpu_name(max(1, threads // count))}"


def cpu_name(threads: int) -> str:
    """Return a readable name of a CPU with the number of threads in use."""
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"
