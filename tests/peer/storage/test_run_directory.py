"""The run directory, which survives a restart: the certified states, certificates, votes and the learner's file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from coordinator.chain.certificate import (
    NO_TRUST_TABLE,
    Certificate,
    Contributor,
    Outcome,
    PartitionOutcome,
    Vote,
    active_set_digest,
)
from coordinator.chain.chain import Chain, Rules
from coordinator.core.actions import VoteRecord
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError, UsageError
from dht.identity import Identity, KeyVerifier
from dht.statement import Context, digest_of, make_statement
from peer.numerics.outer_optimizer import OuterState, outer_step, state_digest
from peer.storage.anchors import genesis_states
from peer.storage.run_directory import MANIFEST_FILE, Captured, RunDirectory, known_manifests
from peer.storage.stored_vote import decode_vote, encode_vote
from tests.disk import file_size_limit

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16),
    pace=PaceSpec(fragments=2, steps_per_version=4, min_group=1),
    outer=OuterSpec(learning_rate=0.5, momentum=0.8),
)
KEY = Identity(digest_of(b"organiser"))


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    states = genesis_states(CONFIG)
    return Manifest(
        config=CONFIG,
        organiser=KEY.peer_id,
        founders=(KEY.peer_id,),
        data_digest=digest_of(b"data"),
        genesis=tuple(state_digest(state.anchor, state.momentum) for state in states),
        created_unix_seconds=0,
    )


def rules_of(manifest: Manifest) -> Rules:
    return Rules(manifest.run_id, manifest.founder_ids, 0.5, KeyVerifier())


def certify(chain: Chain, state: OuterState) -> Certificate:
    """Return the next version's certificate, signed by the only voter."""
    root = digest_of(b"bytes")
    outcome = Outcome(
        fragment=chain.fragment,
        version=chain.version + 1,
        parent=chain.digest,
        attempt=0,
        minor=False,
        roster_id=digest_of(b"roster", bytes([chain.version])),
        roster=(KEY.peer_id,),
        input_set=digest_of(b"inputs"),
        contributors=(Contributor(peer=KEY.peer_id, tokens=8, steps=2),),
        partitions=(PartitionOutcome(reducer=KEY.peer_id, root=root, included=(0,)),),
        coin=digest_of(b"coin"),
        active_set=active_set_digest(chain.active_set()),
        trust=NO_TRUST_TABLE,
    )
    digest = state_digest(state.anchor, state.momentum)
    context = Context(
        run_id=chain.rules.run_id, kind="vote", fragment=chain.fragment, version=chain.version, group=outcome.roster_id
    )
    vote = make_statement(KEY, context, Vote(outcome=outcome.digest, state=digest))
    return Certificate(outcome=outcome, state=digest, votes=(vote,))


def advanced(manifest: Manifest, versions: int) -> tuple[list[Chain], list[OuterState]]:
    """Return chains and states of both fragments after so many versions."""
    states = genesis_states(CONFIG)
    chains = [Chain(rules_of(manifest), fragment, digest) for fragment, digest in enumerate(manifest.genesis)]
    for fragment, chain in enumerate(chains):
        for version in range(versions):
            gradient = torch.full_like(states[fragment].anchor, 0.01 * (version + 1))
            states[fragment] = outer_step(states[fragment], gradient, 0.5, 0.8)
            certificate = certify(chain, states[fragment])
            assert chain.refusal(certificate) is None
            chain.append(certificate)
    return chains, states


def captured(chains: list[Chain], states: list[OuterState]) -> Captured:
    return Captured(
        tuple(chain.version for chain in chains), tuple(states), tuple(chain.certificates for chain in chains)
    )


def test_a_new_folder_holds_version_zero(tmp_path: Path, manifest: Manifest) -> None:
    held = RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))
    assert held.held == (0, 0)
    assert held.learner_state is None
    assert [held.anchors.digest(fragment) for fragment in range(2)] == list(manifest.genesis)


def test_saved_states_come_back_as_certified(tmp_path: Path, manifest: Manifest) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    assert directory.saved_learner() is None
    for versions in (2, 5):  # the second save appends to the certificate logs
        chains, states = advanced(manifest, versions)
        directory.make_room()
        learner = directory.learner_file
        save_file({"theta": torch.arange(3.0)}, learner)
        directory.commit(directory.stage(captured(chains, states)), learner)
    held = RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))
    assert held.held == (5, 5)
    for fragment, chain in enumerate(held.chains):
        assert list(chain.certificates) == list(chains[fragment].certificates)
        assert held.anchors.digest(fragment) == chain.state
        assert held.anchors.served(fragment, chain.digest) is not None
    assert held.learner_state is not None
    assert held.learner_state.exists()
    saved = directory.saved_learner()
    assert saved == held.learner_state, "while the peer goes on, for another learner"
    assert torch.equal(load_file(saved)["theta"], torch.arange(3.0))


