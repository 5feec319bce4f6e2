"""Run folders written by this and earlier minor versions (`tests/peer/runs/`): a peer can continue from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coordinator.chain.chain import Rules
from coordinator.run.compatibility import OURS
from coordinator.run.manifest import Manifest
from dht.identity import KeyVerifier
from peer.learner.learner import make_learner
from peer.storage.run_directory import Captured, RunDirectory, RunState, head_of, known_manifest
from tests.peer.rounds.test_driver import windows_of

RUNS = Path(__file__).parents[1] / "runs"
BYTES_MAX = 300_000  # of each folder in the repository
FOLDERS = sorted(path.parent for path in RUNS.glob("v*/expected.json"))


class Frozen:
    """A copy of one of the folders, with the results of its version."""

    def __init__(self, folder: Path, copy: Path) -> None:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        self.folder = copy
        self.expected: dict[str, Any] = json.loads((copy / "expected.json").read_text())
        manifest = known_manifest(copy, self.run_id)
        assert manifest is not None
        self.manifest: Manifest = manifest
        self.rules = Rules.of(manifest, KeyVerifier())

    @property
    def run_id(self) -> bytes:
        return bytes.fromhex(self.expected["run_id"])

    def load(self) -> RunState:
        return RunDirectory(self.folder, self.run_id).load(self.manifest, self.rules)


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Frozen:
    torch.set_num_threads(1)
    return Frozen(request.param, tmp_path)


def test_there_is_a_run_of_this_version_and_all_are_small() -> None:
    """The next minor version needs the run of this one; `python -m tests.peer.runs.make_run` writes it."""
    assert RUNS / f"v{OURS}" in FOLDERS
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < BYTES_MAX


def test_certificates_prove_the_states_that_were_saved(frozen: Frozen) -> None:
    held = frozen.load()
    assert list(held.held) == frozen.expected["versions"]
    for chain, state in zip(held.chains, frozen.expected["states"], strict=True):
        assert chain.version > 0
        assert chain.state.hex() == state
        assert held.anchors.digest(chain.fragment).hex() == state  # hashed from the tensors


def test_votes_still_bind(frozen: Frozen) -> None:
    votes = frozen.load().votes
    assert len(votes) == frozen.expected["votes"] > 0
    for vote in votes:
        assert frozen.expected["peer"] in vote.roster


def test_the_learner_goes_on_where_it_stopped(frozen: Frozen) -> None:
    """Data, parameters and moments are the same, so its next losses are those that it would have had."""
    state_path = frozen.load().learner_state
    assert state_path is not None
    state, config = load_file(state_path), frozen.manifest.config
    assert any(value.dtype == torch.uint8 for value in state.values()), "no 8-bit moments"
    learner = make_learner(config, windows_of(config, frozen.expected["peer"]))
    learner.import_state(state)
    assert learner.step_count == frozen.expected["steps"]
    losses = frozen.expected["losses"]
    assert [learner.step().loss for _ in losses] == pytest.approx(losses, rel=1e-4)
    assert learner.step_count == frozen.expected["steps"] + len(losses)


def test_the_next_save_is_found_again(frozen: Frozen) -> None:
    held = frozen.load()
    states = tuple(held.anchors.current(chain.fragment) for chain in held.chains)
    captured = Captured(held.held, states, tuple(chain.certificates for chain in held.chains))
    directory = RunDirectory(frozen.folder, frozen.run_id)
    directory.commit(directory.stage(captured), None)
    again = frozen.load()
    assert again.held == held.held
    assert [chain.digest for chain in again.chains] == [chain.digest for chain in held.chains]
    assert again.learner_state is not None
    assert held.learner_heads == tuple(head_of(chain.certificates) for chain in held.chains)
    assert again.learner_heads == held.learner_heads
