from __future__ import annotations

import pytest
import torch

from peer.numerics.codec import CODECS
from peer.numerics.golden import GOLDEN, golden_digests, self_check
from peer.numerics.robust import medians
from peer.numerics.robust.segments import BY_COORDINATE

torch.set_num_threads(1)


def test_this_machine_computes_what_all_others_do():
    assert self_check() is None


def test_every_codec_and_rule_by_coordinate_is_covered_and_nothing_is_frozen_in_vain():
    names = [name for name, _ in golden_digests()]
    assert sorted(names) == sorted(GOLDEN)
    assert {f"codec {name}" for name in CODECS} < set(names)
    assert {rule + scope for rule in BY_COORDINATE for scope in ("", " over all exponents")} < set(names)


@pytest.mark.parametrize("name", GOLDEN)
def test_operations_with_other_bytes_are_named(name):
    others = {**GOLDEN, name: "00" * 32}
    assert self_check(others) == f"this machine computes other bytes than the run expects in: {name}"
    del others[name]
    assert name in (self_check(others) or "")


def test_a_process_that_flushes_subnormals_is_found_out():
    assert torch.set_flush_denormal(True)
    try:
        complaint = self_check()
    finally:
        torch.set_flush_denormal(False)
    assert complaint is not None
    assert "outer step over all exponents" in complaint
    assert "median over all exponents" in complaint
    assert "trimmed_mean over all exponents" in complaint
    assert "codec int" not in complaint, "block codecs never produce subnormals"
    assert self_check() is None


def test_a_median_that_takes_halves_of_the_weight_for_exact_is_found_out(monkeypatch):
    monkeypatch.setattr(medians, "TIE", 0.0)
    assert self_check() == (
        "this machine computes other bytes than the run expects in: median, median over all exponents"
    )
