"""Inputs that nobody would send in good faith: bytes changed, cut and repeated, and values changed inside msgpack."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

LENGTH_MAX = 1 << 16
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 255, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)),
    *(0.0, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "\x00", "a" * 300, "\U0010ffff", b"", b"\xff" * 32, b"\x00" * 4096),
    *((), (None,), ((),) * 50, {}, {"a": 1}),
)


def mutated(seed: bytes, source: random.Random, prefix_bytes: int = 0) -> bytes:
    """`seed` changed in one to three places; its first `prefix_bytes` are not msgpack and change rarely."""
    data = seed
    for _ in range(source.randint(1, 3)):
        inside = source.random() < 0.5
        changed = _change_value(data[prefix_bytes:], source) if inside else None
        data = data[:prefix_bytes] + changed if changed is not None else source.choice(_EDITS)(data, source)
    return data[:LENGTH_MAX]


def _change_value(data: bytes, source: random.Random) -> bytes | None:
    """Replace one value somewhere inside; None if this is no msgpack."""
    try:
        value = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=False)
        return bytes(msgpack.packb(_replaced(value, source), use_bin_type=True))
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException, RecursionError):
        return None


def _replaced(value: Any, source: random.Random) -> Any:
    if isinstance(value, tuple) and value and source.random() < 0.9:
        place = source.randrange(len(value))
        if source.random() < 0.1:
            return _other_length(value, place, source)
        return (*value[:place], _replaced(value[place], source), *value[place + 1 :])
    if isinstance(value, bytes) and value and source.random() < 0.5:
        return mutated(value, source)  # statements carry bodies as bytes
    if isinstance(value, int) and not isinstance(value, bool) and source.random() < 0.3:
        return value + source.choice((-1, 1))
    return source.choice(STRANGE)


def _other_length(value: tuple[Any, ...], place: int, source: random.Random) -> tuple[Any, ...]:
    if source.random() < 0.5:
        return value[:place] + value[place + 1 :]
    return value[:place] + (value[place],) * source.choice((2, 40)) + value[place:]


def _flip(data: bytes, source: random.Random) -> bytes:
    if not data:
        return b"\x93"
    place = source.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << source.randrange(8))]) + data[place + 1 :]


def _cut(data: bytes, source: random.Random) -> bytes:
    return data[: source.randint(0, len(data))]


def _insert(data: bytes, source: random.Random) -> bytes:
    place = source.randint(0, len(data))
    return data[:place] + source.randbytes(source.choice((1, 4, 64))) + data[place:]


def _repeat(data: bytes, source: random.Random) -> bytes:
    return data * source.choice((2, 3)) if len(data) < LENGTH_MAX else data


_EDITS: Sequence[Callable[[bytes, random.Random], bytes]] = (_flip, _flip, _cut, _insert, _repeat)
