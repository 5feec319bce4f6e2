"""Text that people bring: files of text, JSON lines or Parquet, ready tokens, or a data set of the Hub (docs/data.md).

A manifest opens no file here: whoever runs a peer names the files, and the run's digest says whether they are the same
as the host's.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from coordinator.run.manifest import DataSpec
from dht.errors import UsageError
from peer.data.tokens import Encode
from peer.machine.local_files import LocalFiles

BLOCK_CONTEXTS = 8  # text and tokens without documents of their own are dealt out in blocks of so many sequences
CHARACTERS_PER_TOKEN = 4  # roughly
HELDOUT_SHARE = 0.03

Tokens = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TokenData:
    """Training and held-out tokens, shape (tokens,), uint8 if they are bytes, and the digest that names both."""

    train: Tensor
    heldout: Tensor
    digest: bytes


def read_corpus(spec: DataSpec, files: LocalFiles, encode: Encode) -> TokenData:
    """All documents, each on the side of training or evaluation that its content's hash says; raises UsageError."""
    sides: tuple[list[Tokens], list[Tokens]] = ([], [])
    hasher = hashlib.sha256(b"muster-corpus/1")
    room = spec.tokens_max
    for document in documents(spec, files, encode):
        tokens = document[:room]
        digest = hashlib.sha256(tokens.tobytes()).digest()
        hasher.update(digest)
        sides[is_heldout_digest(digest)].append(tokens)
        room -= len(tokens)
        if not room:
            break
    train, heldout = (_tensor(side) for side in sides)
    if min(len(train), len(heldout)) <= spec.context_tokens:
        raise UsageError(
            f"the corpus holds {len(train)} tokens to train on and {len(heldout)} to evaluate on, too few for "
            f"sequences of {spec.context_tokens}; bring more text"
        )
    return TokenData(train, heldout, hasher.digest())


def documents(spec: DataSpec, files: LocalFiles, encode: Encode) -> Iterator[Tokens]:
    """Tokens of one document after the other, in a fixed order."""
    if spec.source == "tokens":
        for path in _paths(files):
            yield from _blocks(_ready_tokens(path), spec)
        return
    for text in _hub_texts(spec) if spec.source == "hub" else _file_texts(spec, files):
        yield encode(text)


def is_heldout_digest(digest: bytes) -> bool:
    """Whether what has this digest is kept for evaluation: about 3 %."""
    return int.from_bytes(digest[:8], "big") < int(HELDOUT_SHARE * 2**64)


def _tensor(parts: list[Tokens]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.empty(0, dtype=torch.uint8)


# -- files


def _paths(files: LocalFiles) -> list[Path]:
    found = sorted(
        {Path(name) for pattern in files.corpus.split(",") for name in glob.glob(pattern.strip(), recursive=True)}
    )
    paths = [path for path in found if path.is_file()]
    if not files.corpus:
        raise UsageError("this run trains on files that every peer brings; name yours with --corpus")
    if not paths:
        raise UsageError(
            f"there is no file {files.corpus}; name your text with a path or a pattern such as 'text/*.txt'"
        )
    return paths


def _file_texts(spec: DataSpec, files: LocalFiles) -> Iterator[str]:
    read = {"text": _blocks_of_text, "jsonl": _json_lines, "parquet": _parquet_rows}[spec.source]
    for path in _paths(files):
        try:
            yield from read(path, spec)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read as text: {error}") from None


def _blocks_of_text(path: Path, spec: DataSpec) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while block := file.read(BLOCK_CONTEXTS * CHARACTERS_PER_TOKEN * spec.context_tokens):
            yield block


def _json_lines(path: Path, spec: DataSpec) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                text = json.loads(line)[spec.field] if line.strip() else None
            except (ValueError, TypeError, KeyError, RecursionError):
                raise UsageError(f"line {number} of {path} is no JSON object with a field {spec.field!r}") from None
            if isinstance(text, str):
                yield text + "\n"


def _parquet_rows(path: Path, spec: DataSpec) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError("Parquet files need pyarrow; install it with: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[spec.field]):
                yield from (f"{text}\n" for text in batch.column(0).to_pylist() if isinstance(text, str))
    except (ArrowException, IndexError) as error:
        raise UsageError(f"{path} is no Parquet file with a column {spec.field!r}: {error}") from None


def _ready_tokens(path: Path) -> Tokens:
    """A vector of integers: an `.npy` file, or the tensor `tokens` of a `.safetensors` file."""
    try:
        found = load_file(path)["tokens"] if path.suffix == ".safetensors" else open_memmap(path, mode="r")
        if found.ndim != 1 or found.dtype.kind not in "iu" or (len(found) and int(found.min()) < 0):
            raise ValueError("is not a vector of token numbers")
    except (OSError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise UsageError(f"{path} holds no tokens: {error}") from None
    return found


def _blocks(tokens: Tokens, spec: DataSpec) -> Iterator[Tokens]:
    length = BLOCK_CONTEXTS * spec.context_tokens
    for start in range(0, len(tokens), length):
        yield np.ascontiguousarray(tokens[start : start + length], dtype=np.int32)


# -- the Hub


def _hub_texts(spec: DataSpec) -> Iterator[str]:
    """Rows as they stream in; never a data set's own script (which `datasets` ≥ 4 has none of)."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", spec.path) or Path(spec.path).exists():
        # `datasets` would take a folder of that name instead, and a manifest must not choose what of ours it trains on
        raise UsageError(
            f"{spec.path!r} is no name of a data set on the Hub, as OWNER/NAME, or there is a folder so called"
        )
    try:
        import datasets
    except ImportError:
        raise UsageError("data sets of the Hub need `datasets`; install it with: pip install datasets") from None
    try:
        for row in datasets.load_dataset(spec.path, spec.subset or None, split="train", streaming=True):
            text = row[spec.field]
            if isinstance(text, str):
                yield text + "\n"
    except KeyError:
        raise UsageError(f"the data set {spec.path} has no field {spec.field!r}") from None
    except Exception as error:  # noqa: BLE001 - its own, those of HTTP libraries, and of sockets
        raise UsageError(
            f"the data set {spec.path} cannot be had from the Hugging Face Hub ({type(error).__name__}); "
            "check the name and the network, or bring files of your own"
        ) from None
