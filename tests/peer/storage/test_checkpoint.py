from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from structlog.testing import capture_logs

from dht.errors import LocalError, UsageError
from dht.wire import PROTOCOL_MAJOR
from peer.storage import checkpoint as module
from peer.storage.checkpoint import Checkpoint, CheckpointHeader, VoteLog, load_latest, save_checkpoint
from tests.checkout import ROOT
from tests.disk import file_size_limit

torch.set_num_threads(1)

FIXTURES = ROOT / "tests" / "wire" / "v1" / "checkpoint"
RUN_ID = bytes(range(32))


def sample(step: int = 0) -> Checkpoint:
    """One tensor of every kind that a peer keeps."""
    return Checkpoint(
        RUN_ID,
        {
            "anchor.0": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7 + step,
            "model.weight": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "inner.state": torch.arange(256, dtype=torch.uint8),
            "inner.step": torch.tensor(step, dtype=torch.int64),
            "empty": torch.zeros(0, 4),
        },
        {"votes": b"\x00\xff" * 3, "counters": step.to_bytes(4, "big"), "nothing": b""},
    )


def assert_same(found: Checkpoint | None, expected: Checkpoint) -> None:
    assert found is not None
    assert found.run_id == expected.run_id
    assert dict(found.meta) == dict(expected.meta)
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def step_of(found: Checkpoint | None) -> int | None:
    return None if found is None else int(found.tensors["inner.step"])


def test_what_is_saved_is_loaded(tmp_path):
    path = save_checkpoint(tmp_path / "new" / "folder", sample(3))
    assert path.is_file()
    assert_same(load_latest(tmp_path / "new" / "folder"), sample(3))


def test_nothing_saved_is_none(tmp_path):
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path):
    paths = [save_checkpoint(tmp_path, sample(step)) for step in range(12)]
    assert sorted(tmp_path.iterdir()) == paths[-2:]
    assert step_of(load_latest(tmp_path)) == 11


def test_shared_strided_and_trained_tensors_are_saved(tmp_path):
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {"a": base, "tied": base, "view": base[1], "transposed": base.T, "trained": torch.nn.Parameter(base[0])}
    save_checkpoint(tmp_path, Checkpoint(RUN_ID, tensors))
    assert_same(load_latest(tmp_path), Checkpoint(RUN_ID, {name: t.detach() for name, t in tensors.items()}))


def test_loaded_tensors_are_our_own(tmp_path):
    path = save_checkpoint(tmp_path, sample(1))
    content = path.read_bytes()
    found = load_latest(tmp_path)
    found.tensors["anchor.0"].zero_()
    assert path.read_bytes() == content
    assert_same(load_latest(tmp_path), sample(1))


