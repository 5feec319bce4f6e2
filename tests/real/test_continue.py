"""A host that goes on from an export: learners get its weights, and certify versions of a new run."""

from __future__ import annotations

import pytest

from coordinator.run.manifest import PaceSpec
from peer.storage.run_directory import known_manifests
from tests.peer.exporting import CONFIG, CertifiedRun
from tests.real.conftest import Machines, invite_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(300)]

MORE_VERSIONS = 8


def test_learners_go_on_from_an_export(machines: Machines) -> None:
    pace = PaceSpec(fragments=2, steps_per_version=4, min_group=2, quorum=2)
    before = CertifiedRun(CONFIG.model_copy(update={"pace": pace, "versions": 6})).advance(3)
    export = before.write(machines.folder / "export")
    host = machines.peer("host", "host", "--continue", str(export), "--versions", f"+{MORE_VERSIONS}")
    machines.wait(host, lambda now: now.state == "hosting")
    invite = invite_of(host)
    learners = [machines.learner(name, invite) for name in ("ann", "bob")]
    for one in (host, *learners):
        machines.wait(one, lambda now: now.state == "finished")
    (after,) = known_manifests(host)
    assert after.run_id != before.manifest.run_id
    assert after.config.versions == MORE_VERSIONS
    assert (after.config.name, after.config.data, after.config.pace) == (CONFIG.name, CONFIG.data, pace)
