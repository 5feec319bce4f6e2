"""Text that users bring: text files, JSON lines or Parquet, tokens, or a data set of the Hub (docs/how-to/data.md).

A manifest opens no file here. The peer's owner names the files, and the run's digest tells whether they match the
host's.
"""

from __future__ import annotations

import copy
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

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.data.chat import Conversation
from peer.data.chat_lines import conversations, packed
from peer.data.corpus_files import corpus_paths
from peer.data.hub_rows import HubRows
from peer.data.readers import Block, file_blocks
from peer.data.ready_tokens import ready_blocks
from peer.data.tally import CorpusTally, Loading
from peer.data.token_files import TokenData, kept_tokens, smallest_type
from peer.data.token_writer import HELDOUT_SHARE, TokenWriter
from peer.data.tokens import Encoder, Tokens
from peer.machine.local_files import LocalFiles

FORMAT = 2  # of cached tokens; those of another format are made again
HELDOUT_SHARE_MAX = 0.25  # of the blocks; a short text holds out at most twice this
BATCH_CHARACTERS = 1 << 16  # one thread's work at a time
AHEAD = 1  # batches waiting per thread


Piece = Block | Conversation | Tokens


class TextSource(Protocol):
    """A source of documents, in a fixed order."""

    @property
    def size_bytes(self) -> int: ...  # of the input, as `CorpusTally.read_bytes` counts; 0 if unknown
    def name(self, loading: Loading) -> str: ...
    def blocks(self, tally: CorpusTally) -> Iterator[Piece]: ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """The owner's files."""

    paths: list[Path]
    spec: DataSpec
    encoder: Encoder
    size_bytes: int

    def name(self, loading: Loading) -> str:
        """Return the name, which follows from the content: a renamed or copied file is the same text."""
        with ThreadPoolExecutor(loading.threads, "hashing") as pool:
            digests, read = [], 0
            for path, digest in zip(self.paths, pool.map(_file_digest, self.paths), strict=True):
                digests.append(digest)
                read += path.stat().st_size
                loading.tell("looking at the text", read / max(1, self.size_bytes))
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def blocks(self, tally: CorpusTally) -> Iterator[Piece]:
        for path in self.paths:
            if self.encoder.chat is not None:
                yield from conversations(path, self.encoder.chat, tally)
            elif self.spec.source == "tokens":
                yield from ready_blocks(path, self.spec, self.encoder.size, tally)
            else:
                yield from file_blocks(path, self.spec, self.encoder, tally)


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def read_corpus(
    spec: DataSpec, files: LocalFiles, encoder: Encoder, loading: Loading, source: TextSource | None = None
) -> TokenData:
    """Return all documents as tokens, each for training or evaluation by its content's hash; raises UsageError.

    They come from `source`, else from the place that `spec` and `files` name.
    """
    tally = CorpusTally()
    if source is not None:
        pass
    elif spec.source == "hub":
        source = HubRows(spec, encoder, loading)
    else:
        paths = corpus_paths(files.corpus, tally)
        source = FileSource(paths, spec, encoder, sum(path.stat().st_size for path in paths))
    text = source.name(loading)
    parts = [FORMAT, spec.source, text, spec.field, spec.context_tokens, spec.tokens_max, spec.tokenizer_sha256]
    further = [one for one in (spec.chat_template, spec.borders) if one is not None]
    made_with = json.dumps([*parts, encoder.size, encoder.begin, encoder.end, *further])
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
    """Write the tokens, with 3 % of the pieces held out; if they are few, double that until a sequence is held out."""
    share = HELDOUT_SHARE
    kind = smallest_type(1 << 31 if spec.is_marked else encoder.size)
    while True:
        counted = copy.deepcopy(tally)
        with TokenWriter(folder, kind, spec.tokens_max, share) as writer:
            _write(writer, source, spec, encoder, loading, counted)
            heldout = writer.heldout_tokens
            is_enough = heldout > spec.context_tokens or writer.tokens <= 2 * spec.context_tokens
            if is_enough or share > HELDOUT_SHARE_MAX:
                if share > HELDOUT_SHARE and heldout:
                    counted.notes.append(f"held out {heldout / writer.tokens:.0%} of it, since it has few pieces")
                writer.finish(counted.line())
                return
        share *= 2
        writer.forget()


def _write(
    writer: TokenWriter, source: TextSource, spec: DataSpec, encoder: Encoder, loading: Loading, tally: CorpusTally
) -> None:
    row = spec.context_tokens + 1
    least = row if spec.is_packed else 1  # rows are never cut
    for tokens, text_bytes, heldout in _written(source, writer, encoder, loading, row, tally):
        if writer.room < least:
            break
        writer.add(tokens, text_bytes, heldout)
        share = writer.tokens / spec.tokens_max
        if source.size_bytes:
            share = max(share, tally.read_bytes / source.size_bytes)
        loading.tell("making tokens of the text", min(1.0, share))
    if writer.room < least:
        tally.notes.append(f"read no further than {spec.tokens_max:,} tokens (data.tokens_max)")
    if 0 < writer.heldout_tokens < spec.evaluation_tokens:
        tally.notes.append(
            f"evaluations use all {writer.heldout_tokens:,} held-out tokens, fewer than data.evaluation_tokens"
        )


def _written(
    source: TextSource, writer: TokenWriter, encoder: Encoder, loading: Loading, row: int, tally: CorpusTally
) -> Iterator[tuple[Tokens, int, bool | None]]:
    """Yield the blocks not yet written: tokens, bytes of their text, and whether they are held out, if that is decided.

    A row depends on all conversations before it, so these are read again.
    """
    done = writer.done
    if encoder.chat is None:
        fresh = itertools.islice(source.blocks(tally), done, None)
        for tokens, text_bytes in _encoded(fresh, encoder, loading.threads):
            yield tokens, text_bytes, None
        return
    found = (tokens for tokens, _ in _encoded(source.blocks(tally), encoder, loading.threads))
    for tokens, heldout in itertools.islice(packed(found, row, tally, writer.share), done, None):
        yield tokens, 0, heldout


def _encoded(pieces: Iterable[Piece], encoder: Encoder, threads: int) -> Iterator[tuple[Tokens, int]]:
    """Yield the tokens of every piece and the bytes of its text, in order, with `threads` threads."""

    def tokens_of(one: Block | Conversation) -> Tokens:
        if isinstance(one, Block):
            return encoder.document(one.text, one.begins, one.ends)
        assert encoder.chat is not None
        return encoder.chat.encode(one)

    def encode(batch: list[Block | Conversation]) -> list[tuple[Tokens, int]]:
        return [(tokens_of(one), len(one.text.encode())) for one in batch]

    with ThreadPoolExecutor(threads, "tokens") as pool:
        waiting: deque[Future[list[tuple[Tokens, int]]]] = deque()
        for batch in _batches(pieces):
            if not isinstance(batch, list):
                yield batch, 0
                continue
            waiting.append(pool.submit(encode, batch))
            if len(waiting) > (1 + AHEAD) * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Block | Conversation] | Tokens]:
    batch: list[Block | Conversation] = []
    characters = 0
    for piece in pieces:
        if not isinstance(piece, Block | Conversation):
            yield piece
            continue
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
