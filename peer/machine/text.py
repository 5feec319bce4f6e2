"""Makes text of strangers and libraries safe for our own sentences."""

from __future__ import annotations

LINE_CHARACTERS_MAX = 240


def plain(text: str, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    """Return a stranger's text as one printable line of at most `characters_max`; other characters become spaces."""
    return printable(text)[:characters_max]


def printable(text: str) -> str:
    """Return the text with spaces for unprintable characters, for our sentences that hold a stranger's words."""
    return "".join(one if one.isprintable() else " " for one in text)


def quoted(text: str, characters_max: int) -> str:
    """Return a stranger's text in quotes, so that its beginning and end are visible."""
    cut = plain(text, characters_max)
    return f"'{cut.replace(chr(39), chr(32))}{'…' if len(text) > characters_max else ''}'"


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, with the next if the first ends in a colon; or the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
