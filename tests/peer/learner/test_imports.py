"""Our programs see no installed package that fetches code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from peer.cli import main as command
from peer.learner import process as learner
from peer.learner.imports import refuse_kernels
from peer.session import process as session

PACKAGE = "kernels"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package of that name, as users may have for other work."""
    (tmp_path / f"{PACKAGE}.py").write_text("def get_kernel(*_, **__): ...")
    monkeypatch.syspath_prepend(tmp_path)
    before = sys.modules.pop(PACKAGE, None)
    assert importlib.util.find_spec(PACKAGE)
    yield
    sys.modules.pop(PACKAGE, None)
    if before is not None:
        sys.modules[PACKAGE] = before


def test_libraries_find_it_not_installed() -> None:
    refuse_kernels()
    assert importlib.util.find_spec(PACKAGE) is None  # how transformers asks
    with pytest.raises(ImportError):  # how bitsandbytes does
        importlib.import_module(PACKAGE)


def test_a_program_that_has_it_keeps_it() -> None:
    loaded = importlib.import_module(PACKAGE)
    refuse_kernels()
    assert importlib.import_module(PACKAGE) is loaded


@pytest.mark.parametrize("begin", [command.main, lambda: learner.main([]), lambda: session.main([])])
def test_every_program_that_may_train_begins_so(begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["muster", "version"])
    with suppress(SystemExit, ValueError):  # the command ends; the others miss their arguments
        begin()
    assert importlib.util.find_spec(PACKAGE) is None
