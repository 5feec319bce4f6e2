"""The states and steps that a peer still keeps for others, and where they are stored."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.identity import PeerId
from peer.numerics.outer_optimizer import OuterState, SpentMomentum
from peer.storage.anchors import Anchors, genesis_state, genesis_states, layouts_of
from peer.storage.spill_files import RESERVE_BYTES, SpillFiles

MODEL = ModelSpec(hidden_size=16, layers=1, heads=2, intermediate_size=16)
CONFIG = RunConfig(model=MODEL, pace=PaceSpec(fragments=2, overlap=1))
ASKER = PeerId("asker")


def moved(state: OuterState, way: float) -> OuterState:
    return OuterState(state.anchor + way, state.momentum)


def installed(anchors: Anchors, versions: int, step_bytes: int = 0) -> list[OuterState]:
    """Install so many versions of fragment 0, named by their numbers, and return their states."""
    first = anchors.current(0)
    states = [moved(first, float(version)) for version in range(versions)]
    for version, state in enumerate(states):
        anchors.install(0, bytes([version]), state, bytes([version]) * step_bytes)
    return states


def anchors_in(folder: Path, config: RunConfig = CONFIG) -> Anchors:
    return Anchors(layouts_of(config), genesis_states(config), SpillFiles(folder), older_kept=1)


def test_the_newest_and_what_gave_way_last_are_served(tmp_path: Path) -> None:
    anchors = anchors_in(tmp_path)
    states = installed(anchors, 3)
    assert anchors.served(0, b"\x02") is states[2] is anchors.current(0)
    assert anchors.served(0, b"\x01") is states[1]
    assert anchors.served(0, b"\x00") is None
    anchors.install(1, b"other", anchors.current(1))
    anchors.install(1, b"another", anchors.current(1))
    assert anchors.served(0, b"\x01") is None, "of all fragments together"
    assert anchors.all_newest() == [b"\x02", b"another"]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_a_state_that_others_fetch_stays_on_disk(tmp_path: Path, momentum: float) -> None:
    config = CONFIG.model_copy(update={"outer": OuterSpec(momentum=momentum)})
    anchors = anchors_in(tmp_path, config)
    first = moved(anchors.current(0), 1.0)
    anchors.install(0, b"fetched", first)
    anchors.pins.keep(0, b"fetched", ASKER)
    installed(anchors, 4)
    kept = anchors.served(0, b"fetched")
    assert kept is not None
    assert kept is not first
    assert kept.digest == first.digest
    assert torch.equal(kept.anchor, first.anchor)
    assert list(tmp_path.iterdir()) == [], "it has no name that a crash could leave"
    anchors.pins.release(0, ASKER)
    installed(anchors, 1)
    assert anchors.served(0, b"fetched") is None


def test_steps_beyond_a_few_stay_only_while_somebody_fetches(tmp_path: Path) -> None:
    anchors = anchors_in(tmp_path)
    elements = anchors.layouts[0].elements
    installed(anchors, 6, step_bytes=elements)
    assert [bool(anchors.step(0, bytes([version]))) for version in range(6)] == [False] * 4 + [True] * 2
    anchors.pins.keep(0, b"\x05", ASKER)
    installed(anchors, 6, step_bytes=elements)
    found = [bytes(anchors.step(0, bytes([version]))) for version in range(6)]
    whole = [b"", b"", *(bytes([version]) * elements for version in range(2, 6))]
    assert found == whole, "until they are more than a state"


def test_a_disk_that_is_nearly_full_keeps_nothing_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, RESERVE_BYTES))
    assert SpillFiles(tmp_path).spill(b"some") is None
    assert SpillFiles(tmp_path / "missing").spill(b"") is None


def test_steps_that_may_not_be_written_are_dropped_unless_others_fetch_them(tmp_path: Path) -> None:
    anchors = anchors_in(tmp_path)
    elements = anchors.layouts[0].elements
    assert anchors.spill_files is not None
    anchors.spill_files.allow(elements)
    installed(anchors, 4, step_bytes=elements)
    assert [bool(anchors.step(0, bytes([version]))) for version in range(4)] == [True, False, False, True]
    anchors.pins.keep(0, b"\x03", ASKER)
    installed(anchors, 4, step_bytes=elements)
    assert all(anchors.step(0, bytes([version])) for version in range(1, 4))
    assert anchors.served(0, b"\x03") is not None
    assert anchors.spill_files.overdrawn_bytes > 0
    anchors.spill_files.allow(0)
    assert anchors.spill_files.overdrawn_bytes == 0


def test_spilled_bytes_are_the_same_and_gone_with_their_last_user(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    before = len(os.listdir("/proc/self/fd"))
    spilled = SpillFiles(tmp_path).spill(data)
    assert spilled is not None
    assert bytes(spilled) == data
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the mapping keeps one of its own"
    assert list(tmp_path.iterdir()) == []
    del spilled
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fragment_alone_is_drawn_as_with_all_others() -> None:
    for layout, state in zip(layouts_of(CONFIG), genesis_states(CONFIG), strict=True):
        assert torch.equal(genesis_state(CONFIG, layout).anchor, state.anchor)
        assert isinstance(state.momentum, SpentMomentum)
