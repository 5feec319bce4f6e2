"""Canonical encoding of everything that is signed, stored or sent.

A `Wire` model is encoded as the msgpack array of its fields in order of declaration, models and tuples inside it
likewise. There are no maps, no pickles and no NaN. One value therefore has exactly one encoding. A newer minor version
may append fields: an older reader ignores the fields it does not know, and a newer one fills in defaults.

A model that a reader encodes anew to hash or compare it may not grow like that, because an older reader would get other
bytes. These models are listed in `tests/coordinator/fixed_fields.py`; CONTRIBUTING.md has the rules for all models.
They may grow only with `OMITS_NONE`: fields at the end that are None are not encoded. A value that uses no new field
then keeps its bytes, and its digest, in every minor version.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, ClassVar, Self, Union, get_args, get_origin

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError

from dht.errors import PeerError

PROTOCOL_MAJOR = 2
PROTOCOL_MINOR = 0  # raised whenever a field or message is appended
MESSAGE_BYTES_MAX = 1 << 20  # no control message, record or manifest is larger; tensors travel as parts

Converter = Callable[[Any], Any]


class Wire(BaseModel):
    """Base of every model that crosses a process boundary: frozen, strict, without unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    OMITS_NONE: ClassVar[bool] = False

    def to_wire(self) -> bytes:
        """Return the one canonical encoding of this value."""
        return bytes(msgpack.packb(self, default=_plain, use_bin_type=True))

    @property
    def encoded_bytes(self) -> int:
        """Length of the canonical encoding."""
        return len(self.to_wire())

    @classmethod
    def from_wire(cls, data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> Self:
        """Decode `data`; raises PeerError unless it is a well-formed encoding of at most `bytes_max` bytes."""
        if len(data) > bytes_max:
            raise PeerError(f"{cls.__name__} of {len(data)} bytes is over the limit of {bytes_max}")
        try:
            plain = msgpack.unpackb(data, raw=False, use_list=False, max_map_len=0, max_ext_len=0)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
            raise PeerError(f"{cls.__name__} is not valid msgpack: {type(error).__name__}") from None
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Build the model from nested tuples, as `from_wire` unpacks them; raises PeerError."""
        if not isinstance(plain, tuple):
            raise PeerError(f"{cls.__name__} must be an array")
        converters = _field_converters(cls)
        try:
            # zip stops at the shorter side on purpose: trailing fields belong to another minor version
            named = {name: convert(item) for (name, convert), item in zip(converters, plain, strict=False)}
            return cls.model_validate(named)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise PeerError(f"{cls.__name__}.{where}: {first['msg']}") from None


def _plain(value: Wire) -> tuple[Any, ...]:
    """Return the tuple that msgpack encodes in place of a model; it encodes all other values itself."""
    plain = _values_of(type(value))(value.__dict__)  # many times as fast as reading attributes
    while value.OMITS_NONE and plain and plain[-1] is None:
        plain = plain[:-1]
    return plain


@lru_cache(maxsize=256)
def _values_of(cls: type[Wire]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    names = tuple(cls.model_fields)
    return itemgetter(*names) if len(names) > 1 else lambda held: tuple(held[name] for name in names)


@lru_cache(maxsize=256)
def _field_converters(cls: type[Wire]) -> tuple[tuple[str, Converter], ...]:
    return tuple((name, _converter(field.annotation)) for name, field in cls.model_fields.items())


def _converter(annotation: Any) -> Converter:
    """Return the function that turns a field's plain value into what pydantic expects; that may raise PeerError."""
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return annotation.from_plain
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        element = _converter(arguments[0])
        return lambda value: tuple(map(element, value)) if isinstance(value, tuple) else value
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        inner = _converter(next(argument for argument in arguments if argument is not type(None)))
        return lambda value: None if value is None else inner(value)
    return _same


def _same(value: Any) -> Any:
    return value


def items_of(data: bytes, items_max: int) -> list[bytes]:
    """Split an encoded array into the encodings of its items, so that a large array can be decoded item by item.

    Raises PeerError if it is no array, or has more than `items_max` items.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    try:
        unpacker.feed(data)
        count = unpacker.read_array_header()
        if count > items_max:
            raise PeerError(f"an array of {count} items is over the limit of {items_max}")
        ends = [unpacker.tell()]
        for _ in range(count):
            unpacker.skip()
            ends.append(unpacker.tell())
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"no valid msgpack array: {type(error).__name__}") from None
    if ends[-1] != len(data):
        raise PeerError("something is behind an array")
    return [data[start:end] for start, end in pairwise(ends)]
