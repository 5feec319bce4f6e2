"""Building a peer before it runs."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.run.adapter_spec import AdapterSpec, BaseTensor
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import Manifest, PaceSpec, RunConfig, TrustSpec
from coordinator.run.model_spec import TENSORS_MAX, ModelSpec
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from dht.statement import digest_of
from peer.export.options import ExportOptions
from peer.export.writer import write_export
from peer.learner.attached import AttachedSession
from peer.model.description import OWN_DATA, Description
from peer.node import build
from peer.node.build import check_founders, check_frozen, make_manifest, own_data_digest
from peer.node.options import NodeOptions
from peer.numerics.golden import GOLDEN, self_check
from peer.storage.earlier_run import earlier_run
from peer.storage.run_directory import MANIFEST_FILE, RunDirectory
from tests.peer import exporting

HOST = Identity(digest_of(b"host"))


def test_a_machine_that_computes_other_bytes_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(GOLDEN))
    monkeypatch.setattr(build, "self_check", lambda: self_check({**GOLDEN, name: "0" * 64}))
    with pytest.raises(LocalError, match=f"other bytes than the run expects in: {name}; it cannot take part"):
        build.prepare(NodeOptions(tmp_path / "data"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert build.prepare(NodeOptions(tmp_path / "data")).peer_id


def test_a_name_in_another_encoding_is_told_without_what_cannot_be_sent(tmp_path: Path) -> None:
    """As from a terminal in Latin-1: Python keeps such a byte as half a character."""
    options = NodeOptions(tmp_path, name="jos\udce9", team="\udcff")
    assert (options.name, options.team) == ("jos ", " ")
    assert NodeOptions(tmp_path, name="José").name == "José"


def test_a_run_that_bounds_newcomers_names_who_trains_first() -> None:
    bounded = RunConfig(pace=PaceSpec(min_group=3), trust=TrustSpec(newcomers_share=0.25))
    check_founders(bounded, {"one", "two", "three"})
    with pytest.raises(UsageError, match=r"2 of at least 3 .* --founder"):
        check_founders(bounded, {"one", "two"})
    check_founders(RunConfig(), set())


def test_a_host_begins_anew_where_its_manifest_is_damaged(tmp_path: Path) -> None:
    config = RunConfig(model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16))
    described, options = Description(config), NodeOptions(tmp_path)
    first = make_manifest(described, OWN_DATA, options, HOST.peer_id)
    directory = RunDirectory(tmp_path, first.run_id)
    directory.keep_manifest(first)
    assert make_manifest(described, OWN_DATA, options, HOST.peer_id) == first
    (directory.path / MANIFEST_FILE).write_bytes(b"")
    assert make_manifest(described, OWN_DATA, options, HOST.peer_id).config == first.config


def test_a_new_run_takes_invites_and_one_of_an_earlier_version_stays_open(tmp_path: Path) -> None:
    config = RunConfig(model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16))
    described, options = Description(config), NodeOptions(tmp_path)
    first = make_manifest(described, OWN_DATA, options, HOST.peer_id)
    assert first.config.admission == AdmissionSpec(mode="invite")
    earlier = first.model_copy(update={"config": config})
    RunDirectory(tmp_path, earlier.run_id).keep_manifest(earlier)
    assert make_manifest(described, OWN_DATA, options, HOST.peer_id) == earlier
    listed = Description(config.model_copy(update={"admission": AdmissionSpec(mode="list")}))
    assert make_manifest(listed, OWN_DATA, options, HOST.peer_id).config.admission == AdmissionSpec(mode="list")


def _too_many(config: RunConfig) -> RunConfig:
    base = tuple(BaseTensor(name=f"t{number}", sha256="0" * 64) for number in range(TENSORS_MAX + 1))
    return config.model_copy(update={"adapter": AdapterSpec().model_copy(update={"base": base})})


def _too_long(config: RunConfig) -> RunConfig:
    base = tuple(BaseTensor(name=f"t{number}".ljust(200, "x"), sha256="0" * 64) for number in range(TENSORS_MAX))
    return config.model_copy(update={"adapter": AdapterSpec(base=base)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_too_many, "at most 4096 items"),
        (_too_long, "over the limit of 524288"),
    ],
)
def test_a_manifest_that_no_peer_could_read_is_not_made(
    change: Callable[[RunConfig], RunConfig], words: str, tmp_path: Path
) -> None:
    config = RunConfig(model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16))
    with pytest.raises(UsageError, match=f"other peers could not.*{words}"):
        make_manifest(Description(change(config)), OWN_DATA, NodeOptions(tmp_path), HOST.peer_id)
    assert not list(tmp_path.iterdir())


def test_a_changed_run_file_begins_a_new_run_and_says_how_to_go_on_with_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    clock = itertools.count(1_000_000)
    monkeypatch.setattr(build, "unix_seconds", lambda: next(clock))
    options = NodeOptions(tmp_path, tell=lambda line, _: told.append(line))

    def host(config: RunConfig) -> Manifest:
        run = make_manifest(Description(config), OWN_DATA, options, HOST.peer_id)
        RunDirectory(tmp_path, run.run_id).keep_manifest(run)
        return run

    model = ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16)
    config = RunConfig(name="ours", versions=40, model=model)
    first = host(config)
    assert host(config) == first
    assert host(config.model_copy(update={"name": "another"})) != first
    assert told == [], "the same run, and one of another name"
    longer = config.model_copy(update={"versions": 80, "inner": InnerSpec(learning_rate=0.01, momentum=0.5)})
    second = host(longer)
    folder = RunDirectory(tmp_path, first.run_id).path
    assert told.pop() == (
        f"this begins a new run; the last one called ours, {first.run_id.hex()[:12]}, stays in {folder}: "
        "to go on with it, set versions = 40, set inner.learning_rate = 0.003, leave out inner.momentum"
    )
    assert (host(longer), host(config), told) == (second, first, [])
    given = longer.model_copy(update={"model": model.model_copy(update={"weights": "given"})})
    assert earlier_run([second], given, HOST.peer_id) is None, "it goes on from weights, as with --continue"
    host(longer.model_copy(update={"data": DataSpec(source="text", tokenizer_sha256="ab" * 32)}))
    assert told.pop().endswith('to go on with it, set data.source = "stdlib"')
    host(longer.model_copy(update={"data": DataSpec(source="text", tokenizer_sha256="cd" * 32)}))
    assert told.pop().endswith("to go on with it, bring back its files as they were")


def test_a_run_does_not_begin_whose_exports_would_mix_with_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "load_described", lambda *_: None)
    model = ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16)
    options = NodeOptions(tmp_path / "data", export=ExportOptions(tmp_path / "models"))
    described = Description(RunConfig(model=model))
    build.make_run(described, options, HOST.peer_id)
    exported = exporting.CertifiedRun().advance().exported()
    (tmp_path / "models").mkdir()
    write_export(tmp_path / "models" / "version-000000002", exported, exporting.KEYS[0], exporting.WRITTEN)
    with pytest.raises(UsageError, match="holds exports of another run"):
        build.make_run(described, options, HOST.peer_id)


def test_a_host_whose_text_has_changed_does_not_go_on_with_its_run(tmp_path: Path) -> None:
    """Before, it continued under the same run id with other held-out text, so its losses were not comparable."""
    model = ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16)
    options, before, after = NodeOptions(tmp_path), digest_of(b"text"), digest_of(b"other text")
    for data, advice in (
        (DataSpec(source="text", path="a.txt"), "bring back the files"),
        (DataSpec(source="hub", path="some/data", revision="c0ffee0"), r'data\.revision = "c0ffee0"'),
    ):
        described = Description(RunConfig(model=model, data=data))
        run = make_manifest(described, before, options, HOST.peer_id)
        RunDirectory(tmp_path, run.run_id).keep_manifest(run)
        assert make_manifest(described, before, options, HOST.peer_id) == run
        with pytest.raises(UsageError, match=f"your text has changed since the run .* began with it: {advice}"):
            make_manifest(described, after, options, HOST.peer_id)
    library = Description(RunConfig(model=model))  # its digest changes with every update of Python
    run = make_manifest(library, before, options, HOST.peer_id)
    RunDirectory(tmp_path, run.run_id).keep_manifest(run)
    assert make_manifest(library, after, options, HOST.peer_id) == run


def test_a_session_over_another_base_is_refused() -> None:
    """Before, two LoRA sessions over different frozen bases trained together without any warning."""
    with socket.socket() as one:
        bases = [
            NodeOptions(Path(), session=AttachedSession(one, -1, frozen)) for frozen in (b"one base", b"another", b"")
        ]
        digests = [own_data_digest(options) for options in bases]
        assert len(set(digests)) == 3
        assert digests[2] == own_data_digest(NodeOptions(Path()))
        run = exporting.CertifiedRun().manifest.model_copy(update={"data_digest": digests[0]})
        check_frozen(run, bases[0])
        for options in bases[1:]:
            with pytest.raises(UsageError, match="that are not trained have other values"):
                check_frozen(run, options)
        for options in bases:  # a run begun by `muster host` has no frozen part
            check_frozen(run.model_copy(update={"data_digest": digests[2]}), options)
