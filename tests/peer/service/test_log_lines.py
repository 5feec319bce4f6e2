from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.service.log_lines import following, in_words

SAID = {"timestamp": "2026-11-28T10:00:00Z", "level": "warning", "logger": "peer.node", "event": "learner_hangs"}


def test_a_line_is_told_in_words() -> None:
    told = in_words(json.dumps({**SAID, "seconds": 31.5, "peer": "ann", "exception": "Traceback\n  last line"}))
    assert "WARNING learner hangs seconds=31.5 peer=ann" in told
    assert "grace_seconds=0.538169" in in_words(json.dumps({**SAID, "grace_seconds": 0.5381688612815015}))
    assert told.endswith("Traceback\n  last line")
    assert "INFO" not in in_words(json.dumps({**SAID, "level": "info"}))


@pytest.mark.parametrize("line", ["", "no json", "[1]", '{"event": "x"}', '{"timestamp": 3, "event": "x"}'])
def test_a_line_of_something_else_stays_as_it_is(line: str) -> None:
    assert in_words(line) == line


class Meanwhile(threading.Event):
    """An event that does the next thing whenever the reader waits, and in the end says that all is over."""

    def __init__(self, *things: Callable[[], object]) -> None:
        super().__init__()
        self.things = list(things)

    def wait(self, timeout: float | None = None) -> bool:
        if not self.things:
            self.set()
            return True
        self.things.pop(0)()
        return False


def test_new_lines_come_also_after_the_log_has_begun_another_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")

    def add(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    def begin_anew() -> None:
        path.rename(tmp_path / "log.1")
        path.write_text("three\n")

    meanwhile = Meanwhile(
        lambda: add("one\ntw"), lambda: add("o\n"), begin_anew, lambda: add("four\n"), lambda: path.unlink()
    )
    assert list(following(path, meanwhile, 1)) == ["old", "one", "two", "three", "four"]


def test_a_line_that_comes_while_the_newest_are_shown_is_shown_too(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("zero\n")
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthr")
    shown = []
    for line in following(path, Meanwhile(), 3):
        shown.append(line)
        if line == "one":
            with path.open("a") as file:
                file.write("ee\nfour\n")
    assert shown == ["zero", "one", "two", "three", "four"]
