"""Manifests (design §8 protocol versions): errors that say what to do, and a run id that covers every field."""

from __future__ import annotations

import tomllib
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import BY_HOST, RETIRED
from dht.errors import PeerError, UsageError
from dht.identity import Identity
from tests.checkout import ROOT
from tests.coordinator.builders import Club, digest

TINY = ROOT / "examples" / "tiny.toml"
CLUB = Club.of(2)
MANIFEST = CLUB.manifest
VOTED = OuterSpec(merge="vote", merge_package="votes==1.0")

toml_text = st.text(alphabet=st.sampled_from("abpace=[]{}.\"'\n 0123456789_-+eT:,#"), max_size=60)


def error_of(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        RunConfig.parse(text, "run.toml")
    return str(caught.value)


# -- run files


def test_the_example_is_a_run():
    config = RunConfig.from_toml(TINY)
    assert config.name == "tiny"
    assert config.tokens_per_step == config.data.context_tokens * config.data.sequences_per_step


def test_the_example_names_every_key():
    """People copy it, so it has every key that can be set."""

    def keys(model: BaseModel) -> dict[str, object]:
        fields = type(model).model_fields.items()
        values = {
            name: getattr(model, name) for name, field in fields if field.json_schema_extra not in (BY_HOST, RETIRED)
        }
        shown = {name: field.get("default") for name, field in type(model).model_json_schema()["properties"].items()}
        values = {name: shown[name] if value is None else value for name, value in values.items()}
        named = {name: value for name, value in values.items() if value is not None}  # but tables for some runs only
        return {name: keys(value) if isinstance(value, BaseModel) else value for name, value in named.items()}

    assert keys(RunConfig.from_toml(TINY)) == tomllib.loads(TINY.read_text())


def test_an_empty_file_is_a_run_of_defaults():
    assert RunConfig.parse("", "run.toml") == RunConfig()


def test_a_file_of_before_that_says_0_is_the_same_run():
    """The manifest has the value in its bytes, and so in its id: the golden manifest is of such a run."""
    assert RunConfig.parse("[trust]\nscore_share = 0.0", "run.toml").to_wire() == RunConfig().to_wire()


def test_a_whole_number_will_do_where_a_fraction_may_stand():
    assert RunConfig.parse("[pace]\nround_seconds = 5", "run.toml").pace.round_seconds == 5.0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("speed = 3", ["run.toml", "speed", "is not a known key", "docs/reference/config.md"]),
        ("[pace]\nspeed = 3", ["run.toml", "pace.speed", "is not a known key"]),
        ("pace = 3", ["run.toml: pace has to be a table, not 3"]),
        ("seed = '0'", ["run.toml", "seed", "has to be a whole number, not"]),
        ("[outer]\nadoption = 'blend'", ["run.toml", "outer.adoption", "'blend'", "muster lab --adoption", "'carry'"]),
        ("[outer]\nadoption = 'overwrite'", ["run.toml", "outer.adoption", "muster lab --adoption", "'eager'"]),
        ("[trust]\nscore_share = 0.1", ["run.toml", "trust.score_share", "no scores any more", "leave it out"]),
        ("seed = 1.5", ["run.toml", "seed", "has to be a whole number, not"]),
        ("seed = true", ["run.toml", "seed", "has to be a whole number, not"]),
        ("seed = -1", ["run.toml", "seed", "has to be at least 0, not -1"]),
        ("[pace]\nmin_share = nan", ["run.toml: pace.min_share has to be a number, not nan"]),
        ("[pace]\nround_seconds = inf", ["run.toml", "pace.round_seconds"]),
        ("[outer]\nmerge = 'vote'", ["run.toml", "outer.merge", "'mean'"]),
        ("[outer]\nmerge = 'vote'", ["run.toml", "outer.merge_package"]),
        ("[outer]\nmerge_package = 'votes==1'", ["run.toml: outer.merge_package: 'robust_rda' is built in"]),
        ("[outer]\nmerge = 'vote'\nmerge_package = 'votes>=1'", ["run.toml", "outer.merge_package"]),
        ("[admission]\nmode = 'open'", ["run.toml: admission.mode", "trust.probation_rounds", "--preset public"]),
        (
            "[admission]\nmode = 'open'\n[pace]\nmin_group = 3\n[trust]\nprobation_rounds = 3\nnewcomers_share = 0.25\n"
            "network_share = 0.25\naudit_share = 0.1",
            ["run.toml: admission.mode", "pace.min_group of 4"],
        ),
        ("[outer]\nmoment_correction = 0.5", ["run.toml: outer.moment_correction needs", '"eager"']),
        (
            "[inner]\noptimizer = 'muon'\n[outer]\nadoption = 'eager'\nmoment_correction = 0.5",
            ["run.toml: outer.moment_correction needs", '"adamw8bit"'],
        ),
        ("[outer]\nadoption = 'eager'\nmoment_correction = 1.5", ["run.toml", "outer.moment_correction", "1"]),
        ("name = '../x'", ["run.toml: name cannot be '../x'; see"]),
        ("[pace]\npresence_seconds = 5.0", ["run.toml: pace.presence_lifetime_seconds must be at least"]),
        ("[model]\nhidden_size = 130", ["run.toml: model.hidden_size must be a multiple of twice model.heads"]),
        ("[model]\nhidden_size = 100\nheads = 4", ["model.hidden_size must be a multiple of twice model.heads"]),
        ("[model]\nsettings = 3", ["run.toml: model.settings has to be text in quotes, not 3"]),
        ("[model]\nsettings = '[]'", ["run.toml: model.settings must be a table"]),
        ("name = ", ["run.toml is not valid TOML", "Invalid value"]),
        ("name = evening", ["line 1", "text has to be in quotes"]),
        ('name = "a"\nname = "b"', ["a key may be there only once"]),
        ("[pace]\n[pace]", ["line 2", "a table may be there only once"]),
        ("[pace\n", ["run.toml is not valid TOML", "line 1"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(text, parts):
    message = error_of(text)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no run file at .*nowhere\.toml; muster init writes one"):
        RunConfig.from_toml(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"run\.toml is no text file"):
        RunConfig.from_toml(tmp_path / "run.toml")
    with pytest.raises(UsageError, match=f"^{tmp_path} is a folder; name a file$"):
        RunConfig.from_toml(tmp_path)


@given(toml_text)
@example("[pace]\nquorum = 99")
def test_whatever_the_text_it_is_a_run_or_the_users_mistake(text):
    with suppress(UsageError):
        assert isinstance(RunConfig.parse(text, "run.toml"), RunConfig)


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().pace.quorum = 1


# -- the name of a run


def leaves(model: BaseModel, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all values in a manifest."""
    found = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        found += leaves(value, (*path, name)) if isinstance(value, BaseModel) else [(*path, name)]
    return found


def changed(model: BaseModel, path: tuple[str, ...]) -> BaseModel:
    """Return the model with another value at this path, valid or not."""
    name, rest = path[0], path[1:]
    value = getattr(model, name)
    if rest:
        other: object = changed(value, rest)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value + 1
    elif isinstance(value, tuple):
        other = value[:-1] if value else (0,)
    else:
        other = value + value[:1] if value else "x"
    return model.model_copy(update={name: other})


@pytest.mark.parametrize("path", leaves(MANIFEST), ids=".".join)
def test_the_run_id_covers_every_field(path):
    assert changed(MANIFEST, path).run_id != MANIFEST.run_id  # type: ignore[attr-defined]


def test_equal_manifests_have_equal_names():
    assert Manifest.from_wire(MANIFEST.to_wire()).run_id == MANIFEST.run_id
    assert MANIFEST.founder_ids == set(CLUB.ids)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"genesis": (digest(0),)}, "one digest per fragment"),
        ({"founders": (CLUB.ids[0], CLUB.ids[0])}, "founders must be distinct"),
        ({"founders": ()}, "at least 1 item"),
        ({"founders": tuple(Identity(bytes([n]) * 32).peer_id for n in range(33))}, "at most 32 items"),
        ({"data_digest": b"short"}, "at least 32 bytes"),
        ({"organiser": "nobody"}, "at least 40 characters"),
        ({"created_unix_seconds": -1}, "greater than or equal to 0"),
        ({"config": RunConfig(outer=VOTED, pace=MANIFEST.config.pace)}, "outer.merge_sha256 must say"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(changes, reason):
    fields = {name: getattr(MANIFEST, name) for name in Manifest.model_fields}
    with pytest.raises(ValidationError, match=reason):
        Manifest(**(fields | changes))
    with pytest.raises(PeerError):
        Manifest.from_wire(MANIFEST.model_copy(update=changes).to_wire())


def test_a_run_without_a_rule_of_a_package_says_nothing_of_one():
    assert OuterSpec(merge_package="") == OuterSpec()
    assert b"==" not in OuterSpec().to_wire()
    voted = VOTED.model_copy(update={"merge_sha256": "ab" * 32})
    assert OuterSpec.from_wire(voted.to_wire()) == voted
    assert len(OuterSpec().to_wire()) < len(VOTED.to_wire()) < len(voted.to_wire())


def test_presence_must_outlive_a_lost_record():
    assert PaceSpec(presence_seconds=3.0, presence_lifetime_seconds=6.0)
    with pytest.raises(ValidationError, match="at least twice"):
        PaceSpec(presence_seconds=3.0, presence_lifetime_seconds=5.9)
