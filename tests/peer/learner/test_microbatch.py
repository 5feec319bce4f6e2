"""The number of sequences that go through a model at once: as many as fit, for any growth of the memory."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from peer.learner.microbatch import Fit, bytes_in_use, fit_sequences, measured_peak


@given(st.integers(1, 300), st.integers(0, 1000), st.integers(1, 100), st.integers(0, 5000), st.integers(0, 40))
def test_as_many_as_fit(sequences: int, base: int, each: int, room: int, dies_above: int) -> None:
    tried: list[int] = []

    def trial(count: int) -> int | None:
        tried.append(count)
        return None if dies_above and count > dies_above else base + each * count

    found = fit_sequences(trial, sequences, room)
    fitting = [count for count in range(1, sequences + 1) if base + each * count <= room]
    if not fitting:
        assert found is None
        return
    assert found is not None
    most = min(fitting[-1], dies_above or sequences)
    assert found == Fit(found.sequences, base + each * found.sequences)
    pieces = -(-sequences // found.sequences)
    assert found.sequences <= most
    if not dies_above:
        assert pieces == -(-sequences // most), "no fewer pieces were possible"
    assert len(tried) <= 2 + sequences.bit_length()
    assert sum(count for count in tried[:2]) <= 3, "what is large is tried last"


def test_growth_that_is_not_even_is_found_out() -> None:
    """Two trials promise 40 sequences; with so many, memory is short, so half as many are taken."""
    assert fit_sequences(lambda count: count * (1 if count < 30 else 9), 40, 45) == Fit(20, 20)


def test_the_peak_of_a_piece_of_work_is_seen() -> None:
    size = 96 << 20

    def work() -> None:
        with mmap.mmap(-1, size) as memory:
            for page in range(0, size, mmap.PAGESIZE):
                memory[page] = 1

    before = bytes_in_use("cpu")
    peak = measured_peak(work, "cpu")
    assert peak is not None
    assert size * 0.95 < peak - before < size * 1.2
    assert bytes_in_use("cpu") - before < size / 2
