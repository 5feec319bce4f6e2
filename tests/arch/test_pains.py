"""docs/explanation/pains.md names tests that exist, and docs/how-to/limits.md every limit."""

from __future__ import annotations

import re

from peer.machine.limits import Limits
from tests.arch.test_house import ROOT


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/explanation/pains.md").read_text(encoding="utf-8"))
    assert len(named) > 15
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text("utf-8")]
    assert missing == []


def test_every_limit_is_explained() -> None:
    page = (ROOT / "docs/how-to/limits.md").read_text(encoding="utf-8")
    assert [name for name in Limits.model_fields if f"`{name}`" not in page] == []
