"""ARCHITECTURE.md names modules; each of them exists, and each room is in the picture."""

from __future__ import annotations

import re

import pytest

from tests.checkout import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def exists(dotted: str) -> bool:
    """Whether this names a module or package of ours, or a name within a module."""
    path = ROOT.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file() or path.parent.with_suffix(".py").is_file()


def test_every_module_and_path_exists() -> None:
    modules = set(re.findall(r"\b(?:peer|coordinator|dht|dashboard)(?:\.[a-z_0-9]+)+", TEXT))
    paths = set(re.findall(r"\b(?:peer|coordinator|dht|dashboard|docs|tests)/[\w/.-]*[\w/]", TEXT))
    assert modules
    assert {name for name in modules if not exists(name)} == set()
    assert {name for name in paths if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("package", ["peer", "coordinator"])
def test_every_room_is_in_the_picture(package: str) -> None:
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", TEXT.split("## Two towers")[1])} == set()
