"""`muster chaos` used wrongly: one sentence, exit code 2, nothing started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.errors import LocalError
from peer.chaos.containers import Containers
from peer.chaos.swarm import long_enough
from peer.cli import chaos as cli_chaos
from peer.cli import main
from peer.cli.arguments import run_config
from peer.machine.paths import swarm_directory
from tests.checkout import ROOT
from tests.peer.chaos.test_containers import Engine, served

DELAY = '[[event]]\ndo = "delay"\nat_seconds = 9\npeer = 1\ndelay_seconds = 0.1\n'
HEADLINE = ROOT / "examples" / "chaos" / "headline.toml"  # draws kills until the end


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--plan", "none.toml"], "there is no plan at none.toml"),
        (["--minutes", "0"], "--minutes must be more than 0"),
        (["--minutes", "-1"], "--minutes must be more than 0"),
        (["--minutes", "nan"], "--minutes must be more than 0"),
        (["--minutes", "inf"], "--minutes must be at most 10080"),
        (["--minutes", "1e9"], "--minutes must be at most 10080"),
        (["--plan", str(HEADLINE), "--minutes", "inf"], "--minutes must be at most 10080"),
        (["--peers", "65"], "1 to 64 peers"),
        (["--peers", "1"], "this run needs 2 peers or more (pace.min_group), not 1"),
        (["--report", "/"], "no report can be written"),
        (["--baseline", "none.json"], "there is no report at none.json"),
        (["--baseline", "a.json", "--with-baseline"], "give one of the two"),
        (["--beside", "abc", "--netns"], "--beside breaks a swarm that runs already"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["chaos", "--no-ui", *arguments], (3, 11)) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_a_bad_plan_is_told_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[event]]\ndo = "kill"\nat_seconds = 70\npeer = 1\n')
    assert main.run(["chaos", "--plan", str(plan), "--minutes", "1"], (3, 11)) == 2
    assert "comes after the end at 60 s" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photo").write_text("family")
    assert main.run(["chaos", "--no-ui", "--data", str(tmp_path)], (3, 11)) == 2
    assert capsys.readouterr().err == f"{tmp_path} holds something already; name a new folder with --data\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "photo"]
    assert swarm_directory(tmp_path) == tmp_path, "`muster swarm` goes on with what it finds"
    empty = tmp_path / "empty"
    empty.mkdir()
    for new in (empty, tmp_path / "not" / "there"):
        assert swarm_directory(new, new=True) == new
        assert list(new.iterdir()) == []


def begins(*_: object) -> None:
    """Replace the run by an error."""
    raise LocalError("here it begins")


def test_events_that_cannot_happen_are_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_chaos, "_run", begins)
    file = tmp_path / "plan.toml"
    kill, heal = ('[[event]]\ndo = "kill"\nat_seconds = 7\npeer = 1\n', '[[event]]\ndo = "heal"\nat_seconds = 8\n')
    for plan, arguments, said in (
        (
            kill + heal + heal + DELAY,
            [],
            "3 of this plan's 4 events (delay, heal) will not happen: on loopback the network cannot fail; run as "
            "root with --netns\n",
        ),
        (kill + heal + heal + DELAY, ["--netns"], ""),
        (kill, [], ""),
    ):
        file.write_text(plan)
        assert main.run(["chaos", "--no-ui", "--plan", str(file), *arguments], (3, 11)) == 1
        told = capsys.readouterr()
        assert (told.out, told.err) == (said, "here it begins\n")


def test_events_that_cannot_happen_to_containers_are_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_chaos, "_run_beside", begins)
    file = tmp_path / "plan.toml"
    file.write_text('[[event]]\ndo = "kill"\nat_point = "vote"\npeer = 1\n' + DELAY)
    with served(Engine(host=1, peer=4), tmp_path / "socket") as client:
        monkeypatch.setattr(cli_chaos, "_containers", lambda beside: Containers(client, beside))
        assert main.run(["chaos", "--no-ui", "--plan", str(file), "--beside", "host1"], (3, 11)) == 1
    told = capsys.readouterr()
    assert told.err == "here it begins\n"
    assert told.out.startswith("1 of this plan's 2 events (kill) will not happen: ")
    assert "at_seconds" in told.out


def test_namespaces_are_for_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.run(["chaos", "--netns", "--no-ui"], (3, 11)) == 2
    assert "network namespaces are for root" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["chaos", "--help"], (3, 11)) == 0
    assert "Example: muster chaos" in capsys.readouterr().out


def test_a_paced_run_outlasts_its_plan() -> None:
    config = run_config(None, 10)
    assert long_enough(config, 0.0, 600.0) == config
    longer = long_enough(config, 0.5, 600.0)
    pace = config.pace
    assert longer.versions / pace.fragments * pace.steps_per_version * 0.5 > 600
    assert longer.model_copy(update={"versions": 10}) == config
