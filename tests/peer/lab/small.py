"""A run so small that its lab takes milliseconds per step: 2.7 thousand parameters, text of eight letters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.token_files import TokenData
from peer.lab.laboratory import Laboratory
from peer.lab.options import LabOptions, lab_config
from peer.lab.report import LabReport
from peer.lab.summary import report_of
from peer.rounds.tape import Record, TapeWriter, keep_no_tape

BASE = RunConfig(
    model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16),
    data=DataSpec(context_tokens=16, sequences_per_step=2, evaluation_tokens=256),
    inner=InnerSpec(optimizer="adamw", warmup_steps=0, learning_rate=1e-2),
    outer=OuterSpec(learning_rate=0.5, momentum=0.8, merge="mean", contribution_codec="fp32", result_codec="fp32"),
    pace=PaceSpec(fragments=2, steps_per_version=4, quorum=2, min_group=1),
)


def text(seed: int = 5) -> TokenData:
    """Return text of eight letters whose probabilities depend on the letter before, so there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.randint(1, 4, (40_000,), generator=generator)
    letters = (97 + torch.cumsum(jumps, 0) % 8).to(torch.uint8)
    return TokenData(letters[:30_000], letters[30_000:], b"d" * 32)


def options(learners: int, steps: int, changes: Mapping[str, object] | None = None, **given: Any) -> LabOptions:
    config = lab_config(BASE, learners, steps, changes or {})
    return LabOptions(config, learners, steps, **{"eval_every_steps": steps, "workers": 1, **given})


def run(chosen: LabOptions, record: Record = keep_no_tape) -> tuple[Laboratory, LabReport]:
    """Run a whole lab; returns the laboratory, which can still be inspected, and its report."""
    started = time.perf_counter()
    with Laboratory(chosen, text(), record) as lab:
        lab.run()
    return lab, report_of(lab, (time.perf_counter() - started, time.process_time()), {})


def run_taped(chosen: LabOptions, path: Path) -> LabReport:
    with TapeWriter(path) as tape:
        return run(chosen, tape.write)[1]


def final_parameters(lab: Laboratory) -> dict[str, bytes]:
    """Return digests of the learners' final parameters and of the certified states."""
    learners = {peer: one.lazy.digest() for peer, one in lab.context.active.items()}
    return learners | {f"{peer} {p}": one.states[p] for peer, one in lab.context.active.items() for p in (0, 1)}
