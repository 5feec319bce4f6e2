"""The generations that a peer saves: each is complete or absent, whatever happens, and nothing is stored twice."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dht.errors import LocalError, UsageError
from dht.wire import PROTOCOL_MAJOR
from peer.numerics.outer_optimizer import OuterState
from peer.storage.generations import Generation, Generations, Held, Index
from peer.storage.state_tensors import state_of
from peer.storage.tensor_file import map_tensors, write_tensors
from tests.checkout import ROOT
from tests.disk import CrashError, failure_at, file_size_limit
from tests.extra import extra

torch.set_num_threads(1)
RUN_ID = bytes(range(32))


def held(*versions: int) -> list[Held]:
    """Return one held fragment for each of these versions."""
    states = [OuterState.begin(torch.full((5,), 10.0 * at + one), 0.0) for at, one in enumerate(versions)]
    return [Held(one, bytes([one]) * 32, state) for one, state in zip(versions, states, strict=True)]


def learner_of(folder: Path, step: int) -> Path:
    """Write a file as the learner does, and return its path."""
    (folder / "learner-new").mkdir(parents=True, exist_ok=True)
    path = folder / "learner-new" / "learner.safetensors"
    write_tensors(path, {"step": torch.tensor(step)})
    return path


def save(folder: Path, *versions: int, step: int | None = None) -> None:
    learner = None if step is None else learner_of(folder, step)
    generations = Generations(folder, RUN_ID)
    generations.commit(generations.stage(held(*versions)), learner)


def read(folder: Path) -> tuple[tuple[int, ...], int | None] | None:
    """Return the versions and the learner's step of the newest generation, after checking its states; or None."""
    generations = Generations(folder, RUN_ID)
    newest = generations.newest()
    if newest is None:
        return None
    index = newest.index
    for at, one in enumerate(index.fragments):
        if one.version:
            state = state_of(map_tensors(generations.path(one.file)), keeps_momentum=False)
            assert torch.equal(state.anchor, torch.full((5,), 10.0 * at + one.version))
            assert one.head == bytes([one.version]) * 32
    step = int(map_tensors(generations.path(index.learner))["step"]) if index.learner else None
    return tuple(one.version for one in index.fragments), step


def files(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(kind))


def test_a_save_is_found(tmp_path):
    assert read(tmp_path / "missing") is None
    save(tmp_path, 1, 2, 0, step=7)
    assert read(tmp_path) == ((1, 2, 0), 7)
    assert len(files(tmp_path, "anchor")) == 2, "version 0 is drawn"


def test_two_generations_share_what_did_not_change(tmp_path):
    for version in range(1, 6):
        save(tmp_path, version, 9, step=version)
        assert read(tmp_path) == ((version, 9), version)
    assert len(files(tmp_path, "generation")) == 2
    assert len(files(tmp_path, "anchor-0000")) == 2
    assert len(files(tmp_path, "anchor-0001")) == 1
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir() if path.is_file()) == (
        ["anchor"] * 3 + ["generation"] * 2 + ["learner"] * 2
    )


def test_unchanged_fragments_are_not_written_again(tmp_path, monkeypatch):
    generations, written = Generations(tmp_path, RUN_ID), list[str]()
    generations.commit(generations.stage(held(1, 2)), None)
    monkeypatch.setattr(
        "peer.storage.generations.write_tensors",
        lambda path, tensors: written.append(path.name) or write_tensors(path, tensors),
    )
    generations.commit(generations.stage(held(1, 3)), None)
    assert len(written) == 1
    assert read(tmp_path) == ((1, 3), None)


def test_only_the_newest_is_there_while_a_part_of_the_next_is_written(tmp_path):
    for version in range(1, 4):
        save(tmp_path, version, step=version)
    Generations(tmp_path, RUN_ID).keep_newest()
    assert {kind: len(files(tmp_path, kind)) for kind in ("generation", "anchor", "learner-")} == (
        {"generation": 1, "anchor": 1, "learner-": 2}
    ), "and the folder that the learner writes to"
    assert read(tmp_path) == ((3,), 3)
    save(tmp_path, 4, step=4)
    assert read(tmp_path) == ((4,), 4)
    assert len(files(tmp_path, "generation")) == 2
    Generations(tmp_path / "missing", RUN_ID).keep_newest()


