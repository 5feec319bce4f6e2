"""The commands that pages show: whole ones in fenced blocks, and those that a sentence names, which may be parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import Any

from tests.checkout import ROOT

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)  # of any language: else ends begin others
SHELLS = ("", "bash", "sh", "console")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(muster [a-z][^`]*)`")
OPTION = re.compile(r"--[a-z][a-z-]*")
REMARK = re.compile(r"\s+#.*$")
LEFT_OUT = "…"  # what a page does not spell out
ANY_RUN = ROOT / "examples/tiny.toml"  # stands for a run file that a reader has written
SET_UP = re.compile(r"git clone |cd muster$|make install$|export PATH=")  # before anything of ours is there
KNOWN = re.compile(r"(PYTHONPATH=\. )?(muster|python|pip) ")


def blocks(page: str) -> list[list[str]]:
    """The lines of every block without a language, each without its prompt; commands and what they print."""
    return [_lines(block) for language, block in BLOCK.findall(page) if language in SHELLS]


def steps(page: str) -> list[tuple[str, str]]:
    """What a reader of a page types, in its order, each with its language: `sh`, or `python` for a whole script.

    On such a page every line of a block without a language is a command; what they print is in blocks of `text`.
    """
    found = []
    for language, block in BLOCK.findall(page):
        if language == "python":
            found.append((language, dedent(block)))
        elif language in SHELLS:
            lines = (REMARK.sub("", line) for line in _lines(block))
            found += [("sh", command) for line in lines for command in line.split(" && ") if command]
    return found


def _lines(block: str) -> list[str]:
    return [line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]


def typed(page: str) -> Iterator[list[str]]:
    """The words behind `muster` of each command in a block."""
    for line in (line for block in blocks(page) for line in block):
        for part in line.split(" && ") if "muster " in line else ():
            yield from _words(part)


def named(page: str) -> Iterator[list[str]]:
    """The words behind `muster` of each command between backquotes in a sentence; `[INVITE]` may be left out."""
    for text in NAMED.findall(FENCED.sub("", page)):
        yield from _words(re.sub(r"[\[\]']", "", text))


def _words(command: str) -> Iterator[list[str]]:
    if not re.match(r"([A-Z_]+=\S+ )*muster [^─]+$", command):  # but no drawing of processes
        return
    words = shlex.split(command, comments=True)
    begin = words.index("muster") + 1
    yield [str(_there(word)) if word.endswith(".toml") else word for word in words[begin:] if word != LEFT_OUT]


def _there(file: str) -> str:
    return str(ROOT / file if (ROOT / file).exists() else ANY_RUN)


def parse(command: Any, words: Sequence[str], parent: Any = None) -> None:
    """Have the commands' own parser read these words, and run nothing; it raises an exception of its own."""
    context = command.make_context(command.name or "muster", list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        _, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(below, rest, context)


def unknown(command: Any, words: Sequence[str]) -> list[str]:
    """What of these words names no command and no option that there is; values are not looked at."""
    left = list(words)
    while left and (below := getattr(command, "commands", None)) is not None:
        if left[0] not in below:
            return left[:1]
        command = below[left.pop(0)]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    return sorted({option for word in left for option in OPTION.findall(word) if option not in known})
