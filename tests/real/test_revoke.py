"""A real organiser removes a peer: its process ends with a sentence, it cannot come back, and the others go on."""

from __future__ import annotations

import pytest

from coordinator.views.control import members_of
from tests.real.conftest import ENDING_SECONDS, Machines, invite_of, muster, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]


def test_a_peer_is_shown_out_of_a_real_run(machines: Machines) -> None:
    host = machines.host()
    invite = invite_of(host)
    peers = [machines.learner(f"peer-{number}", invite) for number in (1, 2, 3)]
    machines.wait(host, lambda now: version_of(now) >= 2)
    out, staying = peers[0], peers[1:]
    ann = machines.id_of(out)
    assert ann in muster("revoke", ann[-10:], "--reason", "it was a test", "--data", str(host))
    assert machines.processes[out.name].wait(ENDING_SECONDS) == 2
    assert "removed by the organiser: it was a test; ask" in machines.said(out.name)
    now = max(version_of(machines.wait(peer, lambda now: True)) for peer in staying)
    for peer in staying:
        machines.wait(peer, lambda one: version_of(one) >= now + 3)
        (row,) = (one for one in members_of(peer).members if one.peer_id == ann)
        assert row.out == "removed by the organiser: it was a test"
    again = machines.learner(out.name, invite)
    assert machines.processes[again.name].wait(ENDING_SECONDS) == 2
    assert "removed" in machines.said(out.name)
    assert "peer-2" in muster("members", "--data", str(host))
    muster("readmit", ann, "--data", str(host))
    back = machines.learner(out.name, invite)
    begun = machines.wait(back, lambda one: one.state == "training")
    machines.wait(back, lambda one: version_of(one) >= version_of(begun) + 2)