def renew(folder: Path, *versions: int, only: Sequence[int] = (), step: int | None = None) -> None:
    """Save only these fragments, or a learner that holds these versions."""
    generations = Generations(folder, RUN_ID)
    staged, learner = generations.stage(held(*versions), only), None if step is None else learner_of(folder, step)
    heads = None if step is None else [one.head for one in held(*versions)]
    generations.commit(staged, learner, learner is None, heads)


def test_a_part_is_renewed_and_that_alone_lies_there_twice(tmp_path):
    save(tmp_path, 1, 1, 1, step=1)
    for version in range(2, 5):
        for only in ([0, 2], [1]):
            renew(tmp_path, version, version, version, only=only)
            assert len(files(tmp_path, "anchor")) == 3 + len(only)
            assert len(files(tmp_path, "learner-")) == 2, "one, and the folder that the learner writes to"
        assert read(tmp_path) == ((version,) * 3, version - 1)
        renew(tmp_path, version, version, version, step=version)
        assert read(tmp_path) == ((version,) * 3, version)
        assert len(files(tmp_path, "anchor")) == 3
        assert len(files(tmp_path, "learner-")) == 3


def test_where_nothing_was_saved_all_is(tmp_path):
    renew(tmp_path, 3, 4, only=[1])
    assert read(tmp_path) == ((3, 4), None)


def test_it_is_known_of_which_versions_the_learner_is(tmp_path):
    save(tmp_path, 1, 1, step=1)
    index = Generations(tmp_path, RUN_ID).newest().index
    assert (index.heads_of_learner, index.learner_behind) == (index.heads, False)
    renew(tmp_path, 2, 1, only=[0])
    behind = Generations(tmp_path, RUN_ID).newest().index
    assert (behind.heads_of_learner, behind.learner_behind) == (index.heads, True)
    renew(tmp_path, 2, 3, step=3)
    ahead = Generations(tmp_path, RUN_ID).newest().index
    assert [one[:1] for one in ahead.heads] == [b"\2", b"\1"]
    assert [one[:1] for one in ahead.heads_of_learner] == [b"\2", b"\3"]
    assert ahead.learner_behind, "for an earlier minor version, which loads every anchor then"


@pytest.mark.parametrize("behind", [True, False])
def test_an_earlier_minor_version_does_not_say_it(tmp_path, behind):
    save(tmp_path, 1, 1, step=1)
    publish(tmp_path, learner_heads=(), learner_behind=behind)
    index = Generations(tmp_path, RUN_ID).newest().index
    assert index.heads_of_learner == (() if behind else index.heads)


def test_another_branch_with_the_same_version_is_another_state(tmp_path):
    generations = Generations(tmp_path, RUN_ID)
    generations.commit(generations.stage(held(1)), None)
    (one,) = held(1)
    other = Held(1, b"other" + bytes(27), OuterState(one.state.anchor + 1, one.state.momentum))
    generations.commit(generations.stage([other]), None)
    (found,) = generations.newest().index.fragments
    assert found.head == other.head
    assert torch.equal(map_tensors(generations.path(found.file))["anchor"], other.state.anchor)


def test_a_learner_that_could_not_save_keeps_what_it_had_saved(tmp_path):
    save(tmp_path, 1, step=3)
    generations = Generations(tmp_path, RUN_ID)
    generations.commit(generations.stage(held(2)), None, learner_behind=True)
    assert read(tmp_path) == ((2,), 3)
    assert generations.newest().index.learner_behind
    generations.commit(generations.stage(held(3)), None)
    assert read(tmp_path) == ((3,), None)


