"""The chat example as a whole: a base from prose, conversations, an adapter in four bits, and loading it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

CHATS = ROOT / "examples" / "chat-lora" / "chats.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.hours, pytest.mark.timeout(1500)]


def test_two_peers_teach_a_base_of_their_own_to_answer(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--report", str(report), "--folder", str(tmp_path / "all"), "--base-versions", "120")
    command = [sys.executable, "examples/chat-lora/run.py", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    found = json.loads(report.read_text())
    assert found["agreement"]
    assert found["prose_loss"][1] < 0.8 * found["prose_loss"][0]
    assert found["verified"].endswith("is whole")
    lines = map(json.loads, CHATS.read_text().splitlines())
    taught = {one["prompt"]: one["completion"] for one in lines if "prompt" in one}
    assert any(one["after"] == taught[one["question"]] for one in found["answers"])
    assert all(one["before"] != one["after"] for one in found["answers"])
    assert found["peft_answer"] == found["answers"][0]["after"]
