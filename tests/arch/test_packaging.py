"""What ships is what the tests ran: the wheel holds the whole house, and generated pages are current."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from peer.cli.presets import PRESETS
from peer.model import config_docs
from tests.checkout import ROOT

PACKAGES = ("dht", "coordinator", "peer", "dashboard")
SHIPPED = {f"peer/presets/{name}.toml": f"examples/{name}.toml" for name in PRESETS}


PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def wheel_of(source: Path, into: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1750000000"}
    done = subprocess.run(build, cwd=source, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel


def pins(name: str) -> dict[str, str]:
    return {
        re.sub(r"[._]", "-", package).lower(): version for package, version in PIN.findall((ROOT / name).read_text())
    }


def test_wheel_holds_the_house_and_nothing_else(tmp_path: Path) -> None:
    wheel = wheel_of(ROOT, tmp_path)
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


def test_one_commit_makes_one_wheel_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    here = wheel_of(ROOT, tmp_path / "here")
    for name in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / "copy" / name)  # with other times than the files here
    there = wheel_of(tmp_path / "copy", tmp_path / "there")
    assert hashlib.sha256(here.read_bytes()).digest() == hashlib.sha256(there.read_bytes()).digest()


def test_the_lock_names_the_versions_that_the_tests_ran_with() -> None:
    """`make lock` mends this."""
    locked, tried = pins("requirements.lock"), pins("constraints.txt")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.sub(r"[._]", "-", Requirement(line).name).lower() for line in needed} <= locked.keys()
    assert {name: tried[name] for name in locked.keys() & tried.keys()} == {
        name: locked[name] for name in locked.keys() & tried.keys()
    }


def test_every_file_of_the_lock_has_a_digest() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text().split("\n", 2)[2])
    assert entries
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_an_image_with_another_torch_checks_the_digest_of_all_else() -> None:
    (chosen,) = re.findall(r"RUN awk '([^']+)' requirements\.lock > others\.lock", (ROOT / "Dockerfile").read_text())
    others = subprocess.run(
        ["awk", chosen, str(ROOT / "requirements.lock")], check=True, capture_output=True, text=True
    ).stdout
    whole = (ROOT / "requirements.lock").read_text()
    left_out = pins("requirements.lock").keys() - {name.lower() for name, _ in PIN.findall(others)}
    assert {name.partition("-")[0] for name in left_out} == {"torch", "triton", "cuda", "nvidia"}
    entries = re.split(r"\n(?=[a-z0-9])", others.split("\n", 2)[2].rstrip())
    assert all(entry in whole and "--hash=sha256:" in entry for entry in entries)


def test_the_image_is_built_with_every_file_that_the_wheel_takes() -> None:
    copied = "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY"))
    taken = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert all(f"{Path(source).parent}/*{Path(source).suffix}" in copied for source in taken["force-include"])


def test_configuration_page_is_current() -> None:
    assert (ROOT / "docs/reference/config.md").read_text(encoding="utf-8") == config_docs.render()


def test_a_user_installs_no_tools_of_developers() -> None:
    """`make install` and `make run`, where nothing is installed yet; `make check` brings the tools."""
    told = {
        target: subprocess.run(
            ["make", "-n", "-W", "pyproject.toml", target], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for target in ("install", "run", "check")
    }
    pattern = re.compile(r"pip install .* (-e \S+?);?(?: \\)?$", re.MULTILINE)
    installs = {target: set(pattern.findall(one)) for target, one in told.items()}
    assert installs == {"install": {"-e ."}, "run": {"-e ."}, "check": {"-e '.[dev]'"}}
