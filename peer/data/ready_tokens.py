"""Tokens that were made elsewhere: `.npy` vectors, and vectors named `tokens` in `.safetensors` files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from safetensors import SafetensorError, safe_open

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.data.readers import BLOCK_CONTEXTS
from peer.data.tally import CorpusTally
from peer.data.tokens import Tokens

Part = Callable[[int, int], Tokens]
"""Returns a file's numbers from one position to another."""

READ_TOKENS = 1 << 20
_INTEGERS = {"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"}  # names in safetensors


def ready_blocks(path: Path, spec: DataSpec, vocabulary: int, tally: CorpusTally) -> Iterator[Tokens]:
    """Yield int32 vectors of 8 contexts; raises UsageError at a number that is not a token of the run."""
    size_bytes, before = path.stat().st_size, tally.read_bytes
    length = BLOCK_CONTEXTS * spec.context_tokens
    try:
        count, part = _safetensors(path) if path.suffix == ".safetensors" else _numpy(path)
        if not count:
            tally.left_out["empty files"] += 1
        for start in range(0, count, length):
            tokens = part(start, min(count, start + length))
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))  # before a conversion could wrap
            if len(wrong):
                number, found = start + int(wrong[0]), int(tokens[wrong[0]])
                raise UsageError(
                    f"{path}, number {number}: {found} is no token of this model's; {_advice(count, part)}"
                )
            yield np.ascontiguousarray(tokens, dtype=np.int32)
            tally.read_bytes = before + size_bytes * start // count
    except (OSError, ValueError, KeyError, EOFError, TypeError, SafetensorError) as error:
        raise UsageError(f"{path} holds no tokens: {error}") from None
    tally.read_bytes = before + size_bytes


def _advice(count: int, part: Part) -> str:
    """Return advice on the vocabulary that would include all numbers of a file."""
    least = largest = 0
    for start in range(0, count, READ_TOKENS):
        piece = part(start, min(count, start + READ_TOKENS))
        least, largest = min(least, int(piece.min())), max(largest, int(piece.max()))
    if least < 0 or largest >= 1 << 31:
        return "tokens are numbered from 0 and have 31 bits"
    return f"write model.vocabulary = {largest + 1} or more"


def _numpy(path: Path) -> tuple[int, Part]:
    with path.open("rb") as file:
        if len(file.read(16)) < 16:
            raise ValueError("is no .npy file")
    try:
        found = open_memmap(path, mode="r")
    except ValueError as error:
        if "empty" in str(error):  # an empty vector cannot be mapped
            return 0, lambda start, end: np.empty(0, np.int32)
        raise
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"it is no vector of integers, but {found.dtype} of shape {found.shape}")
    return len(found), lambda start, end: found[start:end]


def _safetensors(path: Path) -> tuple[int, Part]:
    file: Any = safe_open(path, framework="numpy")
    if "tokens" not in file.keys():  # noqa: SIM118 - it is no mapping
        raise ValueError("it has no tensor that is called tokens")
    found = file.get_slice("tokens")
    shape, kind = found.get_shape(), found.get_dtype()
    if len(shape) != 1 or kind not in _INTEGERS:
        raise ValueError(f"it is no vector of integers, but {kind} of shape {tuple(shape)}")
    return shape[0], lambda start, end: found[start:end]
