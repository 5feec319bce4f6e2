"""What ships is what the tests ran: the wheel holds the whole house, and generated pages are current."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from peer.cli.presets import PRESETS
from peer.model import config_docs
from tests.checkout import ROOT

PACKAGES = ("dht", "coordinator", "peer", "dashboard")
SHIPPED = {f"peer/presets/{name}.toml": f"examples/{name}.toml" for name in PRESETS}


def test_wheel_holds_the_house_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {name.partition(".dist-info/")[2] for name in archive.namelist()} - {""}
        presets = {name: archive.read(name) for name in SHIPPED}
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    source = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert shipped == source | SHIPPED.keys()
    assert shipped >= {f"{package}/py.typed" for package in PACKAGES}
    assert all(presets[name] == (ROOT / source).read_bytes() for name, source in SHIPPED.items())
    assert metadata >= {"METADATA", "entry_points.txt", "licenses/LICENSE"}


def test_configuration_page_is_current() -> None:
    assert (ROOT / "docs/config.md").read_text(encoding="utf-8") == config_docs.render()
