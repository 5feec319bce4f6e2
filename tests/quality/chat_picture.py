"""`python -m tests.quality.chat_picture REPORT PICTURE`: draws the results of a run of examples/chat-lora/run.py.

REPORT is its report. The picture has the losses of both parts, and each question with the answers before and after.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer.plan.plots import write

PANEL_WIDTH, HEIGHT = 330, 260
TEXT_WIDTH, LINE_PIXELS, GAP_PIXELS = 470, 17, 12
COLUMNS = 52  # characters of an answer in a line, of which it has two at most
COLOURS = {"ask": "#1b1b1b", "before": "#9d755d", "after": "#2f7d32"}


def spoken(answers: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield lines of text, each with its speaker and its distance from the top in pixels."""
    down = 0
    for one in answers:
        for who, text in (("ask", one["question"]), ("before", one["before"]), ("after", one["after"])):
            lines = textwrap.wrap(text, COLUMNS, max_lines=2, placeholder=" …") or [""]
            for number, line in enumerate(lines):
                yield {"who": who, "label": "" if number else who, "text": line, "down": down}
                down += LINE_PIXELS
        down += GAP_PIXELS


def curve(points: list[list[float]], title: str) -> Any:
    import altair

    values = [{"version": version, "loss": loss} for version, loss in points]
    return (
        altair.Chart({"values": values}, width=PANEL_WIDTH, height=HEIGHT // 2 - 40, title=title)
        .mark_line(point=True)
        .encode(
            x=altair.X("version:Q", title="versions"),
            y=altair.Y("loss:Q", title="held-out loss", scale=altair.Scale(zero=False)),
        )
    )


def talk(answers: list[dict[str, str]]) -> Any:
    import altair

    colour = altair.Color("who:N", scale=altair.Scale(domain=list(COLOURS), range=list(COLOURS.values())), legend=None)
    place = altair.Y("down:Q", axis=None, scale=altair.Scale(reverse=True, zero=True))
    base = altair.Chart(
        {"values": list(spoken(answers))}, width=TEXT_WIDTH, height=HEIGHT, title="the same questions, before and after"
    )
    words = dict[str, Any](align="left", baseline="top", fontSize=12)
    labels = base.mark_text(**words, fontWeight="bold").encode(x=altair.value(0), y=place, text="label:N", color=colour)
    lines = base.mark_text(**words, font="monospace").encode(x=altair.value(55), y=place, text="text:N", color=colour)
    return labels + lines


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the picture, and write it."""
    import altair

    prose = curve(report["losses"]["prose"], "two peers pretrain a small base on prose")
    chat = curve(report["losses"]["chat"], "they train an adapter of it on conversations")
    picture = altair.hconcat(altair.vconcat(prose, chat), talk(report["answers"]), spacing=30)
    write(picture.configure_view(stroke=None), path)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
