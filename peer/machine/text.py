"""Text of strangers, made harmless."""

from __future__ import annotations

LINE_CHARACTERS_MAX = 240


def plain(text: str) -> str:
    """A peer's text as one line that steers nothing: what cannot be printed becomes a space."""
    return "".join(one if one.isprintable() else " " for one in text)[:LINE_CHARACTERS_MAX]
