"""A run whose merge rule comes with an installed package, tried out in the lab as organisers do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.attacks.zoo import AttackOrder
from peer.cli.main import run
from peer.lab.replay import replay_tape
from peer.numerics.merge_plugin import with_rule_digest
from tests.peer.installing import install
from tests.peer.lab import small
from tests.peer.lab.test_cli_lab import PYTHON, SMALL, lab

CHOSEN = '[outer]\nmerge = "mean_near_median"\nmerge_package = "near-median==0.1.0"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL + CHOSEN)
    return path


def test_a_lab_with_an_attacker_agrees_and_is_made_again_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("merge", tmp_path, monkeypatch)
    changes = {"outer.merge": "mean_near_median", "outer.merge_package": "near-median==0.1.0"}
    chosen = small.options(4, 16, changes, attacks=(AttackOrder.parse("alie:1"),))
    report = small.run_taped(replace(chosen, config=with_rule_digest(chosen.config)), tmp_path / "tape")
    assert report.agreement
    assert (report.versions_certified, report.rounds_void) == (8, 0)
    assert replay_tape(tmp_path / "tape", small.text()).versions == 8


def test_the_command_takes_it_and_tries_a_built_in_rule_in_its_place(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab(config, "--merge", "mean") == 0  # which needs no package
    install("merge", tmp_path, monkeypatch)
    assert lab(config) == 0


@pytest.mark.parametrize("command", [["lab"], ["host", "--data"]], ids=["lab", "host"])
def test_without_the_package_it_is_one_sentence_and_exit_code_2(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    data = [str(tmp_path / "data")] if command[1:] else []
    assert run([*command, *data, str(config)], PYTHON) == 2
    shown = capsys.readouterr()
    assert shown.err == (
        "this run needs the package near-median, which is not installed; see what it is before you trust it, then: "
        "pip install near-median==0.1.0\n"
    )
    assert not list(tmp_path.glob("data/run-*"))
