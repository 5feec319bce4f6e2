"""Other minor versions: the models that may grow, and the error for a run that needs a newer version."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest

from coordinator.run.compatibility import OURS, read_manifest
from coordinator.run.manifest import Manifest, RunConfig, run_id_of
from dht.errors import PeerError, UsageError
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire
from tests.coordinator.builders import Club
from tests.coordinator.fixed_fields import FIXED_FIELDS

WHAT_TO_DO = (
    "{name} is encoded anew and hashed, so peers of earlier minor versions would come to other bytes: make the new "
    "field the last one, of a type that may be None, None by default, with OMITS_NONE; let it say something only in "
    "runs whose manifest has protocol_minor_min; then add it here (CONTRIBUTING.md, Changing what is sent)"
)
MANIFEST = Club.of(3).manifest


@pytest.mark.parametrize("model", list(FIXED_FIELDS), ids=lambda model: model.__name__)
def test_a_rehashed_model_has_the_fields_that_it_had(model: type[Wire]) -> None:
    assert " ".join(model.model_fields) == FIXED_FIELDS[model], WHAT_TO_DO.format(name=model.__name__)


def models_in(annotation: Any) -> set[type[Wire]]:
    """Return every model that a field's type names."""
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return {annotation}
    return {model for inner in get_args(annotation) for model in models_in(inner)}


@pytest.mark.parametrize("model", list(FIXED_FIELDS), ids=lambda model: model.__name__)
def test_models_inside_of_it_are_fixed_too(model: type[Wire]) -> None:
    inside = {one for field in model.model_fields.values() for one in models_in(field.annotation)}
    assert inside <= FIXED_FIELDS.keys()


def test_a_manifest_of_ours_is_read() -> None:
    assert read_manifest(MANIFEST.to_wire(), MANIFEST.run_id) == MANIFEST


def test_a_run_with_an_adoption_of_the_lab_is_refused_in_a_sentence() -> None:
    config = MANIFEST.config
    lab = config.model_copy(update={"outer": config.outer.model_copy(update={"adoption": "overwrite"})})
    manifest = MANIFEST.model_copy(update={"config": lab})
    with pytest.raises(
        UsageError, match=r"manifest: outer\.adoption = 'overwrite' is for `muster lab --adoption` only"
    ):
        read_manifest(manifest.to_wire(), manifest.run_id)


def test_bytes_of_another_run_are_nobodys_manifest() -> None:
    for data in (MANIFEST.model_copy(update={"created_unix_seconds": 1}).to_wire(), b"", b"\xc1"):
        with pytest.raises(PeerError, match="of another run"):
            read_manifest(data, MANIFEST.run_id)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"protocol_minor_min": PROTOCOL_MINOR + 1},
            f"this run needs protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR + 1}, and this is a muster of protocol {OURS}; "
            "install a newer version",
        ),
        (
            {"protocol_major": 7},
            f"this run speaks protocol 7, and this is a muster of protocol {OURS}; install a version with protocol 7",
        ),
    ],
    ids=["minor", "major"],
)
@pytest.mark.parametrize("known", [True, False], ids=["known words", "new words"])
def test_a_run_that_is_beyond_us_is_told_in_a_sentence(changes: dict[str, int], sentence: str, known: bool) -> None:
    """This holds even if the rest of its manifest makes no sense to us."""
    plain = list(msgpack.unpackb(MANIFEST.model_copy(update=changes).to_wire(), use_list=True))
    if not known:
        plain[0] = "described otherwise"
        plain.append("something new")
    data = msgpack.packb(plain)
    with pytest.raises(UsageError) as told:
        read_manifest(data, run_id_of(data))
    assert str(told.value) == sentence


def test_a_manifest_that_says_more_than_we_know_is_not_half_obeyed() -> None:
    """Its run id would differ from that of the manifest as we read it."""
    plain = msgpack.unpackb(MANIFEST.to_wire(), use_list=True)
    left_out = [None] * (len(RunConfig.model_fields) - len(plain[0]))
    for grown in ([*plain, 1], [[*plain[0], *left_out, 1], *plain[1:]]):
        data = msgpack.packb(grown)
        assert Manifest.from_wire(data) == MANIFEST
        with pytest.raises(UsageError, match=f"a muster of protocol {OURS} does not know; install a newer version"):
            read_manifest(data, run_id_of(data))


def test_a_run_asks_for_no_more_than_it_needs() -> None:
    """A new run is open to all minor versions unless its manifest has fields that some of them do not know."""
    assert MANIFEST.protocol_minor_min == 0
