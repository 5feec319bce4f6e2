"""A run's description of itself: single lines shown before consent; a run without them has no bytes for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.run.about import AboutSpec
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.cli.terms import Machine, describe
from peer.node.options import NodeOptions
from tests.coordinator.builders import Club

SAID = AboutSpec(title="Poems", purpose="to write them", organiser="ann@example.org", url="https://example.org/poems")


def test_a_run_that_says_nothing_keeps_its_bytes() -> None:
    assert RunConfig(about=None).to_wire() == RunConfig().to_wire()
    assert len(RunConfig(about=SAID).to_wire()) > len(RunConfig().to_wire())
    assert RunConfig.from_wire(RunConfig(about=SAID).to_wire()).about == SAID


def test_only_what_was_said_is_a_row() -> None:
    assert [label for label, _ in SAID.rows()] == ["about", "purpose", "run by", "read more"]


@pytest.mark.parametrize("text", ["a\nTake part? [y/N]: y", "\x1b[2J", "\u202eevil", "tab\there"])
def test_text_that_steers_a_terminal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"about\.title"):
        RunConfig.parse(f"[about]\ntitle = {json.dumps(text)}", "run.toml")


def test_an_address_is_one_of_the_web() -> None:
    with pytest.raises(UsageError, match=r"about\.url"):
        RunConfig.parse('[about]\nurl = "javascript:alert(1)"', "run.toml")


def test_owners_read_it_before_they_agree(tmp_path: Path) -> None:
    manifest = Club.of(2).manifest
    config = manifest.config.model_copy(update={"about": SAID})
    shown = describe(
        manifest.model_copy(update={"config": config}), NodeOptions(tmp_path), Machine(1 << 34, 1 << 40, 1e11)
    )
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert ["about", "Poems"] in lines
    assert ["purpose", "to write them"] in lines
