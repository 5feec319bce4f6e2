"""`muster plan`: the command lines and JSON keys that scripts rely on, and the tables for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dht.errors import UsageError
from peer.cli.plan import app
from tests.checkout import ROOT


def run(line: str) -> str:
    return CliRunner().invoke(app, line.split(), catch_exceptions=False).output


def found(line: str) -> dict[str, Any]:
    answer = json.loads(run(f"{line} --json"))
    assert isinstance(answer, dict)
    return answer


def test_goodput() -> None:
    line = "goodput --chips 1200000 --learners 8 --mtbi-years 1 --days 2 --method"
    answers = {method: found(f"{line} {method}") for method in ("decoupled", "elastic", "rigid")}
    assert [answers[method]["learners"] for method in answers] == [8, 1, 1]
    percents = [100 * answer["goodput"] for answer in answers.values()]
    assert percents == pytest.approx([88, 58, 27], abs=4)
    assert 100 * answers["decoupled"]["uptime"] == pytest.approx(100, abs=1)


def test_every_option_of_goodput_reaches_the_simulator() -> None:
    base = "goodput --chips 4096 --learners 4 --mtbi-years 0.0005 --days 0.01 --slice-chips 64"
    options = [
        *("--quorum 4", "--step-seconds 5", "--down-seconds 60", "--up-seconds 60", "--absence-seconds 500"),
        *("--slow-learners 1 --quorum 4", "--jitter 0.2 --quorum 4", "--chip-spread 0.2", "--grace-steps 1"),
        *("--mtbi-years 0.001", "--slice-chips 128", "--seed 1", "--learners 2", "--overlap 9 --quorum 4"),
    ]
    answers = [json.dumps(found(f"{base} {option}")) for option in ("", *options)]
    assert len(set(answers)) == len(answers)


def test_bandwidth() -> None:
    line = "--params 5e9 --step-seconds 1 --sites 8 --utilisation 0.95"
    decoupled = found(f"bandwidth --method decoupled {line} --bits 4 --gbit 1")
    assert decoupled["gbit_per_second"] == pytest.approx(0.84, rel=0.06)
    assert decoupled["gbit_per_second_full_payload"] == pytest.approx(1.39, abs=0.005)
    assert decoupled["utilisation_at_gbit"] > 0.95 > decoupled["utilisation_at_gbit_full_payload"]
    data_parallel = found(f"bandwidth --method dp {line} --bits 16")
    assert data_parallel["gbit_per_second"] == pytest.approx(198, rel=0.06)
    assert data_parallel["gbit_per_second_full_payload"] == data_parallel["gbit_per_second"]


@pytest.mark.parametrize(
    "option",
    [
        *("--params 1e9", "--step-seconds 2", "--sites 40", "--utilisation 0.5", "--bits 8", "--period 48"),
        *("--fragments 4", "--overlap 0", "--link butterfly", "--link home", "--link home --group 4"),
    ],
)
def test_every_option_of_bandwidth_matters(option) -> None:
    base = "bandwidth --latency-seconds 0.01 --fragments 6"
    whole = "gbit_per_second_full_payload"
    assert found(f"{base} {option}")[whole] != found(base)[whole]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("goodput --days 1", ["goodput", "uptime", "1,200,000 chips"]),
        ("bandwidth --gbit 2", ["whole model", "as the paper counts", "2 Gbit/s allow"]),
        ("goodput --paper-table 4", ["0.833 (0.83)", "ours (the paper's)"]),
        ("goodput --paper-table 5", ["87 (84)", "100 (100)"]),
        ("bandwidth --paper-table 13", ["(198)", "1.39"]),
        ("", ["goodput", "bandwidth", "swarm", "Example:"]),
    ],
)
def test_the_tables_hold_the_words_that_people_read(line, words) -> None:
    text = run(line)
    assert [word for word in words if word not in text] == []


def test_tables_as_json() -> None:
    tables = found("bandwidth --paper-table 13")
    assert [len(cells) for cells in tables.values()] == [60, 40]
    assert set(tables["Gbit/s, as the paper counts"][0]) == {"row", "column", "ours", "paper"}


PLANS = ROOT / "examples/plan"
SMALL = "parameters = 1e6\n[swarm]\npeers = 8\nstep_seconds = 5.0\n"


@pytest.fixture
def plan(tmp_path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text("hours = 1.0\n" + SMALL)
    return path


def test_swarm(plan) -> None:
    answer = found(f"swarm {plan}")
    shares = ("utilisation", "certified_share", "uptime", "goodput_ideal")
    assert [name for name in shares if not 0 <= answer[name] <= 1.01] == []
    assert answer["peers"] == 8
    assert answer["tokens_per_day"] > 0
    assert {one["name"] for one in answer["alternatives"]} >= {"hivemind-style averaging", "hub (one merging peer)"}
    assert set(answer["captured"]) == {"third", "half"}
    assert len(answer["recommended"]["reasons"]) == 7
    assert answer == found(f"swarm {plan}")


def test_swarm_to_read(plan, tmp_path) -> None:
    page = tmp_path / "plot.html"
    text = run(f"swarm {plan} --plot {page}")
    words = ("8 peers", "as configured", "recommended", "tokens per day", "round_seconds =", "to be trusted")
    assert [word for word in words if word not in text] == []
    assert "useful share of compute" in page.read_text()


def test_swarm_over_line_speeds() -> None:
    line = f"swarm {PLANS / 'shaped.toml'} --mbit 100,20"
    assert [row["mbit_per_second"] for row in json.loads(run(f"{line} --json"))] == [100, 20]
    assert run(line).count("\n") == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("peers = 3", "peers is not a known key"),
        ("seed = 1", "either .swarm. or .local."),
        (SMALL + "up_mbit = 0.0", "swarm.up_mbit"),
        (SMALL + "preset = 'moon'", "swarm.preset"),
        ("group_max = 99\n" + SMALL, "group_max"),
        ("run = 'nowhere.toml'\n" + SMALL, "there is no file at"),
        ("pace = {fragments = 0}\n" + SMALL, "pace.fragments.*docs/reference/config.md"),
        ("no toml", "not valid TOML"),
        ("[local]\npeers = 2\nstep_seconds = 1.0\nchaos = 'nowhere.toml'", "there is no plan at"),
    ],
)
def test_a_plan_that_is_none_is_the_users(tmp_path, text, words) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        run(f"swarm {path}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nowhere.toml", "there is no file at"),
        (f"{PLANS / 'homes.toml'} --mbit 20", "for plans with .local."),
        (f"{PLANS / 'shaped.toml'} --mbit fast", "no list of line speeds"),
        (f"{PLANS / 'shaped.toml'} --plot plot.pdf", ".html or a .png"),
        (f"{PLANS / 'shaped.toml'} --mbit 100 --plot plot.html", "leave out one of them"),
    ],
)
def test_a_question_that_is_none_is_the_users(line, words) -> None:
    with pytest.raises(UsageError, match=words):
        run(f"swarm {line}")


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_computed(monkeypatch) -> None:
    monkeypatch.setattr("peer.plan.swarm_report.report_of", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr("peer.plan.tables.availability_tables", lambda *_: pytest.fail("computed"))
    for line in (f"swarm {PLANS / 'shaped.toml'} --plot plot.pdf", "goodput --paper-table 4 --plot plot.pdf"):
        with pytest.raises(UsageError, match=r"\.html or a \.png"):
            run(line)


@pytest.mark.parametrize("command", ["goodput", "bandwidth"])
def test_a_plot_of_no_table_is_refused(command) -> None:
    with pytest.raises(UsageError, match="name it with --paper-table"):
        run(f"{command} --plot plot.html")


def test_numbers_that_cannot_be_are_the_users() -> None:
    with pytest.raises(UsageError, match="quorum"):
        run("goodput --quorum 9 --learners 8")


def test_a_run_of_any_family_can_be_planned(tmp_path: Path) -> None:
    """Before, only a plain Llama's parameters could be counted: all others ended in "a bug in Muster (ValueError)"."""
    (tmp_path / "run.toml").write_text('[model]\nfamily = "gpt2"\nhidden_size = 32\nlayers = 1\nheads = 2\n')
    plan = (PLANS / "homes.toml").read_text().replace("parameters = 1e9", 'run = "run.toml"')
    plan = plan.replace("peers = 40", "peers = 6")
    (tmp_path / "plan.toml").write_text(plan)
    assert run(f"swarm {tmp_path / 'plan.toml'}")
