"""The bits that bfloat16 cuts off are restored exactly, from three bytes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.model.rounding_remainders import REMAINDER_BYTES, RoundingRemainders

CPU = torch.device("cpu")
FLOATS = st.floats(min_value=2.0**-100, max_value=2.0**126, width=32)
SIGNED = st.one_of(st.just(0.0), FLOATS, FLOATS.map(float.__neg__))


def cut(values: Tensor) -> Tensor:
    return values - values.bfloat16().float()


@given(st.lists(SIGNED, min_size=1, max_size=50))
def test_the_rest_of_any_cut_number_comes_back(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    kept = RoundingRemainders(len(values))
    kept.keep(slice(None), cut(values))
    assert torch.equal(kept.of(slice(None), CPU), cut(values))
    assert torch.equal(values.bfloat16().float() + kept.of(slice(None), CPU), values)


def test_parts_are_kept_by_themselves_in_three_bytes() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    kept = RoundingRemainders(1000)
    kept.keep(slice(0, 300), cut(values[:300]))
    assert torch.equal(kept.of(slice(0, 300), CPU), cut(values[:300]))
    assert not kept.of(slice(300, 1000), CPU).any()
    assert sum(one.nbytes for one in kept.export_state().values()) == 1000 * REMAINDER_BYTES


def test_a_state_is_read_by_as_many_values_and_by_no_others() -> None:
    rest = cut(torch.randn(70, generator=torch.Generator().manual_seed(4)))
    kept = RoundingRemainders(70)
    kept.keep(slice(None), rest)
    again, other = RoundingRemainders(70), RoundingRemainders(69)
    for one in (again, other):
        one.import_state(kept.export_state())
    assert torch.equal(again.of(slice(None), CPU), rest)
    assert not other.of(slice(None), CPU).any(), "of another model"
    again.import_state({})
    assert torch.equal(again.of(slice(None), CPU), rest)
