"""Hypothesis strategies for wire models, derived from their fields: they draw any value that a model allows."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from dht.wire import Wire
from tests.coordinator.builders import Club

ITEMS_MAX = 3  # items in a tuple: enough for none, one and several
INTEGER_MAX = 2**63
PEER_IDS = Club.of(4).ids


@cache
def values_of(model: type[Wire]) -> st.SearchStrategy[Any]:
    """Return a strategy for a model's instances, with fields from their whole range (except long tuples and texts)."""
    return st.builds(
        model, **{name: _field(field.annotation, field.metadata) for name, field in model.model_fields.items()}
    )


def _field(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [
            one for field in arguments[1:] for one in (field.metadata if isinstance(field, FieldInfo) else [field])
        ]
        return _field(arguments[0], inner + metadata)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        least = _limit(metadata, annotated_types.MinLen, "min_length", 0)
        most = min(_limit(metadata, annotated_types.MaxLen, "max_length", ITEMS_MAX), max(least, ITEMS_MAX))
        return st.lists(_field(arguments[0], []), min_size=least, max_size=most).map(tuple)
    if type(None) in arguments:
        return st.none() | st.deferred(lambda: _field(arguments[0], metadata))
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return values_of(annotation)
    return _scalar(annotation, metadata)


def _scalar(annotation: type, metadata: list[Any]) -> st.SearchStrategy[Any]:
    if annotation is bool:
        return st.booleans()
    low, high = (_limit(metadata, kind, name, None) for kind, name in _BOUNDS)
    if annotation is int:
        below = _limit(metadata, annotated_types.Lt, "lt", None)
        high = INTEGER_MAX if high is None else high
        return st.integers(-INTEGER_MAX if low is None else low, high if below is None else below - 1)
    if annotation is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    least = _limit(metadata, annotated_types.MinLen, "min_length", 0)
    most = min(_limit(metadata, annotated_types.MaxLen, "max_length", 64), max(least, 64))
    if annotation is bytes:
        return st.binary(min_size=least, max_size=most)
    pattern = next((one.pattern for one in metadata if getattr(one, "pattern", None)), None)
    if pattern is None:
        return st.text(min_size=least, max_size=most)
    if least == 40:
        return st.sampled_from(PEER_IDS)
    return st.from_regex(re.compile(pattern), fullmatch=True).filter(lambda text: len(text) <= most)


_BOUNDS = ((annotated_types.Ge, "ge"), (annotated_types.Le, "le"))


def _limit(metadata: list[Any], kind: type, name: str, default: Any) -> Any:
    return next((getattr(one, name) for one in metadata if isinstance(one, kind)), default)
