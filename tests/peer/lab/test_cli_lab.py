"""`muster lab` as people and scripts use it (design §11)."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.views.report import SwarmReport
from peer.cli.main import run
from peer.lab.recipes import RECIPES
from peer.model.families import make_module

PYTHON = (3, 11)
SMALL = """
[model]
hidden_size = 8
layers = 1
heads = 2
intermediate_size = 16
[data]
context_tokens = 16
sequences_per_step = 2
evaluation_tokens = 256
[pace]
fragments = 2
steps_per_version = 4
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def lab(config: Path, *arguments: str) -> int:
    return run(["lab", str(config), "--no-ui", "--learners", "3", "--steps", "8", *arguments], PYTHON)


def test_everything_that_a_run_leaves(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("report", "curve", "plot.html", "tape")}
    written = [part for name, path in files.items() for part in (f"--{path.stem}", str(path))]
    compared = ["--compare", "dp", "--dp-lr", "1e-3,2e-3", "--compare", "elastic", "--failures", "5:2"]
    settings = ["--merge", "rda", "--codec", "int4,int8", "--batch-tokens", "64", "--seed", "3", "--eval-every", "4"]
    assert lab(config, *written, *compared, *settings) == 0
    shown = capsys.readouterr().out
    assert "agreement" in shown
    assert "times that" in shown

    report = json.loads(files["report"].read_text())
    assert set(report) >= set(SwarmReport.model_fields)
    assert (report["seed"], report["steps"]) == (3, 8)
    dp = report["baseline"]["dp"]
    assert dp["tokens"] == 3 * 8 * 64
    assert set(dp["by_lr"]) == {"0.001", "0.002"}
    assert dp["eval_loss_last"] == min(dp["by_lr"].values()) == dp["by_lr"][f"{dp['inner_lr']:g}"]
    assert report["baseline"]["elastic"]["goodput"] < 1

    points = [json.loads(line) for line in files["curve"].read_text().splitlines()]
    assert {point["method"] for point in points} == {"decoupled", "dp", "elastic"}
    assert points == report["curve"]
    assert str(report["eval_loss_last"]) in files["plot.html"].read_text()

    assert run(["lab", "--replay", str(files["tape"])], PYTHON) == 0
    assert "bit for bit" in capsys.readouterr().out


