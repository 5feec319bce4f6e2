"""The arguments with which the processes of a swarm are started."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from peer.cli import arguments, commands
from peer.cli.commands import app
from peer.swarm.run import Swarm, SwarmOptions
from peer.swarm.view import PlainLines
from tests.checkout import ROOT

TINY = ROOT / "examples/tiny.toml"
SETTINGS = ("model.layers=1", "data.path=text/**/*.md")


def test_the_host_hosts_the_run_that_the_swarm_was_told_to_start(monkeypatch) -> None:
    """Before, `--set` reached only the report, and the host began the run of the file."""
    told: list[SwarmOptions] = []
    monkeypatch.setattr(commands, "_run_swarm", lambda options, *_: told.append(options))
    line = ["swarm", "--config", str(TINY), "--versions", "7", *(word for one in SETTINGS for word in ("--set", one))]
    assert CliRunner().invoke(app, line, catch_exceptions=False).exit_code == 0
    words = Swarm(told[0], PlainLines(lambda _: None))._host_arguments(())
    assert words[:2] == ["host", str(TINY)]
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    hosted = arguments.run_config(Path(words[1]), int(words[words.index("--versions") + 1]), settings)
    assert hosted == told[0].config
    assert (hosted.model.layers, hosted.data.path, hosted.versions) == (1, "text/**/*.md", 7)
