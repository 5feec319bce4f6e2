"""Help in groups: every command is in one, and every summary fits a terminal of eighty columns."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from peer.cli.commands import app
from peer.cli.help import GROUPS, OTHERS

HELP = CliRunner().invoke(app, ["--help"], terminal_width=80, prog_name="muster").output


def test_groups_stand_in_their_order() -> None:
    titles = [title for title in (*GROUPS, OTHERS) if f"\n{title}:" in HELP]
    assert titles[: len(GROUPS)] == list(GROUPS)
    assert sorted(titles, key=lambda title: HELP.index(f"\n{title}:")) == titles


def test_every_summary_fits() -> None:
    assert "..." not in HELP.partition("Take part:")[2]
    assert max(map(len, HELP.splitlines())) <= 80


@pytest.mark.parametrize("name", ["init", "check", "runs", "sample", "stop"])
def test_a_command_has_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], terminal_width=80).output
    assert re.search(rf"Example: muster {name}\b", shown)