@settings(max_examples=25)
@given(st.data())
def test_a_torn_or_changed_file_is_passed_over(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(directory, sample(1))
    newest = save_checkpoint(directory, sample(2))
    content = newest.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        newest.write_bytes(content[:at])
    else:
        flipped = content[at] ^ data.draw(st.integers(1, 255))
        newest.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
    with capture_logs() as logs:
        assert_same(load_latest(directory), sample(1))
    assert [(entry["event"], entry["path"]) for entry in logs] == [("checkpoint_damaged", str(newest))]
    shutil.rmtree(directory)


def test_if_all_are_damaged_there_is_none(tmp_path):
    for step in range(2):
        save_checkpoint(tmp_path, sample(step)).write_bytes(b"")
    with capture_logs() as logs:
        assert load_latest(tmp_path) is None
    assert len(logs) == 2
    save_checkpoint(tmp_path, sample(7))
    assert step_of(load_latest(tmp_path)) == 7


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    (tmp_path / "checkpoint-1.safetensors").write_bytes(b"mine too")
    for step in range(3):
        save_checkpoint(tmp_path, sample(step))
    assert step_of(load_latest(tmp_path)) == 2
    assert (tmp_path / "checkpoint-1.safetensors").read_bytes() == b"mine too"
    assert len(list(tmp_path.iterdir())) == 4


def test_what_an_interrupted_save_left_behind_is_no_obstacle(tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("checkpoint", ".tmpNPbaw8"):  # the second as safetensors leaves one
        (unfinished / name).write_bytes(b"x" * 100_000)
    save_checkpoint(tmp_path, sample(1))
    assert [path.name[:10] for path in tmp_path.iterdir()] == ["checkpoint"]
    assert_same(load_latest(tmp_path), sample(1))


def test_a_full_disk_is_said_in_words_and_loses_nothing(tmp_path):
    kept = [save_checkpoint(tmp_path, sample(step)) for step in range(2)]
    with file_size_limit(300), pytest.raises(LocalError, match=r"no checkpoint can be written to .*File too large"):
        save_checkpoint(tmp_path, sample(2))
    assert sorted(tmp_path.iterdir()) == kept
    assert_same(load_latest(tmp_path), sample(1))


def test_a_directory_that_cannot_be_is_said_in_words(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="no checkpoint can be written to"):
        save_checkpoint(tmp_path / "file" / "folder", sample())


def test_meta_is_bounded(tmp_path):
    too_much = Checkpoint(RUN_ID, {}, {"a": bytes(module.META_BYTES_MAX), "b": b"x"})
    with pytest.raises(ValueError, match="meta entries"):
        save_checkpoint(tmp_path, too_much)
    just_fits = Checkpoint(RUN_ID, {}, {"a": bytes(module.META_BYTES_MAX)})
    save_checkpoint(tmp_path, just_fits)
    assert_same(load_latest(tmp_path), just_fits)


def resave_with(tmp_path, monkeypatch, **changes):
    """A checkpoint as another version of Muster would have written it."""
    real = CheckpointHeader.to_wire
    monkeypatch.setattr(CheckpointHeader, "to_wire", lambda header: real(header.model_copy(update=changes)))
    return save_checkpoint(tmp_path, sample(5))


def test_another_major_version_is_the_users_business(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, sample(1))
    resave_with(tmp_path, monkeypatch, protocol_major=PROTOCOL_MAJOR + 1)
    with pytest.raises(UsageError, match=f"written under protocol {PROTOCOL_MAJOR + 1}"):
        load_latest(tmp_path)


def test_a_later_minor_version_is_read(tmp_path, monkeypatch):
    resave_with(tmp_path, monkeypatch, protocol_minor=99)
    assert step_of(load_latest(tmp_path)) == 5


def test_a_checkpoint_is_an_ordinary_safetensors_file(tmp_path):
    with safe_open(save_checkpoint(tmp_path, sample(4)), framework="pt") as file:
        assert torch.equal(file.get_tensor("anchor.0"), sample(4).tensors["anchor.0"])


def test_the_golden_fixture_loads_forever():
    assert_same(load_latest(FIXTURES), sample(42))
    assert VoteLog(FIXTURES / "votes").read() == [b"first vote", b"second vote"]


def test_importing_the_module_does_not_import_torch():
    script = "import sys; import peer.storage.checkpoint; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


class TestVoteLog:
    def test_votes_come_back_in_order_also_from_another_process(self, tmp_path):
        log = VoteLog(tmp_path / "new" / "votes")
        assert log.read() == []
        for vote in (b"one", b"two"):
            log.append(vote)
        later = VoteLog(tmp_path / "new" / "votes")
        later.append(b"three")
        assert later.read() == VoteLog(tmp_path / "new" / "votes").read() == [b"one", b"two", b"three"]

    @settings(max_examples=25)
    @given(
        st.lists(st.binary(min_size=1, max_size=40).map(lambda vote: b"v" + vote), min_size=1, max_size=5), st.data()
    )
    def test_a_torn_tail_costs_only_itself(self, tmp_path_factory, votes, data):
        path = tmp_path_factory.mktemp("votes") / "votes"
        sizes = [0]
        for vote in votes:
            VoteLog(path).append(vote)
            sizes.append(path.stat().st_size)
        cut = data.draw(st.integers(0, sizes[-1]))
        path.write_bytes(path.read_bytes()[:cut] + data.draw(st.sampled_from([b"", bytes(20), b"\xff" * 9])))
        whole = votes[: sum(size <= cut for size in sizes[1:])]
        log = VoteLog(path)
        assert log.read() == whole
        log.append(b"after the crash")
        assert VoteLog(path).read() == [*whole, b"after the crash"]

    def test_zeros_behind_the_last_record_are_no_votes(self, tmp_path):
        VoteLog(tmp_path / "votes").append(b"one")
        with (tmp_path / "votes").open("ab") as file:
            file.write(bytes(64))
        VoteLog(tmp_path / "votes").append(b"two")
        assert VoteLog(tmp_path / "votes").read() == [b"one", b"two"]

    def test_erased_flash_behind_a_torn_head_is_no_vote(self, tmp_path):
        path = tmp_path / "votes"
        VoteLog(path).append(b"four")
        path.write_bytes(path.read_bytes()[:4] + b"\xff" * 9)
        assert VoteLog(path).read() == []

    def test_what_lies_behind_a_torn_record_is_never_read(self, tmp_path):
        """A torn record may hold bytes that look like a record; they must not come to life."""
        path = tmp_path / "votes"
        VoteLog(path).append(b"forged")
        forged = path.read_bytes()
        VoteLog(path).append(b"x" * len(b"short") + forged * 3)
        path.write_bytes(path.read_bytes()[:-1])
        VoteLog(path).append(b"short")
        assert VoteLog(path).read() == [b"forged", b"short"]

    @settings(max_examples=25)
    @given(st.data())
    def test_a_changed_byte_never_changes_a_vote(self, tmp_path_factory, data):
        path = tmp_path_factory.mktemp("votes") / "votes"
        votes = [b"one", b"second", b"third vote"]
        for vote in votes:
            VoteLog(path).append(vote)
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        found = VoteLog(path).read()
        assert len(found) < 3
        assert found == votes[: len(found)]

    def test_replace_keeps_what_still_matters(self, tmp_path):
        log = VoteLog(tmp_path / "votes")
        for vote in (b"one", b"two", b"three"):
            log.append(vote)
        log.replace([b"three"])
        log.append(b"four")
        assert VoteLog(tmp_path / "votes").read() == [b"three", b"four"]
        assert [path.name for path in tmp_path.iterdir()] == ["votes"]

    def test_bounds(self, tmp_path, monkeypatch):
        log = VoteLog(tmp_path / "votes")
        for vote in (b"", bytes(module.VOTE_BYTES_MAX + 1)):
            with pytest.raises(ValueError, match="a vote has"):
                log.append(vote)
        monkeypatch.setattr(module, "VOTE_LOG_BYTES_MAX", 20)
        log.append(b"a vote")
        log.append(b"b vote")
        assert VoteLog(tmp_path / "votes").read() == [b"a vote", b"b vote"], "a full log still takes votes"

    def test_a_full_log_keeps_the_newest(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "RECORDS_KEPT", 3)
        monkeypatch.setattr(module, "VOTE_LOG_BYTES_MAX", 200)
        log, votes = VoteLog(tmp_path / "votes"), [b"vote %d" % number for number in range(100)]
        for count, vote in enumerate(votes, start=1):
            log.append(vote)
            assert (tmp_path / "votes").stat().st_size <= 200
            kept = VoteLog(tmp_path / "votes").read()
            assert len(kept) >= min(count, 4)
            assert kept == votes[count - len(kept) : count]

    def test_a_full_disk_loses_nothing(self, tmp_path):
        log = VoteLog(tmp_path / "votes")
        log.append(b"one")
        with file_size_limit(20):
            with pytest.raises(LocalError, match="File too large"):
                log.append(b"x" * 100)
            with pytest.raises(LocalError, match="File too large"):
                log.replace([b"x" * 100])
        assert VoteLog(tmp_path / "votes").read() == [b"one"]
        log.append(b"two")
        assert VoteLog(tmp_path / "votes").read() == [b"one", b"two"]

    def test_an_unreadable_log_is_said_in_words(self, tmp_path):
        with pytest.raises(LocalError, match="cannot be read"):
            VoteLog(tmp_path).append(b"vote")


def test_a_killed_process_leaves_a_whole_checkpoint_and_every_promised_vote():
    """SIGKILL at eight random moments, in processes that import nothing else; `make bench` makes it 200."""
    done = subprocess.run(
        [sys.executable, "tests/bench/bench_kills.py", "8"], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "8 kills, 8 resumes" in done.stdout
