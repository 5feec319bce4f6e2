"""A real observer beside a real swarm: it writes what the peers certified, and shows dead peers as gone in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.views.control import ask, snapshot
from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import read_view
from dht.errors import LocalError
from tests.real.conftest import ROOT

if TYPE_CHECKING:
    from tests.real.conftest import Swarm

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(300)]

LIFETIME_SECONDS = 3.0  # of presence, in the run that the swarm fixture starts
FRAGMENTS = 4


def python(swarm: Swarm, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(swarm.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(observer: subprocess.Popen[str], path: Path, wanted: Callable[[NetworkView], bool]) -> NetworkView:
    """Wait for the first view that is wanted, and return it."""
    deadline = time.monotonic() + 60.0
    view = NetworkView()
    while time.monotonic() < deadline:
        with suppress(LocalError):  # not written yet
            view = read_view(path)
            if wanted(view):
                return view
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the observer ended with {observer.wait(0.2)}")
    raise AssertionError(f"not seen in time; the last view: {view}")


def test_an_observer_sees_what_the_peers_certify_and_who_dies(swarm: Swarm) -> None:
    swarm.start(4, 4000, "--data", str(swarm.data))
    swarm.read_until_certified()
    host = swarm.data / "host"
    path = swarm.folder / "view.json"
    observer = python(
        swarm,
        *("peer.observer.process", "--invite", str(ask(host, "invite")["invite"]), "--out", str(path)),
        *("--data", str(swarm.folder / "observer")),
    )
    view = wait_for(observer, path, lambda view: sum(peer.live for peer in view.peers) == 5 and bool(view.rounds))
    assert {(peer.name, peer.role) for peer in view.peers if peer.role == "learner"} == {
        (f"peer-{number}", "learner") for number in range(1, 5)
    }
    assert {peer.device for peer in view.peers if peer.role == "learner"} == {"CPU, 1 thread"}

    # certificates: what the host has booked, to the token
    told = snapshot(host)
    versions = [fragment.version for fragment in told.fragments]
    view = wait_for(
        observer,
        path,
        lambda view: all(one.version >= least for one, least in zip(view.fragments, versions, strict=True)),
    )
    booked = [one for one in view.certificates if one.version <= versions[one.fragment]]
    assert len(booked) == sum(versions)
    assert {one.digest for one in booked} >= {fragment.head for fragment in told.fragments}
    assert all(one.verified for one in booked)
    credit: Counter[str] = Counter()
    for certificate in booked:
        for one in certificate.contributors:
            credit[one.peer_id] += one.tokens * one.included
    assert {peer: tokens // FRAGMENTS for peer, tokens in credit.items()} == told.credited_tokens
    assert all(one.tokens >= told.credited_tokens[one.peer_id] for one in view.credit)
    assert view.evaluator == told.peer_id
    assert [one.loss for one in view.evaluations][: len(told.evaluations)] == [
        one.loss for one in told.evaluations[: len(view.evaluations)]
    ]
    assert {one.outcome for one in view.rounds} >= {"certified"}

    top = python(swarm, "peer.cli", "top", "--once", "--data", str(host))
    shown, _ = top.communicate(timeout=60)
    assert top.returncode == 0, shown
    assert all(f"peer-{number} …" in shown for number in range(1, 5))

    # a death
    victim = snapshot(swarm.data / "peer-3")
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.time()
    view = wait_for(observer, path, lambda view: sum(peer.live for peer in view.peers) < 5)
    assert [peer.name for peer in view.peers if not peer.live] == ["peer-3"]
    assert view.taken_unix_seconds - killed_at <= LIFETIME_SECONDS + 5
    assert any((one.event, one.peer_id) == ("gone", victim.peer_id) for one in view.tape)

    # the end
    swarm.process.send_signal(signal.SIGINT)
    report = swarm.finish()
    assert report["agreement"]
    view = wait_for(observer, path, lambda view: not any(peer.live for peer in view.peers))
    assert view.network_seen_unix_seconds is not None
    assert view.network_seen_unix_seconds < view.taken_unix_seconds - LIFETIME_SECONDS
    assert sum(one.version for one in view.fragments) <= report["versions_certified"]
    states = {(one.fragment, one.version): one.state for one in view.certificates}
    for digests in report["state_digests"].values():
        for fragment, (version, digest) in digests.items():
            assert states.get((int(fragment), version), digest) == digest
    observer.send_signal(signal.SIGTERM)
    output, _ = observer.communicate(timeout=30)
    assert (observer.returncode, output) == (0, "")
