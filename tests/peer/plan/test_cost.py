"""The bytes and seconds that one round costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.run.manifest import OuterSpec, PaceSpec
from peer.numerics.codec import CODECS
from peer.plan.cost import (
    CODEC_BITS,
    Members,
    Workload,
    opened_bits,
    round_cost,
    sent_bits,
    statement_bits,
    transfer_seconds,
)

WORK = Workload(8e6, 1024, PaceSpec(), OuterSpec())


def test_a_state_has_a_momentum_only_where_steps_look_at_one() -> None:
    assert WORK.state_bits == 32 * WORK.elements
    assert replace(WORK, outer=OuterSpec(momentum=0.9)).state_bits == 64 * WORK.elements


def members(n: int, mbit: float = 20.0, reducers: int | None = None) -> Members:
    lines = np.full(n, mbit * 1e6)
    reduces = np.arange(n) < (n if reducers is None else reducers)
    return Members(lines, lines, np.full(n, 0.0125), np.zeros(n), reduces)


@pytest.mark.parametrize("name", CODEC_BITS)
def test_bits_are_the_codecs_own(name) -> None:
    elements = 1 << 20
    assert CODECS[name].encoded_bytes(elements) * 8 / elements == pytest.approx(CODEC_BITS[name], rel=1e-3)


@given(st.integers(2, 32), st.integers(1, 32))
def test_sent_bits_are_received(n, reducers) -> None:
    reducers = min(n, reducers)
    cost, (up, down) = round_cost(WORK, members(n, reducers=reducers)), statement_bits(n, reducers)
    payload_up, payload_down = cost.sent_bits.sum() - n * up, cost.received_bits.sum() - n * down
    assert payload_up == pytest.approx(payload_down)
    opened = reducers * (n - 1) * opened_bits(WORK, n, reducers)
    assert payload_up - opened == pytest.approx(
        2 * (n - 1) * WORK.result_bits
    )  # however it is cut: each part n - 1 times


def test_each_member_of_an_equal_group_sends_as_much() -> None:
    assert round_cost(WORK, members(16)).sent_bits == pytest.approx(np.full(16, sent_bits(WORK, 16)))
    statements = statement_bits(16, 16)[0] + 15 * opened_bits(WORK, 16, 16)
    assert sent_bits(WORK, 16) == pytest.approx(2 * 15 / 16 * WORK.result_bits + statements)


@pytest.mark.parametrize(
    ("n", "codec", "share"),
    [(8, "int8", 0.098), (8, "int4", 0.106), (8, "fp32", 0.106), (16, "int8", 0.133), (16, "fp32", 0.117)],
)
def test_openings_are_as_measured(n: int, codec: str, share: float) -> None:
    """docs/explanation/verification.md has these shares of the exchange without checks, at 5 MB encoded."""
    outer = OuterSpec.model_validate({"contribution_codec": codec, "result_codec": codec})
    work = Workload(8 * 5e6 / CODEC_BITS[codec], 1024, PaceSpec(fragments=1), outer)
    plain = 2 * (n - 1) / n * work.result_bits
    assert (n - 1) * opened_bits(work, n, n) / plain == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize(("n", "elements", "measured"), [(4, 434_816, 220_750), (8, 117_056, 144_766)])
def test_bytes_sent_are_as_measured(n: int, elements: int, measured: int) -> None:
    """docs/results/adoption-eager0.7-0.json and attacks-noniid-label_flip.json: bytes of a member in one round."""
    outer = OuterSpec(contribution_codec="int8", result_codec="int8")
    work = Workload(elements, 1024, PaceSpec(fragments=8), outer)
    assert sent_bits(work, n) / 8 == pytest.approx(measured, rel=0.06)


def test_a_fast_line_leaves_latency_and_a_slow_one_nothing_else() -> None:
    fast, slow = round_cost(WORK, members(4, mbit=1e6)), round_cost(WORK, members(4, mbit=0.1))
    assert fast.seconds < 2.0
    assert slow.seconds == pytest.approx(2 * 3 / 4 * WORK.result_bits / 0.1e6, rel=0.02)


@given(st.floats(1, 1e11), st.floats(1e4, 1e10), st.floats(0, 0.5))
def test_no_transfer_is_faster_than_its_line(bits, rate, rtt) -> None:
    seconds = float(transfer_seconds(bits, rate, rtt))
    assert seconds >= bits / rate * (1 - 1e-9)
    assert float(transfer_seconds(bits * 1.5, rate, rtt)) >= seconds * (1 - 1e-9)


def test_a_long_line_is_filled_slowly_and_never_beyond_the_window() -> None:
    short, long = (float(transfer_seconds(8e6, 1e9, rtt)) for rtt in (0.0, 0.05))
    assert short == pytest.approx(0.008)
    assert long > 6 * 0.05  # 14 kB, 29 kB, … until a megabyte is through
    endless = float(transfer_seconds(8e12, 1e9, 0.05))
    assert endless == pytest.approx(1e12 / ((3 << 20) / 0.05), rel=0.01)
