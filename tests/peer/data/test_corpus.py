"""Users' own data: every format gives the same windows everywhere, and each fault gives one sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.data import marks
from peer.data.token_files import TokenData
from peer.data.token_writer import is_heldout_digest
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.learner import make_learner
from peer.machine.local_files import LocalFiles
from peer.model.description import describe

SPEC = DataSpec(source="text", context_tokens=8, sequences_per_step=4, evaluation_tokens=256)
LINES = [f"the line of number {number} says {number * number}" for number in range(400)]


def spec_of(**changes: Any) -> DataSpec:
    return DataSpec.model_validate(SPEC.model_dump() | changes)


def load(pattern: Path | str, spec: DataSpec = SPEC, tokenizer: str = "", vocabulary: int = 256) -> TokenData:
    return load_tokens(spec, vocabulary, LocalFiles(str(pattern), tokenizer))


def write_json_lines(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": line, "id": number}) + "\n" for number, line in enumerate(LINES)))
    return path


def write_parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": LINES, "id": list(range(len(LINES)))}), folder / "rows.parquet")
    return folder / "rows.parquet"


def write_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for line in LINES for word in line.split()})
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_text_files_are_read_whole_and_dealt_out_by_hash(tmp_path: Path):
    text = "\n".join(LINES)
    (tmp_path / "a.txt").write_text(text[:5000])
    (tmp_path / "b.txt").write_text(text[5000:])
    data = load(f"{tmp_path}/*.txt")
    assert len(data.train) + len(data.heldout) == len(text)
    assert 0.005 < len(data.heldout) / len(text) < 0.15
    assert data.digest == load(f"{tmp_path}/b.txt, {tmp_path}/a.txt").digest
    (tmp_path / "b.txt").write_text(text[5000:].upper())
    assert data.digest != load(f"{tmp_path}/*.txt").digest


@pytest.mark.parametrize("write", [write_json_lines, write_parquet])
def test_rows_are_documents(tmp_path: Path, write: Callable[[Path], Path]):
    path = write(tmp_path)
    data = load(path, spec_of(source=path.suffix[1:]))
    for side, kept in ((data.train, False), (data.heldout, True)):
        expected = "".join(
            f"{line}\n" for line in LINES if is_heldout_digest(hashlib.sha256(f"{line}\n".encode()).digest()) is kept
        )
        assert bytes(side.numpy()).decode() == expected


def test_ready_tokens_come_from_both_formats(tmp_path: Path):
    tokens = np.random.default_rng(1).integers(0, 5000, 20_000).astype(np.uint16)
    np.save(tmp_path / "shard.npy", tokens)
    save_file({"tokens": tokens.astype(np.int32)}, tmp_path / "shard.safetensors")
    spec = spec_of(source="tokens")
    first, second = (
        load(tmp_path / "shard.npy", spec, vocabulary=5000),
        load(tmp_path / "shard.safetensors", spec, vocabulary=5000),
    )
    assert first.digest == second.digest
    assert sorted([*first.train.tolist(), *first.heldout.tolist()]) == sorted(tokens.tolist())
    batch = TrainingWindows(first.train, spec, b"run", "peer").batch(3)
    assert batch.shape == (4, 9)
    assert batch.dtype == torch.int64


def test_no_more_than_is_asked_for_is_read(tmp_path: Path):
    data = load(write_json_lines(tmp_path), spec_of(source="jsonl", tokens_max=4000))
    assert len(data.train) + len(data.heldout) == 4000


def test_closed_borders_are_marked_where_a_document_begins(tmp_path: Path):
    data = load(write_json_lines(tmp_path), spec_of(source="jsonl", end_token=0, borders="closed"))
    whole = marks.numbers(torch.cat((data.train, data.heldout)))
    assert sorted(bytes(whole.tolist()).decode().split("\0")[:-1]) == sorted(LINES)
    tokens = data.train.long()
    begins = (tokens & marks.BEGINS) != 0
    assert torch.equal(begins, (tokens & marks.READ) != 0)  # nothing before it says how a document begins
    ended = marks.numbers(tokens) == 0
    assert bool(begins[0])
    assert torch.equal(begins[1:], ended[:-1])
    assert int(begins.sum()) > 10


def test_tokens_that_are_ready_have_no_borders(tmp_path: Path):
    data = spec_of(source="tokens", path=str(tmp_path / "a.npy"), borders="closed")
    with pytest.raises(UsageError, match="no longer show"):
        describe(RunConfig(data=data))


def test_a_run_with_closed_borders_learns_to_the_end(tmp_path: Path):
    """A family that cannot keep documents apart is refused at the start."""
    data = spec_of(source="jsonl", path=str(write_json_lines(tmp_path)), end_token=0, borders="closed")
    small = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 24}
    with pytest.raises(UsageError, match=r"earlier documents|cannot keep documents"):
        describe(RunConfig(model=ModelSpec.model_validate(small | {"family": "mamba", "weights": "given"}), data=data))
    described = describe(RunConfig(model=ModelSpec.model_validate(small | {"family": "gpt2"}), data=data))
    config = described.config.model_copy(update={"inner": InnerSpec(optimizer="adamw", learning_rate=1e-2)})
    read = load_tokens(config.data, 256, described.files)
    learner = make_learner(config, TrainingWindows(read.train, config.data, b"run", "peer"))
    losses = [learner.step().loss for _ in range(12)]
    assert losses[-1] < losses[0]


def test_a_tokenizer_is_held_to_the_manifest(tmp_path: Path):
    """The host's paths stay at the host. A peer brings its own files, and its tokenizer must be the run's."""
    corpus, tokenizer = write_json_lines(tmp_path), write_tokenizer(tmp_path)
    spec = spec_of(source="jsonl", path=str(corpus), tokenizer=str(tokenizer))
    with pytest.raises(UsageError, match=r"write model.vocabulary = \d+"):
        describe(RunConfig(data=spec))
    described = describe(RunConfig(data=spec, model=ModelSpec(vocabulary=1024)))
    fixed = described.config.data
    assert (fixed.path, fixed.tokenizer) == ("", "")
    assert described.files == LocalFiles(str(corpus), str(tokenizer))
    data = load_tokens(fixed, 1024, described.files)
    assert data.train.dtype == torch.uint16
    assert len(data.train) < len("".join(LINES)) / 4
    with pytest.raises(UsageError, match="--corpus"):
        load_tokens(fixed, 1024, LocalFiles(tokenizer=str(tokenizer)))
    with pytest.raises(UsageError, match="--tokenizer"):
        load_tokens(fixed, 1024, LocalFiles(corpus=str(corpus)))
    tokenizer.write_text(tokenizer.read_text().replace("?", "!"))
    with pytest.raises(UsageError, match="not the run's tokenizer"):
        load_tokens(fixed, 1024, described.files)


def test_a_manifest_opens_no_file(tmp_path: Path):
    corpus = write_json_lines(tmp_path)
    with pytest.raises(UsageError, match="--corpus"):
        load_tokens(spec_of(source="jsonl", path=str(corpus)))
    with pytest.raises(UsageError, match="no name of a data set"):
        load_tokens(spec_of(source="hub", path=str(tmp_path)))


def test_a_folder_is_not_taken_for_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is a folder so called"):
        load_tokens(spec_of(source="hub", path="some/data"))


def test_a_data_set_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """The sentence says what to do if the extra or the network is missing."""
    import huggingface_hub.constants as constants

    with suppress(ImportError):
        import datasets  # noqa: F401 - what it reads when it is first imported stays for all tests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"install it with|cannot be had from the Hugging Face Hub") as caught:
        load_tokens(spec_of(source="hub", path="nobody/nothing"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "spec", "words"),
    [
        ("a.txt", b"too little", {}, "bring more text"),
        ("a.txt", b"\xff\xfe" * 500, {}, "line 1: seems to be UTF-16"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', {"source": "jsonl"}, "line 2 of"),
        ("a.jsonl", b"[" * 100_000, {"source": "jsonl"}, "line 1 of"),
        ("a.parquet", b"nonsense", {"source": "parquet"}, "is no Parquet file"),
        ("a.npy", b"nonsense", {"source": "tokens"}, "holds no tokens"),
        ("a.safetensors", b"nonsense", {"source": "tokens"}, "holds no tokens"),
        ("b.txt", b"", {"source": "text"}, "there is no file"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, spec: dict[str, Any], words: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        load(tmp_path / (name if name != "b.txt" else "c.txt"), spec_of(**spec))
    assert "\n" not in str(caught.value)


def test_pickles_are_not_read(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="holds no tokens"):
        load(tmp_path / "a.npy", spec_of(source="tokens"))


def test_tokens_beyond_the_vocabulary_are_named(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.arange(20_000))
    with pytest.raises(UsageError, match=r"write model.vocabulary = 20000"):
        load(tmp_path / "a.npy", spec_of(source="tokens"), vocabulary=5000)
