"""The terms that a volunteer reads before joining: every figure follows from the manifest or is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.addresses import PeerAddress
from dht.errors import UsageError
from dht.invite import Invite
from peer.cli.consent import agrees, consents, measured_flops, this_machine
from peer.cli.terms import (
    TRAINING_SHARE,
    Machine,
    describe,
    disk_bytes,
    memory_bytes,
    parameters,
    step_seconds_at,
    upload_bytes_per_day,
    upload_bytes_per_version,
)
from peer.learner.memory_estimate import least_bytes, saved_bytes
from peer.machine.limits import Limits
from peer.model.build import build_model
from peer.node.options import NodeOptions
from peer.plan.cost import statement_bits
from peer.storage.generations import KEPT
from peer.storage.run_directory import RunDirectory, known_manifest
from tests.peer.homely import MODEL, ORGANISER, manifest
from tests.peer.installing import install

MACHINE = Machine(memory_bytes=8 << 30, disk_bytes=100 << 30, flops=1e11)


def config(**outer: str) -> RunConfig:
    return RunConfig(model=MODEL, outer=OuterSpec.model_validate(outer), pace=PaceSpec(steps_per_version=10))


def test_parameters_are_those_of_the_model() -> None:
    model = build_model(MODEL, 32, seed=0)
    assert parameters(config()) == sum(p.numel() for p in model.parameters())


def test_upload_counts_parts_openings_and_statements() -> None:
    """All inputs are opened whole, since the fragments are small."""
    outer = {"contribution_codec": "fp32", "result_codec": "fp32"}
    for members in (2, 4):
        one, other = parameters(config()) / members, members - 1
        said = upload_bytes_per_version(config(**outer), members) - 8 * one * other - 4 * one * other**2
        fragments = config().pace.fragments
        assert said == pytest.approx(fragments * statement_bits(members, members)[0] / 8, abs=1)


def test_upload_a_day_follows_the_slower_of_pace_and_device() -> None:
    run = config(contribution_codec="fp32", result_codec="fp32")
    paced = upload_bytes_per_day(run, flops=1e15, step_seconds=1.0)
    assert paced == pytest.approx(upload_bytes_per_version(run) * 8640)
    flops_per_step = 6 * parameters(run) * run.tokens_per_step / TRAINING_SHARE
    assert upload_bytes_per_day(run, flops=flops_per_step / 2, step_seconds=1.0) == pytest.approx(paced / 2)


def test_disk_holds_the_states_and_the_learners_part_twice() -> None:
    states, learner = 4 * parameters(config()), 5 * parameters(config())  # with the least state of an optimizer
    assert states + KEPT * learner < disk_bytes(config()) < KEPT * (states + learner)


def row(shown: str, label: str) -> str:
    (found,) = (line for line in shown.split("\n") if line.split()[0] == label)
    return found


def test_too_little_room_is_said_before(tmp_path: Path) -> None:
    def told(label: str, machine: Machine = MACHINE, **limits: float) -> str:
        options = NodeOptions(tmp_path, limits=Limits.model_validate(limits))
        return row(describe(manifest(), options, machine), label)

    for label, limit in (("disk", "disk_gigabytes"), ("memory", "memory_gigabytes")):
        assert "your limit" not in told(label)
        assert "more than is free" not in told(label)
        assert "your limit is 50 GB" in told(label, **{limit: 50.0})
        assert "too little" not in told(label, **{limit: 50.0})
        assert "your limit is 1e-06 GB, which is too little" in told(label, **{limit: 1e-6})
        assert "that is more than is free" in told(label, replace(MACHINE, **{f"{label}_bytes": 1000}))


def test_how_often_all_is_saved_is_said(tmp_path: Path) -> None:
    def told(**limits: float) -> str:
        return row(describe(manifest(), NodeOptions(tmp_path, limits=Limits.model_validate(limits)), MACHINE), "disk")

    written = "with at most 13.6 GB an hour written on average; an SSD rated for 600 TB would last 5.0 years with that"
    assert told().endswith(f"; saved about every 30 s, {written}")
    assert told(written_gigabytes_per_hour=0.0).endswith("; saved about every 30 s")
    slowly = saved_bytes(manifest().config) / (0.75e9 * 1e-5)
    assert f"saved about every {math.ceil(slowly)} h" in told(written_gigabytes_per_hour=1e-5)
    assert told(written_gigabytes_per_hour=1e-5).endswith("would last over 100 years with that")


def test_everything_asked_for_is_named(tmp_path: Path) -> None:
    shown = describe(manifest(), NodeOptions(tmp_path, name="bob", threads=3), MACHINE)
    run_id = manifest().run_id.hex()[:12]
    for fact in (run_id, ORGANISER, "parameters", "disk", "a day", "'bob'", "address", "3 of the cores", str(tmp_path)):
        assert fact in shown
    assert "none comes from the network" in shown


FORGED = ("x\n  data        nothing", "\x1b[2J\x1b[1;1HTake part? [y/N]: y", "\u202egnihton", "a\u2028b", "\x9b2J")


@pytest.mark.parametrize("text", FORGED)
def test_no_manifest_steers_the_terminal_on_which_it_is_shown(tmp_path: Path, text: str) -> None:
    """Before, an organiser could make extra rows with newlines, and a false prompt with escape sequences."""
    for field in ("path", "subset", "field", "tokenizer"):
        with pytest.raises(ValidationError, match="pattern"):
            DataSpec.model_validate({"source": "hub", field: text})
    with pytest.raises(ValidationError, match="pattern"):
        ModelSpec.model_validate({"source": text})
    # a manifest that was not validated
    forged = RunConfig(model=MODEL, data=DataSpec.model_construct(**{**dict(DataSpec(source="hub")), "path": text}))
    run = manifest().model_copy(update={"config": forged})
    honest = manifest(RunConfig(model=MODEL, data=DataSpec(source="hub", path="nobody/nothing")))
    shown, expected = (describe(one, NodeOptions(tmp_path), MACHINE).split("\n") for one in (run, honest))
    assert [row[:12] for row in shown] == [row[:12] for row in expected]
    assert all(row.isprintable() for row in shown)


def test_a_long_text_is_cut_and_its_quotes_are_not_ours(tmp_path: Path) -> None:
    data = DataSpec(source="hub", path="nobody', from this machine's own files'" + "x" * 900)
    shown = describe(manifest(RunConfig(model=MODEL, data=data)), NodeOptions(tmp_path), MACHINE)
    (row,) = (row for row in shown.split("\n") if row.strip().startswith("data"))
    assert len(row) < 200
    assert row.count("'") == 2


def test_one_layer_and_one_version_are_no_plural(tmp_path: Path) -> None:
    run = manifest(RunConfig(model=MODEL.model_copy(update={"layers": 1}), versions=1))
    shown = describe(run, NodeOptions(tmp_path), MACHINE)
    assert "ends after 1 certified version\n" in shown
    assert "1 layer of width" in shown


def test_an_owner_whose_machine_would_be_late_for_rounds_is_told_before(tmp_path: Path) -> None:
    run = manifest()
    late = "Much of this machine's work may come too late to count"
    slow = replace(MACHINE, flops=step_seconds_at(run.config, 1.0) / 1.7)
    assert late not in describe(run, NodeOptions(tmp_path), MACHINE)
    assert late in describe(run, NodeOptions(tmp_path), slow)
    assert late not in describe(run, NodeOptions(tmp_path), replace(slow, gpu_bytes=1 << 34))


def test_a_learner_on_a_gpu_needs_no_ram(tmp_path: Path) -> None:
    run = manifest()
    roomy, small = replace(MACHINE, gpu_bytes=1 << 34), replace(MACHINE, gpu_bytes=1000)
    assert memory_bytes(run.config, MACHINE) == memory_bytes(run.config, small)
    assert memory_bytes(run.config, MACHINE) - memory_bytes(run.config, roomy) == least_bytes(run.config, on_gpu=False)
    assert "GPU memory" in describe(run, NodeOptions(tmp_path), roomy)
    assert "GPU memory" not in describe(run, NodeOptions(tmp_path), small)


def test_a_run_that_was_agreed_to_is_not_asked_about_again(tmp_path: Path) -> None:
    run = manifest()
    place = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{ORGANISER}")
    invite = Invite(run.run_id, ORGANISER, (place,))
    assert known_manifest(tmp_path, run.run_id) is None
    assert list(tmp_path.iterdir()) == []
    RunDirectory(tmp_path, run.run_id).keep_manifest(run)

    def ask(_: str) -> bool:
        raise AssertionError("asked twice")

    assert consents(invite, NodeOptions(tmp_path), ask)


def test_packages_are_named_before_anything_runs_and_nobody_is_asked_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = manifest()
    outer = OuterSpec(merge="mean_near_median", merge_package="near-median==0.1.0", merge_sha256="0" * 64)
    run = run.model_copy(update={"config": run.config.model_copy(update={"outer": outer})})
    asked: list[str] = []
    with pytest.raises(UsageError, match="this run needs the package near-median, which is not installed"):
        agrees(run, NodeOptions(tmp_path), lambda terms: not asked.append(terms))
    assert not asked
    install("merge", tmp_path, monkeypatch)
    (tmp_path / "near_median.py").write_text("raise RuntimeError('imported before anybody agreed')")
    assert agrees(run, NodeOptions(tmp_path), lambda terms: not asked.append(terms))
    assert "for this run also mean_near_median of the package near-median==0.1.0" in asked[0]


def test_this_machine_is_measured_also_before_its_folder_exists(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    machine = this_machine(NodeOptions(tmp_path / "not" / "yet"))
    assert min(machine.memory_bytes, machine.disk_bytes) > 1 << 20
    assert measured_flops(1) > 1e8
    assert torch.get_num_threads() == threads
    assert list(tmp_path.iterdir()) == []
