"""Text that people bring: files of text, JSON lines or Parquet, tokens, or a data set of the Hub (docs/how-to/data.md).

A manifest opens no file here: whoever runs a peer names the files, and the run's digest says whether they are the same
as the host's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from coordinator.run.manifest import DataSpec
from dht.errors import UsageError
from peer.data.corpus_files import corpus_paths
from peer.data.hub_rows import HubRows
from peer.data.readers import Block, file_blocks
from peer.data.ready_tokens import ready_blocks
from peer.data.tally import CorpusTally, Loading
from peer.data.token_files import TokenData, kept_tokens, smallest_type
from peer.data.token_writer import TokenWriter
from peer.data.tokens import Encoder, Tokens
from peer.machine.local_files import LocalFiles

FORMAT = 1  # of what is kept; another one is made anew
BATCH_CHARACTERS = 1 << 16  # one thread's work at a time
AHEAD = 1  # batches that wait for each thread


class TextSource(Protocol):
    """Where documents come from, in a fixed order."""

    @property
    def size_bytes(self) -> int: ...  # of what is read, as `CorpusTally.read_bytes` counts; 0 where nobody knows
    def name(self, loading: Loading) -> str: ...
    def blocks(self, tally: CorpusTally) -> Iterator[Block | Tokens]: ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """The owner's files."""

    paths: list[Path]
    spec: DataSpec
    encoder: Encoder
    size_bytes: int

    def name(self, loading: Loading) -> str:
        """By content: what is renamed or copied is the same text."""
        with ThreadPoolExecutor(loading.threads, "hashing") as pool:
            digests, read = [], 0
            for path, digest in zip(self.paths, pool.map(_file_digest, self.paths), strict=True):
                digests.append(digest)
                read += path.stat().st_size
                loading.tell("looking at the text", read / max(1, self.size_bytes))
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def blocks(self, tally: CorpusTally) -> Iterator[Block | Tokens]:
        for path in self.paths:
            if self.spec.source == "tokens":
                yield from ready_blocks(path, self.spec, self.encoder.size, tally)
            else:
                yield from file_blocks(path, self.spec, self.encoder, tally)


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def read_corpus(spec: DataSpec, files: LocalFiles, encoder: Encoder, loading: Loading) -> TokenData:
    """All documents, each on the side of training or evaluation that its content's hash says; raises UsageError."""
    tally = CorpusTally()
    source: TextSource
    if spec.source == "hub":
        source = HubRows(spec, encoder, loading)
    else:
        paths = corpus_paths(files.corpus, tally)
        source = FileSource(paths, spec, encoder, sum(path.stat().st_size for path in paths))
    text = source.name(loading)
    parts = [FORMAT, spec.source, text, spec.field, spec.context_tokens, spec.tokens_max, spec.tokenizer_sha256]
    made_with = json.dumps([*parts, encoder.size, encoder.begin, encoder.end])
    cache = files.cache if text else ""
    name = hashlib.sha256(made_with.encode()).hexdigest()
    make = partial(_make, source=source, spec=spec, encoder=encoder, loading=loading, tally=tally)
    data = kept_tokens(cache, name, make, loading.tell)
    if min(len(data.train), len(data.heldout)) <= spec.context_tokens:
        note = f" ({data.note})" if data.note else ""
        raise UsageError(
            f"the corpus holds {len(data.train)} tokens to train on and {len(data.heldout)} to evaluate on, too few "
            f"for sequences of {spec.context_tokens}; bring more text{note}"
        )
    return data


def _make(
    folder: Path, *, source: TextSource, spec: DataSpec, encoder: Encoder, loading: Loading, tally: CorpusTally
) -> None:
    with TokenWriter(folder, smallest_type(encoder.size), spec.tokens_max) as writer:
        fresh = itertools.islice(source.blocks(tally), writer.done, None)
        for tokens, text_bytes in _encoded(fresh, encoder, loading.threads):
            if not writer.room:
                break
            writer.add(tokens, text_bytes)
            share = writer.tokens / spec.tokens_max
            if source.size_bytes:
                share = max(share, tally.read_bytes / source.size_bytes)
            loading.tell("making tokens of the text", min(1.0, share))
        if not writer.room:
            tally.notes.append(f"read no further than {spec.tokens_max:,} tokens (data.tokens_max)")
        if writer.heldout_tokens < spec.evaluation_tokens:
            tally.notes.append(
                f"evaluations use all {writer.heldout_tokens:,} held-out tokens, fewer than data.evaluation_tokens"
            )
        writer.finish(tally.line())


def _encoded(blocks: Iterable[Block | Tokens], encoder: Encoder, threads: int) -> Iterator[tuple[Tokens, int]]:
    """Tokens of every block and the bytes of its text, in order, made by so many threads at a time."""

    def encode(batch: list[Block]) -> list[tuple[Tokens, int]]:
        return [(encoder.document(one.text, one.begins, one.ends), len(one.text.encode())) for one in batch]

    with ThreadPoolExecutor(threads, "tokens") as pool:
        waiting: deque[Future[list[tuple[Tokens, int]]]] = deque()
        for batch in _batches(blocks):
            if not isinstance(batch, list):
                yield batch, 0
                continue
            waiting.append(pool.submit(encode, batch))
            if len(waiting) > (1 + AHEAD) * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _batches(blocks: Iterable[Block | Tokens]) -> Iterator[list[Block] | Tokens]:
    batch: list[Block] = []
    characters = 0
    for block in blocks:
        if not isinstance(block, Block):
            yield block
            continue
        batch.append(block)
        characters += len(block.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
