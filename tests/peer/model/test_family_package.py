"""A model whose class an installed package brings: the one under `examples/family`, put where Python finds packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.learner import make_learner
from peer.model.build import build_model
from peer.model.description import describe
from peer.numerics.plugins import FAMILIES, Part, check_packages
from tests.peer.installing import install, set_entry_points
from tests.real.conftest import ROOT

PACKAGE = "gated-nets==0.1.0"
GATED = ModelSpec(hidden_size=32, layers=1, family="gated", package=PACKAGE)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example into a folder of packages, as an installer would; returns the folder."""
    install("family", tmp_path, monkeypatch)
    return tmp_path


def test_the_example_trains(site: Path) -> None:
    config = RunConfig(
        model=GATED,
        data=DataSpec(context_tokens=16, sequences_per_step=4),
        inner=InnerSpec(learning_rate=1e-2, warmup_steps=1, optimizer="adamw"),
        pace=PaceSpec(fragments=2, steps_per_version=4),
    )
    described = describe(config).config
    assert [tensor.name for tensor in described.model.tensors if tensor.embedding] == ["tokens.weight", "head.weight"]
    model = build_model(described.model, 16, described.seed)
    again = build_model(described.model, 16, described.seed)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    windows = TrainingWindows(load_tokens(config.data).train, config.data, b"run", "peer")
    learner = make_learner(described, windows)
    learner.set_progress(4)
    losses = [learner.step().loss for _ in range(30)]
    assert losses[-1] < losses[0] - 1


def test_nothing_of_a_package_runs_before_a_model_is_made(site: Path) -> None:
    (site / "gated_nets.py").write_text("print('run')")
    program = f"""
import sys
sys.path.insert(0, {str(site)!r})
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.numerics.plugins import check_packages, family_part
spec = ModelSpec(family="gated", package={PACKAGE!r})
check_packages(RunConfig(model=spec))
print("checked")
family_part(spec).load()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["checked", "run"]


@pytest.mark.parametrize(
    ("package", "family", "said"),
    [
        (
            "no-such-nets==1.0",
            "gated",
            "is not installed; see what it is before you trust it, then: pip install",
        ),
        ("gated-nets==0.2.0", "gated", "0.1.0 of it is installed"),
        (PACKAGE, "other", "has no entry point other in muster.families"),
    ],
)
def test_a_package_that_is_not_here_is_named(site: Path, package: str, family: str, said: str) -> None:
    config = RunConfig(model=ModelSpec(family=family, package=package))
    for refused in (check_packages, describe):
        with pytest.raises(UsageError, match=said):
            refused(config)


def test_a_package_that_cannot_be_imported_is_named(site: Path) -> None:
    set_entry_points(next(site.glob("*.dist-info")), FAMILIES, {"gated": "broken_nets"})
    (site / "broken_nets.py").write_text("raise RuntimeError('half a file')")
    with pytest.raises(UsageError, match="cannot be imported here: RuntimeError: half a file"):
        Part(PACKAGE, FAMILIES, "gated").load()


def test_a_manifest_without_a_package_says_nothing_of_one() -> None:
    assert ModelSpec(package="") == ModelSpec()
    assert b"==" not in ModelSpec().to_wire()
    assert ModelSpec.from_wire(GATED.to_wire()) == GATED
