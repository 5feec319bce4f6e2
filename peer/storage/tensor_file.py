"""Safetensors files, written tensor by tensor, so that no tensor is in memory twice.

The library's own writer converts all tensors to bytes before it writes the first. Its reader maps the file, as it
should.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

PIECE_BYTES = 8 << 20
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a new file; return the SHA-256 of its content in hex. Does not force it to disk. Raises OSError."""
    hashed = hashlib.sha256()
    _write(path, tensors, metadata, hashed.update)
    return hashed.hexdigest()


def write_unhashed(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a new file without hashing it, which takes longer than writing. Raises OSError."""
    _write(path, tensors, None, lambda _: None)


def _write(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None,
    look: Callable[[memoryview], None],
) -> None:
    ordered = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))  # so that all are aligned
    with path.open("wb", buffering=0) as file:
        for piece in chain([_header(ordered, metadata)], *(_pieces(tensor) for _, tensor in ordered)):
            look(piece)
            done = 0
            while done < len(piece):
                done += file.write(piece[done:])


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, loaded as they are read; raises OSError, SafetensorError or ValueError.

    Writing to them does not change the file.
    """
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def _header(ordered: list[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> memoryview:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in ordered:
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return memoryview(len(text).to_bytes(8, "little") + text)


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, from any device."""
    flat, step = tensor.detach().reshape(-1), PIECE_BYTES // tensor.element_size()
    for start in range(0, len(flat), step):
        yield flat[start : start + step].cpu().view(torch.uint8).numpy().data
