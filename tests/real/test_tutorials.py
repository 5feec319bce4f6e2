"""The tutorials as a reader follows them: every command of a page is typed, in order, in a new folder.

The commands are read from the pages. The test fills in what every reader has to: invites, ports, paths. It shortens
what takes long, and answers questions beforehand.
"""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from coordinator.views.control import snapshot
from coordinator.views.snapshot import PeerSnapshot
from tests.arch.shown_commands import KNOWN, SET_UP, steps
from tests.checkout import ROOT
from tests.dashboard.serving import free_port
from tests.real.conftest import Machines, invite_of
from tests.real.reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(1800)]

PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
FRIENDS = ("bob", "eve")
SCRIPT = "python examples/session"
HOSTS = re.compile(rf"muster host |{SCRIPT}(?!.*INVITE)")  # it prints an invite
GOES_ON = re.compile(rf"muster (host|join) (?!.*--detach)|{SCRIPT}")
SERVES = re.compile(r"muster dashboard\b")
ELSEWHERE = re.compile(r"muster (doctor|join) ")  # typed by friends if the reader hosts
OWN_FOLDER = re.compile(r" --data ~/learner-(\d)")  # dropped, because each friend has its own folder anyhow
NEEDS_VERSIONS = re.compile(r"muster (top|credit|sample|export)\b(?! /)")
ADDED = {
    r"muster join ": "--yes --threads 1 --step-seconds 0.05",
    r"muster dashboard\b": "--headless --port 7400",
    r"(PYTHONPATH=\. )?muster lab .*--steps": "--steps 48",
    r"python examples/chat-lora/": "--base-versions 60 --chat-versions 60",
    r"pip install ": "--quiet --no-deps --no-index --no-build-isolation --target site",
}
OWN_BASE = {  # the page tells the reader to write these into the file
    "model.source": '"my-base"',
    "data.tokenizer": '"my-base/tokenizer.json"',
    **runpy.run_path(str(ROOT / "examples/chat-lora/run.py"))["SMALL"],
}


def edited(run_file: str, settings: Mapping[str, object]) -> str:
    """Return the run file with other values for these keys, each given as TABLE.KEY."""
    for name, value in settings.items():
        table, key = name.split(".")
        before, _, after = run_file.partition(f"[{table}]\n")
        line = f"{key} = {value}"
        changed, found = re.subn(rf"^{key} = \S+", line, after, count=1, flags=re.MULTILINE)
        run_file = f"{before}[{table}]\n" + (changed if found else f"{line}\n{after}")
    return run_file


class Walk:
    """A reader who follows a page, and friends who help."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.invite = ""
        self.me = Reader(folder, "me")
        self.friends = [Reader(folder, name) for name in FRIENDS]
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.json", "*.png"))

    def step(self, language: str, text: str) -> None:
        """Run one command or script of the page; raises AssertionError if it fails."""
        if language == "python":
            (self.folder / "script.py").write_text(text)
            self.me.type("python script.py").end()
        elif not SET_UP.match(text):
            assert KNOWN.match(text), f"nobody here knows how to try this: {text}"
            self._prepare(text)
            for reader in self._who(text):
                self._do(reader, text)

    def _who(self, command: str) -> list[Reader]:
        if not (self.me.runs("muster host") and ELSEWHERE.match(command)):
            return [self.me]
        if found := OWN_FOLDER.search(command):
            return [self.friends[int(found[1]) - 1]]
        return self.friends if command.startswith("muster join") else self.friends[:1]

    def _prepare(self, command: str) -> None:
        """Do what the page tells the reader in words before this command."""
        if not command.startswith(SCRIPT):
            self.me.wait_for(SCRIPT)
        if "--detach" in command:
            self.me.press_ctrl_c("muster join")
        if command.startswith("muster check chat.toml"):
            self._bring_own_base()
        if NEEDS_VERSIONS.match(command):
            if self.me.runs("muster host") and not self.friends[0].lasting:
                for friend in self.friends:
                    self._do(friend, "muster join INVITE")
            self.me.until(_has_versions)

    def _bring_own_base(self) -> None:
        shutil.copytree(self.folder / "chat/base", self.folder / "my-base")
        (self.folder / "chats").mkdir()
        shutil.copy(ROOT / "examples/chat-lora/chats.jsonl", self.folder / "chats")
        file = self.folder / "chat.toml"
        file.write_text(edited(file.read_text(), OWN_BASE))

    def _do(self, reader: Reader, command: str) -> None:
        typed = self._filled_in(command)
        if SERVES.match(command):
            serving = reader.type(typed)
            serving.line("dashboard: http")
            serving.press_ctrl_c()
        elif GOES_ON.match(command):
            going = reader.begin(typed)
            if HOSTS.match(command):
                self.invite = going.line("invite: ")
            elif command.startswith("muster"):
                reader.until(_takes_part)
        else:
            leaving = snapshot(reader.data).pid if command == "muster stop" else None
            reader.type(typed).end()
            if "--detach" in command:
                reader.until(_takes_part)
            if leaving is not None:
                reader.until_gone(leaving)

    def _filled_in(self, command: str) -> str:
        text = " ".join([command, *(more for pattern, more in ADDED.items() if re.match(pattern, command))])
        text = OWN_FOLDER.sub("", text).replace("/tmp/", f"{self.folder}/")
        text = text.replace("--port 7400", f"--port {free_port()}")
        if re.search(r"\bRUN\b", text):
            text = re.sub(r"\bRUN\b", self.me.type("muster runs").end().split()[0], text)
        return re.sub(r"\bINVITE\b", self.invite, text)

    def end(self) -> None:
        """Check that all that still runs ends well: scripts by themselves, peers at Ctrl-C."""
        self.me.wait_for(SCRIPT)
        for reader in (*self.friends, self.me):
            reader.press_ctrl_c()

    def kill(self) -> None:
        for reader in (*self.friends, self.me):
            reader.kill()


def _takes_part(now: PeerSnapshot) -> bool:
    return now.state in ("training", "paused")  # depending on the page's limits and the time of day


def _has_versions(now: PeerSnapshot) -> bool:
    return all(one.version for one in now.fragments)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    found = Walk(tmp_path)
    try:
        yield found
    finally:
        found.kill()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_runs(page: Path, walk: Walk, machines: Machines) -> None:
    found = steps(page.read_text(encoding="utf-8"))
    assert found
    if not any(HOSTS.match(command) for _, command in found):  # then a friend hosts
        walk.invite = invite_of(machines.host())
        for friend in FRIENDS:
            machines.learner(friend, walk.invite)
    for language, text in found:
        walk.step(language, text)
    walk.end()
