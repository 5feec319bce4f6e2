"""The picture of the chat example, drawn from the report of its script."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.checkout import ROOT
from tests.quality.chat_picture import COLUMNS, draw, spoken

ANSWERS = [
    {"question": "Who?", "before": "| --- " * 40, "after": "Bees."},
    {"question": "Why?", "before": "", "after": "-"},
]
SWARM = """0:33 training, versions 0 of 240, held-out loss 7.122, 0 tokens/s, sent 60 kB
0:38 training, versions 1 of 240, groups of 2.0, held-out loss 7.122, 1.0k tokens/s, sent 618 kB
1:00 training, versions 9 of 240, groups of 2.0, held-out loss 5.5, 1.0k tokens/s, sent 618 kB
agreement  every peer holds the same bytes
"""


def test_the_script_reports_each_loss_once() -> None:
    spec = importlib.util.spec_from_file_location("chat_lora", ROOT / "examples" / "chat-lora" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.losses(SWARM) == [(0, 7.122), (9, 5.5)]


def test_a_speaker_is_named_once_and_no_speaker_for_long() -> None:
    lines = list(spoken(ANSWERS))
    assert [one["label"] for one in lines] == ["ask", "before", "", "after", "ask", "before", "after"]
    assert max(len(one["text"]) for one in lines) <= COLUMNS
    assert [one["down"] for one in lines] == sorted({one["down"] for one in lines})


def test_it_is_drawn(tmp_path: Path) -> None:
    report = {"losses": {"prose": [[0, 7.1], [9, 5.5]], "chat": [[0, 4.5], [18, 2.6]]}, "answers": ANSWERS}
    draw(report, tmp_path / "chat.html")
    assert "the same questions, before and after" in (tmp_path / "chat.html").read_text(encoding="utf-8")
