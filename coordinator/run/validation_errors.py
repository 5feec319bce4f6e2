"""Explains what is wrong with a value that a person wrote, in plain words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

KINDS = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a table",
    "string": "text in quotes",
    "tuple": "a list",
}
"""The kind that a value has to be, by the beginning of pydantic's name for the error."""
BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
LENGTHS = {
    "string_too_long": ("at most", "max_length"),
    "string_too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
    "too_short": ("at least", "min_length"),
}
SHOWN_CHARACTERS_MAX = 60


def first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that is wrong with a value of this model, with the name of its key."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # our own error, which names its keys
        return str(first["ctx"]["error"])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{place} is not a known key{_meant(first['loc'], model)}"
    return f"{place} {describe_error(first)}"


def describe_error(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, as words that follow its name; `error` is one that pydantic lists."""
    kind, ctx, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        known = ctx["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"has to be {ctx['expected']}, not {shown(value)}{nearest(str(value), known)}"
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        return f"has to be {words} {ctx[bound]:.15g}, not {str(value)[:SHOWN_CHARACTERS_MAX]}"
    if kind == "finite_number":
        return f"has to be a number, not {value}"
    if kind == "string_pattern_mismatch":
        return f"cannot be {shown(value)}"
    if kind in LENGTHS:
        words, bound = LENGTHS[kind]
        return f"has to have {words} {ctx[bound]} {'characters' if kind.startswith('string') else 'entries'}"
    family = kind.split("_")[0]
    if family in KINDS and kind.split("_")[-1] in ("type", "parsing", "float"):
        return f"has to be {KINDS[family]}, not {shown(value)}"
    return f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"


def shown(value: object) -> str:
    """Return a value as its writer knows it, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return "a table" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question in brackets whether a known word was meant; empty if none is near."""
    found = get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def _meant(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Ask whether a similar key of the same table was meant, or else the same key of another table."""
    table = model
    for name in place[:-1]:
        table = next(_tables(table.model_fields[str(name)].annotation))
    last = str(place[-1])
    elsewhere = (
        f"{name}.{last}"
        for name, field in model.model_fields.items()
        for inner in _tables(field.annotation)
        if last in inner.model_fields
    )
    other = next(elsewhere, None)
    return nearest(last, table.model_fields) or (f" (did you mean {other}?)" if other else "")


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a field of this type may hold."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one
