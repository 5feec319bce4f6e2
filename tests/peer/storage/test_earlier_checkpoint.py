"""What versions before the generations wrote is read; `tests/wire/v1/checkpoint` and `tests/peer/runs` hold some."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from structlog.testing import capture_logs

from dht.errors import UsageError
from dht.wire import PROTOCOL_MAJOR
from peer.storage import earlier_checkpoint as module
from peer.storage.earlier_checkpoint import LEARNER_FILE, Checkpoint, is_earlier, load_latest
from peer.storage.record_log import VoteLog
from tests.checkout import ROOT

FIXTURES = ROOT / "tests" / "wire" / "v1" / "checkpoint"
RUN_ID = bytes(range(32))


def assert_is_sample(found: Checkpoint | None, step: int = 42) -> None:
    """One tensor of every kind that a peer kept."""
    assert found is not None
    assert found.run_id == RUN_ID
    assert dict(found.meta) == {"votes": b"\x00\xff" * 3, "counters": step.to_bytes(4, "big"), "nothing": b""}
    expected = {
        "anchor.0": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7 + step,
        "model.weight": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "inner.state": torch.arange(256, dtype=torch.uint8),
        "inner.step": torch.tensor(step, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
    }
    assert set(found.tensors) == set(expected)
    for name, tensor in expected.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def fixture_file() -> Path:
    (path,) = (path for path in FIXTURES.iterdir() if path.suffix == ".safetensors")
    return path


def test_the_golden_fixture_loads_forever():
    assert_is_sample(load_latest(FIXTURES))
    assert VoteLog(FIXTURES / "votes").read() == [b"first vote", b"second vote"]
    assert is_earlier(fixture_file())
    assert is_earlier(Path(LEARNER_FILE))
    assert not is_earlier(FIXTURES / "votes")


def test_nothing_saved_is_none(tmp_path):
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_loaded_tensors_are_our_own(tmp_path):
    path = Path(shutil.copy(fixture_file(), tmp_path))
    content = path.read_bytes()
    found = load_latest(tmp_path)
    found.tensors["anchor.0"].zero_()
    assert path.read_bytes() == content


@settings(max_examples=25)
@given(st.data())
def test_a_torn_or_changed_file_is_passed_over(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("checkpoints")
    older = Path(shutil.copy(fixture_file(), directory))
    content = older.read_bytes()
    newest = older.with_name(older.name.replace(older.name.split("-")[1], "9" * 12))
    at = data.draw(st.integers(0, len(content) - 1))
    torn = data.draw(st.booleans())
    flipped = content[at] ^ data.draw(st.integers(1, 255))
    newest.write_bytes(content[:at] if torn else content[:at] + bytes([flipped]) + content[at + 1 :])
    with capture_logs() as logs:
        assert_is_sample(load_latest(directory))
    assert [(entry["event"], entry["path"]) for entry in logs] == [("checkpoint_damaged", str(newest))]
    shutil.rmtree(directory)


def test_if_all_are_damaged_there_is_none(tmp_path):
    (tmp_path / fixture_file().name).write_bytes(b"")
    with capture_logs() as logs:
        assert load_latest(tmp_path) is None
    assert len(logs) == 1


def test_another_major_version_is_the_users_business(monkeypatch):
    monkeypatch.setattr(module, "PROTOCOL_MAJOR", PROTOCOL_MAJOR + 1)
    with pytest.raises(UsageError, match=f"written under protocol {PROTOCOL_MAJOR}, and this"):
        load_latest(FIXTURES)


def test_the_learners_part_is_unpacked(tmp_path):
    state = {"theta": torch.arange(5.0), "position": torch.tensor([1, 2])}
    found = Checkpoint(RUN_ID, {f"learner/{name}": value for name, value in state.items()}, {"learner_behind": b""})
    path = found.unpack_learner(tmp_path)
    assert path == tmp_path / LEARNER_FILE
    unpacked = load_file(path)
    assert set(unpacked) == set(state)
    assert all(torch.equal(unpacked[name], value) for name, value in state.items())
    assert found.learner_behind
    assert Checkpoint(RUN_ID, {}, {}).unpack_learner(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == [LEARNER_FILE]
