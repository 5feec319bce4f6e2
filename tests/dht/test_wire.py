from __future__ import annotations

from typing import ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from dht.errors import PeerError
from dht.wire import MESSAGE_BYTES_MAX, Wire, items_of


class Inner(Wire):
    name: str = Field(max_length=8)
    size: int


class Outer(Wire):
    data: bytes
    inner: Inner
    many: tuple[Inner, ...]
    maybe: Inner | None = None
    share: float = 0.5


class OuterNext(Outer):
    """What a newer minor version would make of `Outer`."""

    extra: int = 7


class InnerNext(Inner):
    """`Inner` with a field that nobody signs unless it says something."""

    OMITS_NONE: ClassVar[bool] = True

    note: str | None = None


class InnerLater(InnerNext):
    """One more field, a minor version later."""

    size_after: int | None = None


inners = st.builds(Inner, name=st.text(max_size=8), size=st.integers(-(2**63), 2**63 - 1))
outers = st.builds(
    Outer,
    data=st.binary(max_size=64),
    inner=inners,
    many=st.lists(inners, max_size=4).map(tuple),
    maybe=st.none() | inners,
    share=st.floats(allow_nan=False, allow_infinity=False),
)


@given(outers)
def test_a_written_value_is_read_and_has_one_encoding(value: Outer) -> None:
    encoded = value.to_wire()
    assert Outer.from_wire(encoded) == value
    assert Outer.from_wire(encoded).to_wire() == encoded


@given(outers, st.integers(0, 100))
def test_versions_read_each_other(value: Outer, extra: int) -> None:
    newer = OuterNext(**dict(value), extra=extra)
    assert Outer.from_wire(newer.to_wire()) == value
    assert OuterNext.from_wire(value.to_wire()) == OuterNext(**dict(value))


@given(st.binary(max_size=256))
def test_arbitrary_bytes_raise_only_peer_error(data: bytes) -> None:
    try:
        value = Outer.from_wire(data)
    except PeerError:
        return
    assert isinstance(value, Outer)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text(max_size=3), children, max_size=2),
    max_leaves=12,
)


@given(st.lists(plain, max_size=7))
def test_arbitrary_msgpack_raises_only_peer_error(fields: list[object]) -> None:
    try:
        value = Outer.from_wire(msgpack.packb(fields))
    except PeerError:
        return
    assert Outer.from_wire(value.to_wire()) == value


@given(outers, st.data())
def test_every_truncation_is_refused(value: Outer, data: st.DataObject) -> None:
    encoded = value.to_wire()
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(PeerError):
        Outer.from_wire(encoded[:length])


@given(inners, st.none() | st.text(max_size=8))
def test_a_field_that_says_nothing_changes_no_bytes(value: Inner, note: str | None) -> None:
    newer = InnerNext(name=value.name, size=value.size, note=note)
    assert (newer.to_wire() == value.to_wire()) == (note is None)
    assert InnerNext.from_wire(newer.to_wire()) == newer
    assert InnerNext.from_wire(value.to_wire()).note is None
    assert Inner.from_wire(newer.to_wire()) == value


@given(inners, st.none() | st.text(max_size=8), st.none() | st.integers(0, 9))
def test_several_fields_that_say_nothing_change_no_bytes(
    value: Inner, note: str | None, size_after: int | None
) -> None:
    later = InnerLater(name=value.name, size=value.size, note=note, size_after=size_after)
    next_one = InnerNext(name=value.name, size=value.size, note=note)
    assert (later.to_wire() == next_one.to_wire()) == (size_after is None)
    assert InnerLater.from_wire(later.to_wire()) == later
    assert InnerNext.from_wire(later.to_wire()) == next_one
    assert InnerLater.from_wire(next_one.to_wire()).size_after is None


@given(st.lists(outers, max_size=5))
def test_an_array_is_taken_apart_without_looking_into_its_items(values: list[Outer]) -> None:
    encoded = [value.to_wire() for value in values]
    array = bytes([0x90 + len(values)]) + b"".join(encoded)
    assert items_of(array, 5) == encoded
    for wrong in (array + b"\xc0", array[:-1], b"\xc0" + array, b""):
        with pytest.raises(PeerError):
            items_of(wrong, 5)
    if values:
        with pytest.raises(PeerError, match="over the limit"):
            items_of(array, len(values) - 1)


@given(st.binary(max_size=256))
def test_arbitrary_bytes_are_taken_apart_or_refused(data: bytes) -> None:
    try:
        items = items_of(data, 300)
    except PeerError:
        return
    assert data.endswith(b"".join(items))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(PeerError):
        items_of(b"\x91" * 100_000, 1)
    with pytest.raises(PeerError):
        Outer.from_wire(b"\x91" * 100_000 + b"\xc0")


def test_a_message_over_the_limit_is_not_even_unpacked() -> None:
    with pytest.raises(PeerError, match="over the limit"):
        Inner.from_wire(b"\x00" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(PeerError, match="over the limit of 4"):
        Inner.from_wire(Inner(name="abc", size=1).to_wire(), bytes_max=4)


def test_maps_extensions_and_nan_are_refused() -> None:
    for payload in ({"name": "a", "size": 1}, [msgpack.ExtType(1, b"x"), 1]):
        with pytest.raises(PeerError):
            Inner.from_wire(msgpack.packb(payload))
    with pytest.raises(PeerError):
        Outer.from_wire(msgpack.packb([b"", ["a", 1], [], None, float("nan")]))


def test_the_error_names_the_field() -> None:
    with pytest.raises(PeerError, match=r"Inner\.size"):
        Inner.from_wire(msgpack.packb(["a", "not a number"]))


def test_values_are_frozen_and_strict() -> None:
    value = Inner(name="a", size=1)
    with pytest.raises(ValidationError):
        value.size = 2
    with pytest.raises(ValidationError):
        Inner(name="a", size="1")
    with pytest.raises(ValidationError):
        Inner(name="a", size=1, other=2)  # type: ignore[call-arg]