@settings(max_examples=40)
@given(st.data())
def test_a_torn_or_changed_file_is_passed_over(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("generations")
    save(folder, 1, 5, step=1)
    before = set(folder.iterdir())
    save(folder, 2, 5, step=2)
    changed = data.draw(st.sampled_from(sorted(set(folder.iterdir()) - before)))
    content = changed.read_bytes()
    at, torn = data.draw(st.integers(0, len(content) - 1)), data.draw(st.booleans())
    flipped = content[at] ^ data.draw(st.integers(1, 255))
    changed.write_bytes(content[:at] if torn else content[:at] + bytes([flipped]) + content[at + 1 :])
    with capture_logs() as logs:
        assert read(folder) == ((1, 5), 1)
    assert [entry["event"] for entry in logs] == ["checkpoint_damaged"]
    save(folder, 3, 6, step=3)
    assert read(folder) == ((3, 6), 3)
    shutil.rmtree(folder)


def test_states_are_found_beside_a_damaged_learner_if_there_is_no_other(tmp_path):
    for version in (1, 2):
        save(tmp_path, version, step=version)
    (newest,) = [Generations(tmp_path, RUN_ID).newest().index.learner]
    (tmp_path / newest).write_bytes(b"")
    assert read(tmp_path) == ((1,), 1)
    renew(tmp_path, 3, only=[0])
    for path in tmp_path.glob("learner-*.safetensors"):
        path.write_bytes(b"")
    with capture_logs() as logs:
        assert read(tmp_path) == ((3,), None)
    assert [entry["event"] for entry in logs] == ["checkpoint_damaged"] * 2
    save(tmp_path, 4, step=4)
    assert read(tmp_path) == ((4,), 4)


@settings(max_examples=40)
@given(st.data())
def test_a_torn_part_is_passed_over_for_the_one_before_it(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("generations")
    save(folder, 1, 1, step=1)
    renew(folder, 2, 2, only=[0])
    only, step = data.draw(st.sampled_from([([0], None), ([1], None), ([], 2)]))
    before = set(folder.iterdir())
    renew(folder, 3, 3, only=only, step=step)
    changed = data.draw(st.sampled_from(sorted(path for path in set(folder.iterdir()) - before if path.is_file())))
    content = changed.read_bytes()
    changed.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with capture_logs() as logs:
        assert read(folder) == ((2, 1), 1)
    assert [entry["event"] for entry in logs] == ["checkpoint_damaged"]
    shutil.rmtree(folder)


def saving_meanwhile(monkeypatch: pytest.MonkeyPatch, save_others: Callable[[], None]) -> None:
    """Have others save while a file is read for the first time."""
    check, todo = Generations._check, [save_others]

    def slowly(self: Generations, name: str) -> None:
        while todo:
            todo.pop()()
        check(self, name)

    monkeypatch.setattr(Generations, "_check", slowly)


def test_a_save_made_while_an_older_one_is_read_stays_the_newest(tmp_path, monkeypatch):
    generations = Generations(tmp_path, RUN_ID)
    generations.commit(generations.stage(held(1)), learner_of(tmp_path, 1))
    saving_meanwhile(monkeypatch, lambda: generations.commit(generations.stage(held(2)), None, True))
    assert generations.newest() == generations.last
    generations.keep_newest()
    assert read(tmp_path) == ((2,), 1)


def test_a_reader_finds_the_save_that_another_process_makes_meanwhile(tmp_path, monkeypatch):
    save(tmp_path, 1, step=1)

    def save_others() -> None:
        for version in (2, 3):  # the second removes what is read
            save(tmp_path, version, step=version)

    saving_meanwhile(monkeypatch, save_others)
    assert read(tmp_path) == ((3,), 3)


def test_if_all_are_damaged_there_is_none(tmp_path):
    for version in (1, 2):
        save(tmp_path, version)
    for name in files(tmp_path, "anchor"):
        (tmp_path / name).unlink()
    with capture_logs() as logs:
        assert read(tmp_path) is None
    assert len(logs) == 2
    save(tmp_path, 7)
    assert read(tmp_path) == ((7,), None)


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    save(tmp_path, 1)
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize("steps", range(14))
def test_a_crash_at_any_moment_leaves_one_or_the_other(tmp_path, steps):
    save(tmp_path, 1, 1, step=1)
    save(tmp_path, 2, 1, step=2)
    learner = learner_of(tmp_path, 3)
    generations = Generations(tmp_path, RUN_ID)
    with failure_at(steps, CrashError()):
        try:
            generations.commit(generations.stage(held(3, 2)), learner)
            ended = True
        except CrashError:
            ended = False
    found = read(tmp_path)
    assert found == ((3, 2), 3) or (found == ((2, 1), 2) and not ended)
    save(tmp_path, 4, 2, step=4)
    assert read(tmp_path) == ((4, 2), 4)
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize("steps", range(11))
@pytest.mark.parametrize(("only", "step"), [([0], None), ([1], None), ([], 2)])
def test_a_crash_while_a_part_is_renewed_leaves_one_or_the_other(tmp_path, steps, only, step):
    save(tmp_path, 1, 1, step=1)
    renew(tmp_path, 2, 1, only=[0])
    with failure_at(steps, CrashError()):
        try:
            renew(tmp_path, 3, 3, only=only, step=step)
            ended = True
        except CrashError:
            ended = False
    after = tuple(3 if at in only else version for at, version in enumerate((2, 1))), step or 1
    found = read(tmp_path)
    assert found == after or (found == ((2, 1), 1) and not ended)
    renew(tmp_path, 4, 4, step=4)
    assert read(tmp_path) == (found[0], 4)


def test_a_full_disk_is_said_in_words_and_loses_nothing(tmp_path):
    for version in (1, 2):
        save(tmp_path, version, step=version)
    for limit in (0, 100, 200):
        learner, generations = learner_of(tmp_path, 3), Generations(tmp_path, RUN_ID)
        with (
            file_size_limit(limit),
            pytest.raises(LocalError, match=r"no checkpoint can be written to .*File too large"),
        ):
            generations.commit(generations.stage(held(3)), learner)
        assert read(tmp_path) == ((2,), 2)
    save(tmp_path, 3, step=3)
    assert read(tmp_path) == ((3,), 3)


def test_a_directory_that_cannot_be_is_said_in_words(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="no checkpoint can be written to"):
        save(tmp_path / "file" / "folder", 1)


def publish(folder: Path, **changes: object) -> None:
    """Write a generation as another version of Muster, or another run, would have written it."""
    newest = Generations(folder, RUN_ID).newest()
    assert isinstance(newest, Generation)
    data = Index.to_wire(newest.index.model_copy(update=changes))
    (folder / f"generation-{9:012d}-{hashlib.sha256(data).hexdigest()}").write_bytes(data)


def test_another_major_version_is_the_users_business(tmp_path):
    save(tmp_path, 1)
    publish(tmp_path, protocol_major=PROTOCOL_MAJOR + 1)
    with pytest.raises(UsageError, match=f"written under protocol {PROTOCOL_MAJOR + 1}"):
        read(tmp_path)


def test_a_later_minor_version_is_read_and_another_run_is_not(tmp_path):
    save(tmp_path, 1)
    publish(tmp_path, protocol_minor=99)
    assert Generations(tmp_path, RUN_ID).newest().index.protocol_minor == 99
    with capture_logs() as logs:
        assert Generations(tmp_path, bytes(32)).newest() is None
    assert len(logs) == 2


def test_names_of_files_elsewhere_are_refused(tmp_path):
    save(tmp_path, 1)
    content = b"secret"
    outside = tmp_path.parent / f"learner-{hashlib.sha256(content).hexdigest()}.safetensors"
    outside.write_bytes(content)
    publish(tmp_path, learner=f"../{outside.name}")
    with capture_logs() as logs:
        assert read(tmp_path) == ((1,), None)
    assert len(logs) == 1
    outside.unlink()


def test_nothing_is_written_where_it_only_reads(tmp_path):
    save(tmp_path, 1, step=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    os.sync()
    read(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("kills", [8, *extra([20])])
def test_a_killed_process_leaves_a_whole_checkpoint_and_every_promised_vote(kills):
    """SIGKILL at random moments, in processes that import nothing else; `make bench` makes it 200 times."""
    done = subprocess.run(
        [sys.executable, "tests/bench/bench_kills.py", str(kills)], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert f"{kills} kills, {kills} resumes" in done.stdout
