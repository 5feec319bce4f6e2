"""Text becomes tokens once: they are kept by content, shared, made by several threads, and resumed after a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from tokenizers import Tokenizer, models, pre_tokenizers

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.data import token_files, token_writer
from peer.data.tally import Loading
from peer.data.token_files import TokenData
from peer.data.windows import load_tokens
from peer.machine.local_files import LocalFiles

LINES = [f"the line of number {number} says {number * number}" for number in range(3000)]


class Crashed(Exception):
    """A simulated power cut."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(200)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def load(corpus: Path, cache: Path | str = "", loading: Loading | None = None, **spec: object) -> TokenData:
    described = DataSpec.model_validate({"source": "jsonl", "context_tokens": 8, "evaluation_tokens": 256} | spec)
    return load_tokens(described, 70_000, LocalFiles(str(corpus), cache=str(cache)), loading=loading or Loading())


def made(told: list[str]) -> Loading:
    return Loading(lambda doing, _: told.append(doing))


def crashing(calls: int) -> Loading:
    """Return how to load so that the last of so many reports of progress is a crash."""
    left = calls

    def crash(_doing: str, _share: float | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Crashed

    return Loading(crash)


def same(one: TokenData, other: TokenData) -> bool:
    return (
        one.digest == other.digest and torch.equal(one.train, other.train) and torch.equal(one.heldout, other.heldout)
    )


def test_the_second_start_finds_what_the_first_has_made(corpus: Path, tmp_path: Path):
    first, second = list[str](), list[str]()
    data = load(corpus, tmp_path / "cache", made(first))
    again = load(corpus.rename(tmp_path / "renamed.jsonl"), tmp_path / "cache", made(second))
    assert same(data, again)
    assert same(data, load(tmp_path / "renamed.jsonl"))  # without a cache
    assert (data.note, data.heldout_bytes) == (again.note, again.heldout_bytes)
    assert "making tokens of the text" in first
    assert "making tokens of the text" not in second


def test_other_text_and_other_specs_have_tokens_of_their_own(corpus: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    digests = {
        load(corpus, cache).digest,
        load(corpus, cache, end_token=0).digest,
        load(corpus, cache, tokens_max=5000).digest,
    }
    corpus.write_text(corpus.read_text().upper())
    with pytest.raises(UsageError, match="line 1"):
        load(corpus, cache)
    assert len({*digests, load(corpus, cache, field="TEXT").digest}) == 4


def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "cache"
    first, second = load(corpus, cache), load(corpus, cache, end_token=0)
    for age, folder in enumerate(sorted(cache.glob("*/"), key=lambda path: (path / "meta.json").stat().st_mtime_ns)):
        os.utime(folder, (age, age))
    load(corpus, cache)  # in use again
    size = sum(path.stat().st_size for path in cache.glob("*/*"))
    monkeypatch.setattr(token_files, "CACHE_BYTES_MAX", size)
    third = load(corpus, cache, end_token=1)
    assert len(list(cache.glob("*/"))) == 2
    assert same(second, load(corpus, end_token=0))  # a process that has it mapped keeps it
    told = list[str]()
    assert same(first, load(corpus, cache, made(told)))
    assert same(third, load(corpus, cache, made(told), end_token=1))
    assert "making tokens of the text" not in told


def test_a_damaged_file_is_made_again(corpus: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    data = load(corpus)
    load(corpus, cache)
    train = next(cache.glob("*/train"))
    train.write_bytes(train.read_bytes()[:-1])
    assert same(data, load(corpus, cache))


@pytest.mark.parametrize("calls", [3, 50, 500])
def test_a_crash_loses_only_what_was_not_saved(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
):
    monkeypatch.setattr(token_writer, "SAVED_BYTES", 1000)
    whole = load(corpus)
    with pytest.raises(Crashed):
        load(corpus, tmp_path / "cache", crashing(calls))
    (making,) = (tmp_path / "cache").glob("*.making")
    saved = json.loads((making / "progress.json").read_text())["blocks"] if calls > 30 else 0
    assert (saved > 0) == (calls > 30)
    told = list[str]()
    assert same(whole, load(corpus, tmp_path / "cache", made(told)))
    assert told.count("making tokens of the text") == len(LINES) - saved
    assert not list((tmp_path / "cache").glob("*.making"))


def cut_short(monkeypatch: pytest.MonkeyPatch, corpus: Path, cache: Path) -> tuple[Path, int]:
    """Load until a crash; returns the unfinished folder, and how many blocks its record counts."""
    monkeypatch.setattr(token_writer, "SAVED_BYTES", 1000)
    with pytest.raises(Crashed):
        load(corpus, cache, crashing(500))
    (making,) = cache.glob("*.making")
    return making, int(json.loads((making / "progress.json").read_text())["blocks"])


def test_a_power_failure_loses_only_what_was_not_saved(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, flush, synced = load(corpus), os.fsync, dict[int, int]()

    def fsync(descriptor: int) -> None:
        flush(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    making, saved = cut_short(monkeypatch, corpus, tmp_path / "cache")
    for name in ("train", "heldout", "digests"):  # pages that no process had flushed are gone
        os.truncate(making / name, synced.get((making / name).stat().st_ino, 0))
    told = list[str]()
    assert same(whole, load(corpus, tmp_path / "cache", made(told)))
    assert told.count("making tokens of the text") == len(LINES) - saved < len(LINES)


@pytest.mark.parametrize("name", ["train", "heldout", "digests"])
def test_tokens_begin_anew_where_a_file_is_shorter_than_its_record(
    name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(corpus)
    making, _ = cut_short(monkeypatch, corpus, tmp_path / "cache")
    os.truncate(making / name, (making / name).stat().st_size // 2)
    told = list[str]()
    assert same(whole, load(corpus, tmp_path / "cache", made(told)))
    assert told.count("making tokens of the text") == len(LINES)


def test_threads_change_nothing(corpus: Path):
    assert same(load(corpus), load(corpus, loading=Loading(threads=4)))


def test_tokens_have_the_smallest_type_that_holds_them(corpus: Path, tokenizer: Path, tmp_path: Path):
    assert load(corpus).train.dtype == torch.uint8
    spec = DataSpec(source="jsonl", context_tokens=8, evaluation_tokens=256)
    assert load_tokens(spec, 300, LocalFiles(str(corpus), str(tokenizer))).train.dtype == torch.uint8
    tokens = np.random.default_rng(1).integers(0, 300, 30_000)
    np.save(tmp_path / "a.npy", tokens)
    ready = spec.model_copy(update={"source": "tokens"})
    for vocabulary, kind in ((300, torch.uint16), (70_000, torch.int32)):
        found = load_tokens(ready, vocabulary, LocalFiles(str(tmp_path / "a.npy")))
        assert found.train.dtype == kind
        assert sorted([*found.train.tolist(), *found.heldout.tolist()]) == sorted(tokens.tolist())


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (2**32 + 5, np.int64, r"number 1000: 4294967301 is no token .* 31 bits"),
        (2**31, np.uint32, r"number 1000: 2147483648 is no token .* 31 bits"),
        (70_000, np.uint32, r"number 1000: 70000 is no token .* model.vocabulary = 70001"),
        (-1, np.int8, r"number 1000: -1 is no token"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_token_files_do_not_wrap(tmp_path: Path, value: int, kind: type, words: str, suffix: str):
    tokens = np.zeros(2000, dtype=kind)
    tokens[1000] = value
    path = tmp_path / f"a.{suffix}"
    np.save(path, tokens) if suffix == "npy" else save_file({"tokens": tokens}, path)
    with pytest.raises(UsageError, match=words):
        load(path, source="tokens")


def test_tensors_that_are_no_integers_are_said_to_be_none(tmp_path: Path):
    save_torch({"tokens": torch.zeros(2000, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="no vector of integers, but BF16"):
        load(tmp_path / "a.safetensors", source="tokens")
    save_torch({"other": torch.zeros(2000, dtype=torch.int32)}, tmp_path / "b.safetensors")
    with pytest.raises(UsageError, match="no tensor that is called tokens"):
        load(tmp_path / "b.safetensors", source="tokens")


def test_uint32_files_are_read(tmp_path: Path):
    tokens = np.arange(20_000, dtype=np.uint32)
    np.save(tmp_path / "a.npy", tokens)
    save_file({"tokens": tokens}, tmp_path / "b.safetensors")
    one, other = (load(tmp_path / name, source="tokens") for name in ("a.npy", "b.safetensors"))
    assert one.digest == other.digest
    assert sorted([*one.train.tolist(), *one.heldout.tolist()]) == tokens.tolist()


def test_a_cache_that_cannot_be_written_is_one_sentence(corpus: Path, tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot be kept in .*cache"):
        load(corpus, tmp_path / "cache")
