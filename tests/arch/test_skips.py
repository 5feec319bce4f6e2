"""The rule of tests/conftest.py about skips, shown on a small test suite in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

CONFTEST = ROOT / "tests" / "conftest.py"
SETTINGS = "[pytest]\nmarkers = gpu\n"
SUITE = """
import pytest

@pytest.mark.skip(reason="by a marker")
def test_quiet(): ...

@pytest.mark.gpu
def test_excused():
    pytest.skip("no CUDA device")

def test_by_call():
    pytest.skip("by a call")

@pytest.mark.xfail(strict=True)
def test_known_defect():
    raise ValueError
"""
MODULE = "import pytest\npytest.skip('a whole module', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("profile", "outcome"),
    [
        ("ci", "1 failed, 1 skipped, 1 xfailed, 2 errors"),
        ("dev", "4 skipped, 1 xfailed"),
    ],
)
def test_only_marked_tests_may_skip_in_ci(tmp_path: Path, profile: str, outcome: str) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-q"]
    environment = {**os.environ, "HYPOTHESIS_PROFILE": profile}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome in done.stdout
