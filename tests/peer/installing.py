"""Installs packages where Python finds them, for tests of packages that extend a run."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.real.conftest import ROOT


def install(example: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install `examples/NAME` into the folder `site`; returns the folder of its metadata."""
    source = ROOT / "examples" / example
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata)
    for group, entries in project["entry-points"].items():
        set_entry_points(info, group, entries)
    for module in source.glob("*.py"):
        shutil.copy(module, site)
    monkeypatch.syspath_prepend(site)
    return info


def set_entry_points(info: Path, group: str, entries: dict[str, str]) -> None:
    """Write a package's entry points."""
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
