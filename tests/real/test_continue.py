"""A host that continues an export: learners get its weights, and certify versions of a new run."""

from __future__ import annotations

import pytest

from coordinator.run.manifest import PaceSpec
from peer.storage.run_directory import known_manifests
from tests.peer.exporting import CONFIG, CertifiedRun
from tests.real.conftest import WAIT_SECONDS, Machines, invite_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(300)]

MORE_VERSIONS = 8


def test_learners_go_on_from_an_export(machines: Machines) -> None:
    pace = PaceSpec(fragments=2, steps_per_version=4, min_group=2, quorum=2)
    before = CertifiedRun(CONFIG.model_copy(update={"pace": pace, "versions": 6})).advance(3)
    export = before.write(machines.folder / "export")
    host = machines.peer("host", "host", "--continue", str(export), "--versions", f"+{MORE_VERSIONS}")
    machines.wait(host, lambda now: now.state == "hosting")
    invite = invite_of(host)
    for name in ("ann", "bob"):
        machines.learner(name, invite)
    for name, process in machines.processes.items():  # each ends by itself once the run is over
        assert process.wait(WAIT_SECONDS) == 0, machines.said(name)
        assert "the run is over" in machines.said(name)
    (after,) = known_manifests(host)
    assert after.run_id != before.manifest.run_id
    assert after.config.versions == MORE_VERSIONS
    assert (after.config.name, after.config.data, after.config.pace) == (CONFIG.name, CONFIG.data, pace)