def test_a_tape_of_a_lab_on_files_is_replayed(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, tape = tmp_path / "text.txt", tmp_path / "tape"
    text.write_text("".join(f"Line {number} of a text that somebody brought.\n" for number in range(400)))
    config.write_text(SMALL.replace("[data]", f'[data]\nsource = "text"\npath = "{text}"'))
    assert lab(config, "--tape", str(tape)) == 0
    assert run(["lab", "--replay", str(tape)], PYTHON) == 0
    assert "bit for bit" in capsys.readouterr().out


def test_options_can_stand_in_the_run_file_and_the_command_line_goes_before(config: Path, tmp_path: Path) -> None:
    written = '[lab]\nlearners = 5\nsteps = 4\neval_every = 4\nattack = ["zero:1", "nan:1"]\nreport = "{}"\n'
    config.write_text(SMALL + written.format(tmp_path / "report"))
    assert run(["lab", str(config), "--no-ui", "--learners", "4", "--attack", "nan:1"], PYTHON) == 0
    report = json.loads((tmp_path / "report").read_text())
    assert (report["peers"], report["steps"], len(report["attackers"])) == (4, 4, 1)
    assert run(["lab", str(config), "--no-ui"], PYTHON) == 0
    report = json.loads((tmp_path / "report").read_text())
    assert (report["peers"], report["steps"], len(report["attackers"])) == (5, 4, 2)


def test_any_key_of_the_run_file_can_be_set(config: Path, tmp_path: Path) -> None:
    digests = []
    settings = (["outer.learning_rate=0.5"], [], ["outer.learning_rate=0.5", "inner.schedule=linear"])
    for number, given in enumerate((["--outer-lr", "0.5"], *([f"--set={one}" for one in some] for some in settings))):
        assert lab(config, *given, "--report", str(tmp_path / str(number))) == 0
        digests.append(json.loads((tmp_path / str(number)).read_text())["state_digests"])
    assert digests[0] == digests[1]
    assert len({str(digest) for digest in digests}) == 3


def test_a_batch_keeps_its_tokens_when_the_context_is_set(config: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert lab(config, "--batch-tokens", "64", "--set", "data.context_tokens=8", "--report", str(report)) == 0
    assert json.loads(report.read_text())["tokens"] == 3 * 8 * 64


def test_versions_that_are_set_are_the_length_of_the_run(config: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert (
        run(["lab", str(config), "--no-ui", "--learners", "2", "--set", "versions=4", "--report", str(report)], PYTHON)
        == 0
    )
    assert json.loads(report.read_text())["steps"] == 4 * 4 / 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("inner.momentum", "--set 'inner.momentum' is not of the form TABLE.KEY=VALUE"),
        ("inner.momentun=0.9", "inner.momentun is not a known key"),
        ("innner.momentum=0.9", "innner.momentum is no key of a run file"),
        ("seed.more=1", "seed.more is no key of a run file"),
        ("inner.momentum=2", "inner.momentum"),
        ("inner.schedule=stepwise", "inner.schedule"),
    ],
)
def test_a_setting_that_is_no_key_of_the_run_file_is_refused_in_words(
    config: Path, capsys: pytest.CaptureFixture[str], setting: str, words: str
) -> None:
    assert lab(config, "--set", setting) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[lab]\nlerners = 5\n", "lab.lerners is no option of `muster lab` (did you mean learners?)"),
        ("[lab]\nsteps_per_version = 0\n", "pace.steps_per_version"),
        ("[lab]\nreplay = 'tape'\n", "lab.replay is no option"),
        ("[lab]\nlearners = 'many'\n", "--learners"),
        ("[lab]\nlearners = [3]\n", "learners"),
        ("[lab]\nattack = [[1]]\n", "attack"),
    ],
)
def test_a_wrong_option_in_the_run_file_is_refused_in_words(
    config: Path, capsys: pytest.CaptureFixture[str], written: str, words: str
) -> None:
    config.write_text(SMALL + written)
    assert run(["lab", str(config), "--no-ui", "--steps", "4"], PYTHON) == 2
    assert words in capsys.readouterr().err


def test_a_file_with_options_of_the_lab_describes_the_same_run(config: Path) -> None:
    before = RunConfig.from_toml(config)
    config.write_text(SMALL + "[lab]\nlearners = 5\n")
    assert RunConfig.from_toml(config) == before


