"""Comparison with byzfl as an independent oracle, whose results make_byzfl_fixtures.py has frozen."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

from peer.numerics.robust.rules import AGGREGATORS
from tests.peer.numerics.robust.stacks import tensors

torch.set_num_threads(1)
FROZEN = json.loads((Path(__file__).parent / "fixtures" / "byzfl.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", FROZEN["cases"], ids=lambda case: f"{len(case['values'])} members")
@pytest.mark.parametrize("name", FROZEN["cases"][0]["results"])
def test_rule_agrees_with_byzfl(name: str, case: dict) -> None:
    rule = AGGREGATORS[name]
    options = {"byzantine": case["hostile"]} if "byzantine" in signature(rule).parameters else {}
    merged = rule(tensors(np.array(case["values"])), [1.0] * len(case["values"]), **options).vector
    np.testing.assert_allclose(merged.numpy(), case["results"][name], rtol=2e-5, atol=2e-5)
