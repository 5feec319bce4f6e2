"""Text from files, document by document. Input that cannot be text is refused, with its file and line.

Useless input, such as an empty line, is left out and counted.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.data.tally import CorpusTally
from peer.data.tokens import Encoder

BLOCK_CONTEXTS = 8  # text and tokens without documents of their own are split into blocks of this many sequences
CHARACTERS_PER_TOKEN = 4  # roughly
LINE_BYTES_MAX = 256 << 20
ROWS_AT_ONCE = 256
_WIDE = {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # UTF-32 of little-endian machines begins this way, too


@dataclass(frozen=True, slots=True)
class Block:
    """Text that stays together for training or evaluation; `begins`, `ends`: whether a document begins or ends here."""

    text: str
    begins: bool = True
    ends: bool = True


def file_blocks(path: Path, spec: DataSpec, encoder: Encoder, tally: CorpusTally) -> Iterator[Block]:
    """Yield all text in this file; raises UsageError if its format is not `spec.source`."""
    size_bytes, before = path.stat().st_size, tally.read_bytes
    if not size_bytes:
        tally.left_out["empty files"] += 1
        return
    try:
        if spec.source == "text":
            yield from _text_blocks(path, spec, encoder, tally)
        elif spec.source == "jsonl":
            yield from _json_lines(path, spec, encoder, tally)
        else:
            yield from _parquet_rows(path, spec, encoder, tally)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    tally.read_bytes = before + size_bytes


def row_block(value: object, encoder: Encoder, tally: CorpusTally) -> Block | None:
    """Return the document in a row's field, or None if it has none."""
    if value is None:
        tally.left_out["rows without text (null)"] += 1
    elif not isinstance(value, str):
        tally.left_out[f"rows whose field holds no text ({type(value).__name__})"] += 1
    elif not value.strip():
        tally.left_out["empty rows"] += 1
    else:
        # without an end token, only the line feed separates documents
        return Block(whole_characters(value, tally) + ("" if encoder.ends_documents else "\n"))
    return None


def whole_characters(text: str, tally: CorpusTally) -> str:
    """Replace halves of surrogate pairs, which JSON may contain but which are no characters, with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        mended = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        tally.replaced["halves of surrogate pairs"] += mended.count("\ufffd") - text.count("\ufffd")
        return mended
    return text


# -- text


def _text_blocks(path: Path, spec: DataSpec, encoder: Encoder, tally: CorpusTally) -> Iterator[Block]:
    """Yield a text file, which is one document, in blocks."""
    most = BLOCK_CONTEXTS * CHARACTERS_PER_TOKEN * spec.context_tokens
    try:
        with path.open(encoding="utf-8-sig") as file:
            ends = False
            for text, begins, ends in _pieces(file, most, encoder):
                tally.read_bytes += len(text)
                yield Block(text, begins, ends)
            tally.left_out["empty files"] += not ends  # apart from a byte order mark
    except UnicodeDecodeError:
        raise UsageError(_undecodable(path)) from None


def _pieces(file: IO[str], most: int, encoder: Encoder) -> Iterator[tuple[str, bool, bool]]:
    begins, rest = True, ""
    while True:
        rest += file.read(most + 1 - len(rest))  # one more than is cut off, to see whether anything follows
        if len(rest) <= most:
            if rest:
                yield rest, begins, True
            return
        end, start = encoder.cut(rest, most)
        yield rest[:end], begins, False
        begins, rest = False, rest[start:]


def _undecodable(path: Path) -> str:
    """Return the message that names the first line that is not UTF-8, with advice."""
    with path.open("rb") as file:
        wide = _WIDE.get(file.read(2))
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return _not_utf8(path, f"line {number}", line[error.start], wide)
    return f"{path} is no text in UTF-8; convert it"  # the file has changed meanwhile


def _not_utf8(path: Path, place: str, byte: int, encoding: str | None = None) -> str:
    kind = encoding or "ISO-8859-1"
    seems = f"seems to be {encoding}" if encoding else f"has the byte 0x{byte:02x}, which is no UTF-8"
    return f"{path}, {place}: {seems}; convert it, as with: iconv -f {kind} -t UTF-8"


# -- rows


def _json_lines(path: Path, spec: DataSpec, encoder: Encoder, tally: CorpusTally) -> Iterator[Block]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
            if len(line) == LINE_BYTES_MAX:
                raise UsageError(f"{path}, line {number}: is longer than {LINE_BYTES_MAX >> 20} MiB; split it")
            tally.read_bytes += len(line)
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not line.strip():
                tally.left_out["empty lines"] += 1
                continue
            block = row_block(_field(path, number, line, spec), encoder, tally)
            if block is not None:
                yield block


def _field(path: Path, number: int, line: bytes, spec: DataSpec) -> object:
    try:
        row: Any = json.loads(line.decode())
        if isinstance(row, dict):
            return row[spec.field]
    except UnicodeDecodeError as error:
        wide = next((name for mark, name in _WIDE.items() if line.startswith(mark)), None)
        raise UsageError(_not_utf8(path, f"line {number}", line[error.start], wide)) from None
    except (ValueError, KeyError, RecursionError):
        pass
    raise UsageError(f"line {number} of {path} is no JSON object with a field {spec.field!r}")


def _parquet_rows(path: Path, spec: DataSpec, encoder: Encoder, tally: CorpusTally) -> Iterator[Block]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise UsageError("Parquet files need pyarrow; install it with: pip install pyarrow") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            kind = file.schema_arrow.field(spec.field).type
            kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            types = pyarrow.types
            if not any(is_text(kind) for is_text in (types.is_string, types.is_large_string, types.is_string_view)):
                raise UsageError(f"{path} has no text in the column {spec.field!r}, but {kind}")
            share = path.stat().st_size / max(1, file.metadata.num_rows)
            before = tally.read_bytes
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[spec.field]):
                for value in batch.column(0):
                    number += 1
                    block = row_block(value.as_py(), encoder, tally)
                    if block is not None:
                        yield block
                tally.read_bytes = before + int(number * share)
    except UnicodeDecodeError:
        raise UsageError(f"{path}, row {number}: the column {spec.field!r} holds no UTF-8; convert it") from None
    except (pyarrow.ArrowException, IndexError, KeyError) as error:
        raise UsageError(f"{path} is no Parquet file with a column {spec.field!r}: {error}") from None