def test_a_plot_can_be_a_picture(config: Path, tmp_path: Path) -> None:
    assert lab(config, "--plot", str(tmp_path / "plot.png")) == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_made_is_refused_before_anything_runs(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert lab(config, "--plot", str(tmp_path / "plot.png"), "--report", str(tmp_path / "report")) == 2
    assert "pip install vl-convert-python, or ask for .html" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [config]


def test_the_same_seed_gives_the_same_states(config: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("first", "second"):
        assert lab(config, "--report", str(tmp_path / name)) == 0
        digests.append(json.loads((tmp_path / name).read_text())["state_digests"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("options", [one for one in RECIPES.values() if one.startswith("--")])
def test_recipes_that_are_listed_can_be_run(config: Path, options: str) -> None:
    assert lab(config, *options.split()) == 0


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "--list"], PYTHON) == 0
    shown = capsys.readouterr().out
    for name in ("rda", "int4", "adamw8bit", "sign_flip", "carry", "recipe for home lines"):
        assert name in shown
    assert "sign_flip (factor=10)" in shown
    assert "zero (" not in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--learners", "0"], "learners"),
        (["--merge", "shuffle"], "outer.merge"),
        (["--codec", "zip"], "codec"),
        (["--adoption", "blend:much"], "--adoption"),
        (["--attack", "gossip:1"], "gossip"),
        (["--attack", "two_votes:0"], "is not of the form NAME:COUNT, as in two_votes:2"),
        (["--attack", "two_votes:1:factor=2"], "is not of the form NAME:COUNT, as in two_votes:2"),
        (["--attack", "two_votes+work:1"], "an attack on the protocol, with an honest learner: leave out +work"),
        (["--attack", "replay:1"], "try it with `muster swarm --attack replay:1`"),
        (["--attack", "token_lie:1:factor=-1"], "factor of the attack token_lie is at least 0, not -1"),
        (["--attack", "stale:1:rounds=-5"], "rounds of the attack stale is at least 1 and at most 64, not -5"),
        (["--attack", "backdoor:1:share=7"], "share of the attack backdoor is at least 0 and at most 1, not 7"),
        (["--attack", "ipm_optimised:1:limit=0"], "limit of the attack ipm_optimised is at least 0.001"),
        (["--attack", "alie_optimised:1:limit=-1"], "limit of the attack alie_optimised is at least 0.001"),
        (["--attack", "alie_optimised:1:limit=1e300"], "at most 1e+06, not 1e300"),
        (["--attack", "sleeper:1:every=0"], "every of the attack sleeper is at least 1, not 0"),
        (["--attack", "zero:1:factor=3"], "the attack zero has no parameter"),
        (["--attack", "zero:3"], "attackers"),
        (["--batch-tokens", "50"], "--batch-tokens"),
        (["--steps", "0"], "a lab run has 1 to 1000000 steps, not 0"),
        (["--compare", "dp", "--dp-lr", "fast"], "--dp-lr takes numbers"),
        (["--compare", "dp", "--dp-lr", "0"], "--dp-lr"),
        (["--dp-lr", "1e-3"], "--dp-lr has rates for --compare"),
        (["--compare", "elastic"], "--failures"),
        (["--failures", "often"], "--failures"),
        (["--scavenge", "1"], "--scavenge"),
        (["--partition", "1:8"], "--partition"),
        (["--own-text"], "--partition"),
        (["--speeds", "fast"], "--speeds"),
        (["--noniid", "1e-9"], "--noniid"),
        (["--fragments", "100"], "fragments"),
        (["--device", "cuda:99"], "--device cuda:99"),
        (["--device", "abacus"], "'abacus' is none"),
        (["--report", "/nowhere/report.json"], "/nowhere"),
        (["--plot", "curve.pdf"], "a plot is a .html or a .png file, not curve.pdf"),
        (["--plot", "curve"], "a plot is a .html or a .png file, not curve"),
        (["--speed-jitter", "1.5"], "--speed-jitter"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert lab(config, *arguments) == 2
    assert not list(tmp_path.glob("muster-crash-*"))
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert told in complaint


def test_a_device_must_have_room_for_those_that_scavenge_too(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = []

    def choose(wanted: str, needed_bytes: Callable[[int], int], memory_share: float) -> tuple[tuple[str, ...], str]:
        needed.append(needed_bytes(1))
        return ("cpu",), ""

    monkeypatch.setattr("peer.learner.devices.choose_devices", choose)
    assert lab(config) == lab(config, "--scavenge", "3:2:4") == 0
    assert needed[1] == 2 * needed[0] > 0


@pytest.mark.parametrize(
    "model", ['family = "gpt2"', "[model.settings]\nnum_key_value_heads = 1"], ids=["family", "settings"]
)
def test_the_lab_runs_any_family_and_settings(config: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, all but a plain Llama ended in "a bug in Muster (ValueError)", while `muster swarm` ran the same file."""
    config.write_text(SMALL.replace("[data]", f"{model}\n[data]"))
    assert lab(config) == 0
    assert "agreement" in capsys.readouterr().out


def test_the_lab_begins_from_a_folder_of_weights(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ModelSpec(family="gpt2", hidden_size=8, layers=1, heads=2, settings='{"n_positions":16}')
    torch.manual_seed(3)
    make_module(spec, 16).save_pretrained(tmp_path / "given")
    config.write_text(SMALL.replace("[data]", f'source = "{tmp_path / "given"}"\n[data]'))
    assert lab(config) == 0
    assert "agreement" in capsys.readouterr().out
