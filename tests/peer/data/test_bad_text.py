"""Bad text is an everyday case: it is read, with a line that counts omissions, or refused with file and line."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.cli.main import run
from peer.data import hub_rows
from peer.data.tally import Loading
from peer.data.token_files import TokenData
from peer.data.windows import load_tokens
from peer.machine.local_files import LocalFiles

GOOD = [f"the line of number {number} says {number * number}" for number in range(300)]
RUN = """
[data]
source = "{source}"
path = "{path}"
context_tokens = 8
sequences_per_step = 1
evaluation_tokens = 256

[model]
hidden_size = 8
layers = 1
heads = 1
intermediate_size = 8
"""


def load(path: Path, **spec: object) -> TokenData:
    described = {"source": path.suffix[1:].replace("txt", "text"), "context_tokens": 8, "evaluation_tokens": 256} | spec
    return load_tokens(DataSpec.model_validate(described), files=LocalFiles(str(path)))


def text_of(data: TokenData) -> str:
    return bytes([*data.train.tolist(), *data.heldout.tolist()]).decode()


def write_rows(path: Path, rows: list[object], before: bytes = b"") -> Path:
    path.write_bytes(before + b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return path


def test_useless_rows_are_left_out_and_counted(tmp_path: Path):
    rows: list[object] = [{"text": line} for line in GOOD]
    rows[10:10] = [{"text": None}, {"text": 5}, {"text": "  "}, {"text": ["a"]}, {"text": None}]
    path = write_rows(tmp_path / "a.jsonl", rows, b"\xef\xbb\xbf\n\r\n")
    data = load(path)
    assert data.note.split("; ")[0] == (
        "left out 2 empty lines, 1 empty rows, 1 rows whose field holds no text (int), "
        "1 rows whose field holds no text (list), 2 rows without text (null)"
    )
    assert sorted(text_of(data).splitlines()) == sorted(GOOD)


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_a_character(tmp_path: Path):
    path = write_rows(tmp_path / "a.jsonl", [{"text": line} for line in GOOD])
    with path.open("a") as file:
        file.write('{"text": "half \\ud83d of a \\ude00 pair, whole \\ud83d\\ude00"}\n')
    data = load(path)
    assert "half \ufffd of a \ufffd pair, whole \U0001f600" in text_of(data)
    assert "replaced 2 halves of surrogate pairs" in data.note


def test_marks_line_ends_and_nuls_of_text_files(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(GOOD).encode() + b"\0\r\n")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf")
    data = load(tmp_path / "*.txt")
    assert sorted(re.findall(r"number \d+", text_of(data)))[:3] == ["number 0", "number 1", "number 10"]
    assert "\r" not in text_of(data)
    assert "\ufeff" not in text_of(data)
    assert text_of(data).count("\0") == 1
    assert "left out 2 empty files" in data.note


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_other_encodings_are_refused_with_file_and_line(tmp_path: Path, encoding: str, suffix: str):
    lines = [line.replace("41 says", "41 säys") for line in GOOD]
    if suffix == "jsonl":
        lines = [json.dumps({"text": line}, ensure_ascii=False) for line in lines]
    (tmp_path / f"a.{suffix}").write_bytes("\n".join(lines).encode(encoding))
    place = r"line 42\b" if encoding == "latin-1" else r"line \d+\b"
    with pytest.raises(UsageError, match=rf"{place}.*"):
        load(tmp_path / f"a.{suffix}")


def test_a_line_of_megabytes_is_one_document(tmp_path: Path):
    path = write_rows(tmp_path / "a.jsonl", [*({"text": line} for line in GOOD), {"text": "word " * 1_000_000}])
    data = load(path)
    assert max(len(data.train), len(data.heldout)) > 5_000_000


def test_few_held_out_tokens_are_said_to_be_few(tmp_path: Path):
    data = load(write_rows(tmp_path / "a.jsonl", [{"text": line} for line in GOOD]), evaluation_tokens=100_000)
    assert f"evaluations use all {len(data.heldout)} held-out tokens" in data.note


def test_a_corpus_of_few_documents_has_some_of_them_held_out(tmp_path: Path):
    """The hash picks none of twelve books for the 3 %, so the corpus was refused with "bring more text"."""
    books = [f"book {number} " + GOOD[number] * 40 for number in range(12)]
    path = write_rows(tmp_path / "a.jsonl", [{"text": book} for book in books])
    data = load(path)
    assert 0 < len(data.heldout) < len(data.train)
    assert data.heldout_bytes == len(data.heldout)
    assert re.search(r"held out \d+% of it, since it has few pieces", data.note)
    assert sorted(text_of(data).splitlines()) == sorted(books)


def test_a_corpus_shorter_than_a_context_says_what_was_left_out(tmp_path: Path):
    path = write_rows(tmp_path / "a.jsonl", [{"text": None}, {"text": "word"}])
    with pytest.raises(UsageError, match=r"bring more text \(left out 1 rows without text \(null\)\)$"):
        load(path)


def test_parquet_columns_that_hold_no_text_are_named(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name, column in (("a", [1, 2]), ("b", [b"x", b"y"]), ("c", pyarrow.array(["x", None]).dictionary_encode())):
        parquet.write_table(pyarrow.table({"text": column}), tmp_path / f"{name}.parquet")
    for name, words in (
        ("a", "no text in the column 'text', but int64"),
        ("b", "but binary"),
        ("c", "bring more text"),
    ):
        with pytest.raises(UsageError, match=words):
            load(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_every_parquet_column_of_text_is_read(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.array([f"row {number} of a text" for number in range(400)], getattr(pyarrow, kind)())
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet")
    assert len(data.train) + len(data.heldout) == sum(len(f"row {number} of a text\n") for number in range(400))


# -- a hundred files, through the command


def everyday(draw: random.Random, suffix: str) -> bytes:
    """Return a file as people have them: good lines, and among them one or two kinds of faults."""
    wrong: list[bytes] = [
        b"", b"\r", b"\0" * 9, b"\xff\xfe\0", b"caf\xe9", "\ufeff".encode(), b'{"text": "\\ud800"}', b'{"text": null}',
        b'{"text": 3}', b'{"text": ""}', b'{"body": "x"}', b"[]", b"[" * 5000, b'{"text": "x"', b'"text"', b"NaN",
        b'{"text": "' + b"long " * 50_000 + b'"}', b"9" * 5000, b"\xed\xa0\x80", "日本語 👍🏽 é".encode(),
        b'{"text": "\\u0000\\uffff"}', b"x" * 100_000,
    ]  # fmt: skip
    lines = [json.dumps({"text": line}).encode() if suffix == "jsonl" else line.encode() for line in GOOD]
    kinds = draw.sample(wrong, draw.randint(1, 2))
    for _ in range(draw.randint(1, 4)):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(kinds))
    content = draw.choice([b"\n", b"\n", b"\r\n", b"\n\n"]).join(lines[: draw.choice([3, 1000, 1000])])
    return draw.choice([b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe"]) + content


@pytest.mark.parametrize("seed", range(100))
def test_no_input_ends_in_a_traceback(tmp_path: Path, seed: int):
    """It is read, or refused in one sentence that says where."""
    draw = random.Random(seed)
    suffix = draw.choice(["txt", "jsonl"])
    corpus = tmp_path / f"corpus.{suffix}"
    corpus.write_bytes(everyday(draw, suffix))
    try:
        data = load(corpus)
    except UsageError as error:
        refusal = str(error)
    else:
        assert "\ufffd" not in text_of(data) or "surrogate" in data.note
        return
    assert "\n" not in refusal
    assert re.search(r"line \d+|bring more text", refusal), refusal


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b'{"text": "half \\ud83d"}\n\n{"text": null}', 0, "left out 1 empty lines, 1 rows without text"),
        (b"caf\xe9", 2, "corpus.jsonl, line 301: has the byte 0xe9"),
    ],
)
def test_the_command_says_what_became_of_bad_text(
    tmp_path: Path,
    line: bytes,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = write_rows(tmp_path / "corpus.jsonl", [{"text": line} for line in GOOD])
    with corpus.open("ab") as file:
        file.write(line + b"\n")
    (tmp_path / "run.toml").write_text(RUN.format(source="jsonl", path=corpus))
    assert run(["lab", str(tmp_path / "run.toml"), "--learners", "1", "--steps", "24", "--no-ui"], (3, 12)) == code
    assert words in capsys.readouterr().err


# -- the Hub


class BusyHub:
    """A fake `datasets` that refuses every second row once, like a hub with too many requests."""

    def __init__(self, rows: int, status: int) -> None:
        self.rows = rows
        self.status = status
        self.refused: set[int] = set()

    def load_dataset(self, *_: object, **__: object) -> BusyHub:
        self.first = 0
        return self

    def skip(self, rows: int) -> BusyHub:
        self.first = rows
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.first, self.rows):
            if number % 2 and number not in self.refused:
                self.refused.add(number)
                error = OSError("Server says: no more for you\ntoday")
                error.response = SimpleNamespace(status_code=self.status, headers={"retry-after": "0"})  # type: ignore[attr-defined]
                raise RuntimeError("streaming failed") from error
            yield {"text": GOOD[number % len(GOOD)]}


def hub(monkeypatch: pytest.MonkeyPatch, rows: int, status: int) -> TokenData:
    busy, module = BusyHub(rows, status), ModuleType("datasets")
    module.load_dataset = busy.load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "datasets", module)
    spec = DataSpec(source="hub", path="some/data", context_tokens=8, evaluation_tokens=256)
    return load_tokens(spec, loading=Loading())


def test_a_hub_with_too_many_requests_is_waited_for_and_no_row_is_read_twice(monkeypatch: pytest.MonkeyPatch):
    assert sorted(text_of(hub(monkeypatch, 200, 429)).splitlines()) == sorted(GOOD[:200])


def test_the_words_of_the_hub_are_told(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="cannot be had from the Hugging Face Hub: RuntimeError: streaming failed"):
        hub(monkeypatch, 200, 500)


def test_a_hub_is_not_waited_for_for_ever():
    error = OSError()
    error.response = SimpleNamespace(status_code=429, headers={})  # type: ignore[attr-defined]
    assert [hub_rows.busy_seconds(error, tries) for tries in (0, 3, 11)] == [1, 8, hub_rows.WAIT_SECONDS_MAX]
    assert hub_rows.busy_seconds(ValueError("no"), 0) is None
