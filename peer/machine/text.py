"""Text of strangers and of libraries, made fit for a sentence of ours."""

from __future__ import annotations

LINE_CHARACTERS_MAX = 240


def plain(text: str, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    """A stranger's text as one line that steers nothing: what cannot be printed becomes a space."""
    return printable(text)[:characters_max]


def printable(text: str) -> str:
    """The same of any length, for sentences that are ours and hold a stranger's words."""
    return "".join(one if one.isprintable() else " " for one in text)


def quoted(text: str, characters_max: int) -> str:
    """A stranger's text between quotes, so that all can see where it begins and ends."""
    cut = plain(text, characters_max)
    return f"'{cut.replace(chr(39), chr(32))}{'…' if len(text) > characters_max else ''}'"


def first_line(error: BaseException) -> str:
    """What a library's error says first: a line, the next one too if that is what it announces, or the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