def test_another_lineage_replaces_the_log(tmp_path: Path, manifest: Manifest) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    chains, states = advanced(manifest, 3)
    directory.commit(directory.stage(captured(chains, states)), None)
    other = [chain.truncated(1) for chain in chains]
    moved = [OuterState(state.anchor + 1.0, state.momentum) for state in states]
    for chain, state in zip(other, moved, strict=True):
        chain.append(certify(chain, state))
    directory.commit(directory.stage(captured(other, moved)), None)
    held = RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))
    assert [chain.digest for chain in held.chains] == [chain.digest for chain in other]


def test_a_learner_that_is_not_saved_again_stays_proven_whatever_its_lineage(
    tmp_path: Path, manifest: Manifest
) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    chains, states = advanced(manifest, 3)
    assert not directory.has_learner
    directory.make_room()
    save_file({"theta": torch.arange(3.0)}, directory.learner_file)
    directory.commit(directory.stage(captured(chains, states)), directory.learner_file)
    assert directory.has_learner
    other = [chain.truncated(1) for chain in chains]
    moved = [OuterState(state.anchor + 1.0, state.momentum) for state in states]
    for chain, state in zip(other, moved, strict=True):
        chain.append(certify(chain, state))
    directory.commit(directory.stage(captured(other, moved), range(1, 2)), None)
    held = RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))
    assert [chain.digest for chain in held.chains] == [chains[0].digest, other[1].digest]
    assert held.learner_heads == tuple(chain.digest for chain in chains)


def test_a_state_that_was_never_certified_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    chains, states = advanced(manifest, 2)
    wrong = [replace(states[0], anchor=states[0].anchor + 1.0), states[1]]
    directory.commit(directory.stage(captured(chains, wrong)), None)
    with pytest.raises(LocalError, match="not the certified version 2"):
        RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))


def test_votes_outlive_the_process(tmp_path: Path, manifest: Manifest) -> None:
    vote = VoteRecord(1, 4, digest_of(b"p"), 2, digest_of(b"r"), (KEY.peer_id,), digest_of(b"o"), digest_of(b"s"))
    RunDirectory(tmp_path, manifest.run_id).vote_log.append(encode_vote(vote))
    held = RunDirectory(tmp_path, manifest.run_id).load(manifest, rules_of(manifest))
    assert held.votes == (vote,)
    assert decode_vote(b"nonsense") is None


def test_the_manifest_is_remembered_only_if_it_is_the_runs(tmp_path: Path, manifest: Manifest) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    assert directory.known_manifest() is None
    directory.keep_manifest(manifest)
    assert directory.known_manifest() == manifest
    directory.keep_manifest(manifest.model_copy(update={"created_unix_seconds": 1}))
    assert directory.known_manifest() is None


def test_a_full_disk_at_a_start_leaves_the_manifest(tmp_path: Path, manifest: Manifest) -> None:
    directory = RunDirectory(tmp_path, manifest.run_id)
    directory.keep_manifest(manifest)
    with file_size_limit(0):
        directory.keep_manifest(manifest)  # nothing needs to be written
        with pytest.raises(LocalError, match=r"manifest.bin cannot be written: File too large"):
            directory.keep_manifest(manifest.model_copy(update={"created_unix_seconds": 1}))
    assert directory.known_manifest() == manifest


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_manifest_is_none(tmp_path: Path, manifest: Manifest, data: st.DataObject) -> None:
    content = manifest.to_wire()
    end, flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 255))
    directory = RunDirectory(tmp_path, manifest.run_id)
    directory.keep_manifest(manifest)
    rest = content[end + 1 :] if flip else b""
    (directory.path / MANIFEST_FILE).write_bytes(content[:end] + bytes([content[end] ^ flip] if flip else []) + rest)
    assert directory.known_manifest() is None
    with capture_logs() as logs:
        assert list(known_manifests(tmp_path)) == []
    assert [entry["event"] for entry in logs] == ["manifest_unreadable"]
    directory.keep_manifest(manifest)
    assert list(known_manifests(tmp_path)) == [manifest]


def test_a_folder_that_cannot_be_made_is_told_in_words(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --data folder"):
        RunDirectory(tmp_path / "file", manifest.run_id)
