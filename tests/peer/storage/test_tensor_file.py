"""Writing and mapping ordinary safetensors files without a second copy in memory."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from peer.storage import tensor_file as module
from peer.storage.tensor_file import map_tensors, write_tensors
from tests.disk import file_size_limit

SAMPLE = {
    "anchor": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7,
    "rounded": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "half": torch.tensor([0.5], dtype=torch.float16),
    "state": torch.arange(251, dtype=torch.uint8),
    "step": torch.tensor(3, dtype=torch.int64),
    "rate": torch.tensor(0.1, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_a_written_file_is_read_by_the_library_too(tmp_path):
    path = tmp_path / "file"
    digest = write_tensors(path, SAMPLE, {"format": "pt"})
    assert_same(map_tensors(path), SAMPLE)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("state").tolist() == list(range(251))


@given(st.lists(st.tuples(st.sampled_from([torch.float32, torch.uint8, torch.bfloat16]), st.integers(0, 70))))
def test_any_tensors_come_back_aligned(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("tensors") / "file"
    tensors = {f"tensor {at}": torch.arange(size).to(kind) for at, (kind, size) in enumerate(drawn)}
    write_tensors(path, tensors)
    found = map_tensors(path)
    assert_same(found, tensors)
    assert all(one.data_ptr() % one.element_size() == 0 for one in found.values())


def test_large_strided_shared_and_trained_tensors_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 40)
    base = torch.arange(120, dtype=torch.float32).reshape(30, 4)
    tensors = {"a": base, "tied": base, "view": base[1], "transposed": base.T, "trained": torch.nn.Parameter(base[0])}
    write_tensors(tmp_path / "file", tensors)
    assert_same(map_tensors(tmp_path / "file"), {name: one.detach() for name, one in tensors.items()})


def test_mapped_tensors_change_no_file(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, SAMPLE)
    content = path.read_bytes()
    map_tensors(path)["anchor"].zero_()
    assert path.read_bytes() == content


def test_a_full_disk_is_an_error(tmp_path):
    with file_size_limit(300), pytest.raises(OSError, match="File too large"):
        write_tensors(tmp_path / "file", SAMPLE)
