"""The settings a learner is started with, which include what its owner set for this machine."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from coordinator.run.manifest import Manifest, RunConfig
from dht.errors import UsageError
from dht.units import GIGABYTE_BYTES
from peer.learner.client import LearnerClient
from peer.learner.memory_estimate import RUNTIME_BYTES, least_bytes
from peer.learner.messages import Start
from peer.learner.spawn import LearnerSpawn
from peer.learner.work_counters import LearnerProgress
from peer.machine.limits import Limits
from peer.machine.local_files import LocalFiles
from peer.model.description import describe
from peer.node.learner_start import learner_bytes, start_learner
from peer.node.options import NodeOptions
from tests.peer.adapting import adapter_run, write_base
from tests.peer.exporting import KEYS


class StartedError(Exception):
    """Raised where the learner process would be started, as the tests go no further."""


def test_the_owner_says_where_the_base_is_and_how_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base")
    config = describe(adapter_run(base, base_precision="any")).config
    peer = KEYS[0].peer_id
    manifest = Manifest(
        config=config,
        organiser=peer,
        founders=(peer,),
        data_digest=bytes(32),
        genesis=(bytes(32),) * config.pace.fragments,
        created_unix_seconds=0,
    )
    told: list[Start] = []

    async def start(message: Start, *_: object) -> None:
        told.append(message)
        raise StartedError

    monkeypatch.setattr(LearnerClient, "start", start)
    monkeypatch.setattr(LearnerSpawn, "begin", lambda *_: None)
    options = NodeOptions(tmp_path, files=LocalFiles(base=str(base), base_precision="float32"))
    with pytest.raises(StartedError):
        asyncio.run(start_learner(manifest, peer, options, None, LearnerProgress(), lambda *_: None))
    assert told[0].config.model.source == str(base)
    assert told[0].config.adapter is not None
    assert told[0].config.adapter.base_precision == "float32"


def test_a_limit_of_memory_that_is_too_low_names_one_that_is_not() -> None:
    config = RunConfig()
    with pytest.raises(UsageError, match="to train on the processor") as refused:
        learner_bytes(config, Limits(memory_gigabytes=0.1))
    named = re.search(r"allow at least ([\d.]+)", str(refused.value))
    assert named is not None
    left = learner_bytes(config, Limits(memory_gigabytes=float(named[1]))) - RUNTIME_BYTES
    assert 0 <= left - least_bytes(config, on_gpu=False) < GIGABYTE_BYTES / 10
