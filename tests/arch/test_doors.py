"""`from peer import …` is the door for scripts: every name in it can be had, and examples need nothing deeper."""

from __future__ import annotations

import ast

import peer
from tests.checkout import ROOT

OURS = ("peer", "coordinator", "dht", "dashboard")


def test_every_name_of_the_door_can_be_imported() -> None:
    assert {name for name in peer.__all__ if getattr(peer, name).__name__ != name} == set()
    assert sorted(peer._HOMES) == peer.__all__


def test_examples_import_through_the_door_only() -> None:
    deeper = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}"
        for path in (ROOT / "examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS
        if node.module != "peer"
    ]
    assert deeper == []
