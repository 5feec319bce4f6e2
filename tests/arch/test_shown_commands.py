"""Every command that a page or a message shows is one that there is: read by the commands' own parser, and not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from peer.cli.commands import app
from tests.arch.prose import USER_PAGES
from tests.arch.shown_commands import KNOWN, SET_UP, named, parse, steps, typed, unknown
from tests.checkout import ROOT

PAGES = [page for page in USER_PAGES if page.parent.name != "commands"]  # those are made from the commands
MUSTER: Any = get_command(app)


def complaint(words: list[str]) -> str:
    """What the parser says of them; empty if it takes them."""
    try:
        parse(MUSTER, words)
    except SystemExit as end:  # of --version
        return "" if end.code in (None, 0) else str(end.code)
    except Exception as error:  # noqa: BLE001 - whatever it is, a reader would see it
        return str(error) or repr(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_shown_can_be_typed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {" ".join(words): said for words in typed(text) if (said := complaint(words))} == {}
    assert {" ".join(words): wrong for words in named(text) if (wrong := unknown(MUSTER, words))} == {}


def test_every_command_in_a_message_exists() -> None:
    files = [path for folder in ("dht", "coordinator", "peer", "dashboard") for path in (ROOT / folder).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}: {' '.join(words)}": wrong
        for path in files
        for words in named(re.sub(r"""["']\s*\n\s*f?["']""", "", path.read_text(encoding="utf-8")))
        if (wrong := unknown(MUSTER, words))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```\nmuster join INVITE   # take part\n```\n", [["join", "INVITE"]]),
        ("```\n$ muster export a && muster verify a\na holds 3\n```\n", [["export", "a"], ["verify", "a"]]),
        ("```\nA=. muster lab \\\n  --list\n```\n", [["lab", "--list"]]),
        ("```toml\nmuster dance\n```\n", []),
        ("```toml\na = 1\n```\nsay\n```\nmuster top\n```\nmuster dance\n", [["top"]]),
    ],
)
def test_commands_typed_in_a_block_are_found(page: str, words: list[list[str]]) -> None:
    assert list(typed(page)) == words


def test_commands_that_a_reader_types_are_found_in_their_order() -> None:
    page = (
        "```\ngit clone there && cd here\nmuster limits    # now\n```\n"
        "```text\nit says\n```\n```toml\na = 1\n```\n  ```python\n  a = 1\n  b = 2\n  ```\n```\n$ muster top\n```\n"
    )
    assert steps(page) == [
        ("sh", "git clone there"),
        ("sh", "cd here"),
        ("sh", "muster limits"),
        ("python", "a = 1\nb = 2\n"),
        ("sh", "muster top"),
    ]


@pytest.mark.parametrize("words", [["dance"], ["join"], ["swarm", "--pears", "4"], ["host", "--port", "none"]])
def test_commands_that_cannot_be_typed_are_found(words: list[str]) -> None:
    assert complaint(words)


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("`muster top [INVITE]` and `muster plan swarm`", [[], []]),
        ("`muster dance`, `muster plan dance` or `muster top --loudly`", [["dance"], ["dance"], ["--loudly"]]),
    ],
)
def test_commands_that_a_sentence_names_are_looked_up(sentence: str, wrong: list[list[str]]) -> None:
    assert [unknown(MUSTER, words) for words in named(sentence)] == wrong


@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_shows_only_commands_where_it_names_no_language(page: Path) -> None:
    """What they print is in blocks of `text`: `tests/real/test_tutorials.py` types all others."""
    typed_lines = [text for language, text in steps(page.read_text(encoding="utf-8")) if language == "sh"]
    assert [text for text in typed_lines if not (KNOWN.match(text) or SET_UP.match(text))] == []
