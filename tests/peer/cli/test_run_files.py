"""`muster init` and `muster check`: run files to begin from, and the resources that they take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.run.changes import parse_settings, with_changes
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.cli.check import FREE_SHARE, Needs, findings
from peer.cli.presets import PRESETS, init, preset_text
from peer.cli.terms import upload_bytes_per_version
from peer.learner.memory_estimate import least_bytes
from peer.model.sketch import with_shapes
from peer.plan.swarm_plan import LocalPart, PlanFile
from peer.plan.swarm_report import report_of


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_run_file_with_comments(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    init(file, name)
    assert RunConfig.from_toml(file) == RunConfig.parse(preset_text(name), name)
    assert "#" in file.read_text(encoding="utf-8")


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists already; name another file"):
        init(file, "tiny")
    assert file.read_text(encoding="utf-8") == "mine"


def test_an_unknown_preset_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of tiny"):
        init(tmp_path / "run.toml", "huge")


def test_the_line_that_a_run_needs_follows_from_its_traffic() -> None:
    config = RunConfig.parse(preset_text("tiny"), "tiny")
    shown = findings(config, Path("run.toml"), step_seconds=2.0)
    mbit = 3 * 8 * upload_bytes_per_version(config) / (config.pace.steps_per_version * 2.0) / 1e6
    assert f"{mbit:.2g} Mbit/s each way" in shown


@pytest.mark.parametrize("preset", ["tiny", "gpt2-124m"])
def test_its_traffic_is_what_the_planner_says_of_machines_that_never_leave(tmp_path: Path, preset: str) -> None:
    (tmp_path / "run.toml").write_text(preset_text(preset), encoding="utf-8")
    config, members = with_shapes(RunConfig.parse(preset_text(preset), preset)), 4
    plan = PlanFile(run="run.toml", hours=0.5, local=LocalPart(peers=members, step_seconds=2.0))
    planned = report_of(plan, tmp_path / "plan.toml").configured.bytes_sent_per_peer_day
    in_group = upload_bytes_per_version(config, members) / upload_bytes_per_version(config)
    assert planned == pytest.approx(Needs.of(config, 2.0).upload_bytes_per_day * in_group, rel=0.01)
    assert "for a machine that is on all day" in findings(config, Path("run.toml"), step_seconds=2.0)


def test_an_organiser_is_told_which_machines_can_join() -> None:
    for width, layers in ((768, 12), (2048, 22), (8192, 80)):
        text = f"[model]\nhidden_size = {width}\nlayers = {layers}\nheads = 8\nintermediate_size = {3 * width}"
        config = RunConfig.parse(text, "run.toml")
        shown = findings(config, Path("run.toml"), step_seconds=1.0)
        told = re.search(
            r"can join  a machine whose GPU has \D+(\d+) GB, with \D+(\d+) GB of RAM\n"
            r" +or a machine without a GPU, with \D+(\d+) GB of RAM\n +each with .+ of disk, and .+ Mbit/s each way\n",
            shown,
        )
        assert told is not None
        card, ram, without = told.groups()
        if width < 8192:
            assert int(card) / 2 < least_bytes(config) / (1 << 30) / FREE_SHARE <= int(card) or card == "4"
            assert int(ram) <= int(without)
        else:
            assert "whose GPU has more than 80 GB" in shown


def test_an_embedding_that_makes_fragments_uneven_is_told() -> None:
    text = "[model]\nhidden_size = 64\nlayers = 2\nheads = 2\nintermediate_size = 128\nvocabulary = 50000\n[pace]\n"
    shown, even = (
        findings(RunConfig.parse(text + more, "run.toml"), Path("run.toml"), step_seconds=1.0)
        for more in ("", "cut_embeddings = true")
    )
    assert "pace.cut_embeddings = true takes" in shown
    assert "advice" not in even
    assert "advice" not in findings(RunConfig.parse(preset_text("tiny"), "tiny"), Path("x"), step_seconds=1.0)


@pytest.mark.parametrize(
    ("width", "optimizer", "rate", "advised"),
    [
        (128, "muon8bit", 1.5e-2, None),
        (512, "muon8bit", 1.5e-2, None),
        (2048, "muon8bit", 1.5e-2, "0.004"),
        (2048, "muon8bit", 3e-3, None),
        (2048, "adamw8bit", 3e-3, "0.001"),
        (2048, "lion8bit", 1.5e-2, None),
    ],
)
def test_a_rate_that_suits_a_smaller_model_is_warned_of(
    width: int, optimizer: str, rate: float, advised: str | None
) -> None:
    text = f'[model]\nhidden_size = {width}\n[inner]\noptimizer = "{optimizer}"\nlearning_rate = {rate}'
    shown = findings(RunConfig.parse(text, "run.toml"), Path("run.toml"), step_seconds=1.0)
    warned = f"learning_rate = {rate:g} suits a smaller model; for {width} wide, begin with {advised}"
    assert (warned in shown) == (advised is not None)
    assert ("warning" in shown) == (advised is not None)


def test_keys_may_be_called_as_the_options_of_the_lab() -> None:
    config = RunConfig.parse("[pace]\nperiod = 9\ngrace = 0.25", "run.toml")
    assert (config.pace.steps_per_version, config.pace.grace_share) == (9, 0.25)
    changed = with_changes(config, parse_settings(["pace.period=7", "inner.momentum=0.5"]))
    assert (changed.pace.steps_per_version, changed.inner.momentum) == (7, 0.5)
    with pytest.raises(UsageError, match=r"pace\.period is not a known key"):
        RunConfig.parse("[pace]\nperiod = 9\nsteps_per_version = 8", "run.toml")


def test_a_key_of_a_table_that_the_run_file_leaves_out_is_set() -> None:
    listed = with_changes(RunConfig(), parse_settings(["admission.mode=list", "about.title=ours"]))
    assert listed.admission is not None
    assert listed.about is not None
    assert (listed.admission.mode, listed.about.title) == ("list", "ours")
    with pytest.raises(UsageError, match=r"needs trust\.probation_rounds"):
        with_changes(RunConfig(), parse_settings(["admission.mode=open"]))


@pytest.mark.parametrize("title", ["2026-11-30", "2026-11-30T10:00:00Z", "10:00:00", "2026-11-30 10:00:00", "9" * 5000])
def test_a_value_that_only_toml_has_is_set_as_it_was_typed(title: str) -> None:
    if title.isdecimal():
        assert parse_settings([f"about.title={title}"]) == {"about.title": title}
        return
    set_to = with_changes(RunConfig(), parse_settings([f"about.title={title}"]))
    assert set_to.about is not None
    assert set_to.about.title == title


@pytest.mark.parametrize("value", ["{title = 2026-11-30}", "[2026-11-30]", "[" * 5000])
def test_a_table_or_a_list_of_dates_is_refused_in_words(value: str) -> None:
    with pytest.raises(UsageError, match="about has to be a table"):
        with_changes(RunConfig(), parse_settings([f"about={value}"]))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[model]\nhiden_size = 8", "model.hiden_size is not a known key (did you mean hidden_size?)"),
        ("versons = 8", "versons is not a known key (did you mean versions?)"),
        ("[pace]\nfragmets = 8", "pace.fragmets is not a known key (did you mean fragments?)"),
        ("[inner]\nlearning_rat = 8", "inner.learning_rat is not a known key (did you mean learning_rate?)"),
        ("[data]\nqqqq = 8", "data.qqqq is not a known key; see"),
    ],
)
def test_a_misspelt_key_is_told_with_the_nearest(text: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig.parse(text, "run.toml")
    assert meant in str(caught.value)
