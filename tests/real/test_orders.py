"""Real organisers' conflicting orders, also on both sides of a cut and for absent peers (docs/how-to/invites.md).

One swarm serves all checks one after the other, because starting it takes longer than all of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.admission_control import CLOCK_TOLERANCE_SECONDS
from coordinator.views.control import ask, members_of, snapshot
from dht.identity import PeerId
from dht.invite import Invite
from dht.refusal import ADVICE, Refusal
from peer.chaos.namespaces import Namespaces
from tests.real.conftest import ENDING_SECONDS, WAIT_SECONDS, Machines, invite_of, muster, version_of

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

FRIENDS = ("dora", "dirk", "ann", "bob", "eve")  # the first two become co-organisers
LATE = ("late", "guest")
EXPIRES_SECONDS = 60.0
LOOK_SECONDS = 0.1
FRAGMENTS = 4  # of the run


class Switched(Machines):
    """Peers, each on its own machine, on a switch that can be cut in two."""

    def __init__(self, folder: Path, place: Namespaces) -> None:
        super().__init__(folder)
        self._place = place

    def command(self, name: str, *words: str) -> list[str]:
        return self._place.inside(name, *words, "--listen", self._place.address(name))

    @contextmanager
    def cut(self, *sides: Collection[str]) -> Iterator[None]:
        """Cut these sides off from each other while the block runs."""
        self._place.partition(sides)
        try:
            yield
        finally:
            self._place.partition([{name for side in sides for name in side}])


@pytest.fixture
def place() -> Iterator[Namespaces]:
    place = Namespaces()
    try:
        place.open(("host", *FRIENDS, *LATE))
        yield place
    finally:
        place.close()


@pytest.fixture
def switched(tmp_path: Path, place: Namespaces) -> Iterator[Switched]:
    found = Switched(tmp_path, place)
    try:
        yield found
    finally:
        found.end_all()


def out(data: Path) -> set[PeerId]:
    """Return the peers that this peer knows to be removed."""
    return {PeerId(one.peer_id) for one in members_of(data).members if one.out}


def all_say_out(peers: Sequence[Path], *expected: PeerId) -> None:
    """Wait until all these peers know exactly the expected ones to be removed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := {one.name: out(one) for one in peers}) != {one.name: set(expected) for one in peers}:
        assert time.monotonic() < deadline, found
        time.sleep(LOOK_SECONDS)


def go_on(peers: Sequence[Path], versions: int = 3) -> None:
    """Wait for so many more versions of every fragment, the same at all these peers."""
    target = max(version_of(snapshot(one)) for one in peers) + versions
    heads: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    agreed: set[int] = set()
    deadline = time.monotonic() + WAIT_SECONDS
    while len(agreed) < FRAGMENTS:
        assert time.monotonic() < deadline, [version_of(snapshot(one)) for one in peers]
        time.sleep(LOOK_SECONDS)
        for one in peers:
            for index, fragment in enumerate(snapshot(one).fragments):
                heads[index, fragment.version][one.name] = fragment.head
        complete = {place: seen for place, seen in heads.items() if place[1] >= target and len(seen) == len(peers)}
        agreed = {index for (index, _), seen in complete.items() if len(set(seen.values())) == 1}


def is_told(machines: Machines, name: str, sentence: str) -> None:
    """Check that a peer has ended as used wrongly, and that its owner was told this sentence."""
    assert machines.processes[name].wait(ENDING_SECONDS) == 2, machines.said(name)
    assert sentence in " ".join(machines.said(name).split())


def appoint(host: Path, deputy: Path, peer: PeerId) -> None:
    """Make a peer a co-organiser, with the word that the host's owner gives its owner."""
    ask(deputy, "accept", changes=(str(ask(host, "deputise", changes=(peer,))["word"]),))


def revoke(by: Path, peer: PeerId, reason: str) -> None:
    ask(by, "revoke", changes=(peer, reason))


def at(member: Path, line: str) -> str:
    """Return the same invite with the addresses of this member."""
    return str(replace(Invite.parse(line), addresses=Invite.parse(invite_of(member)).addresses))


def test_organisers_at_odds_a_cut_and_those_who_were_away_come_to_one_state(switched: Switched) -> None:
    machines = switched
    host = machines.host()
    usual = invite_of(host)
    made, short = time.time(), str(ask(host, "invite", changes=("expires=1m", "note=for Eve"))["invite"])
    eve, dora = machines.learner("eve", short), machines.learner("dora", usual)
    machines.wait(host, lambda _: any(one.used == 1 for one in members_of(host).invites))
    dirk, ann, bob = (machines.learner(name, usual) for name in ("dirk", "ann", "bob"))
    ids = {one.name: machines.id_of(one) for one in (dora, dirk, ann, bob)}
    for peer in ids.values():
        machines.wait(host, lambda now, peer=peer: now.credited_tokens.get(peer, 0) > 0)
    appoint(host, dora, ids["dora"])
    appoint(host, dirk, ids["dirk"])
    of_dora = str(ask(dora, "invite", changes=("note=for a guest",))["invite"])

    # each side removes a peer while bob sleeps; removing dora also ends what she orders later
    machines.processes["bob"].send_signal(signal.SIGSTOP)
    with machines.cut(("host", "ann", "eve", *LATE), ("dora", "dirk", "bob")):
        revoke(host, ids["dora"], "left us")
        revoke(dora, ids["ann"], "a quarrel")
        revoke(dirk, ids["bob"], "sends nonsense")
        all_say_out([host, ann, eve], ids["dora"])
        all_say_out([dora, dirk], ids["ann"], ids["bob"])
        go_on([host, ann, eve], versions=1)
        go_on([dora, dirk], versions=1)
    is_told(machines, "dora", "this peer was removed by the organiser: left us; ask the run's organiser, whose key")
    staying = [host, dirk, ann, eve]
    all_say_out(staying, ids["dora"], ids["bob"])
    go_on(staying)
    machines.processes["bob"].send_signal(signal.SIGCONT)
    is_told(machines, "bob", "this peer was removed by a co-organiser: sends nonsense; ask the run's organiser")

    # the organiser readmits a peer that a co-organiser showed out, and is gone for good before that peer comes back
    ask(host, "readmit", changes=(ids["bob"], ""))
    all_say_out(staying, ids["dora"])
    refused = muster("revoke", ids["bob"], "--data", str(dirk), code=2)
    assert "does not count: the organiser has said otherwise about that key" in refused
    machines.end("eve")
    machines.kill("host")
    bob = machines.learner("bob", usual)
    machines.wait(bob, lambda now: now.state == "training")
    all_say_out([dirk, ann, bob], ids["dora"])
    go_on([dirk, ann, bob])

    # a co-organiser goes on alone, and an invite expires while the one that came by it is away
    revoke(dirk, ids["ann"], "a quarrel")
    is_told(machines, "ann", "this peer was removed by a co-organiser: a quarrel; ask the run's organiser")
    time.sleep(max(0.0, made + EXPIRES_SECONDS + CLOCK_TOLERANCE_SECONDS + 1 - time.time()))
    eve = machines.learner("eve", short)
    for name, line in (("late", short), ("guest", of_dora), ("dora", usual)):
        machines.learner(name, at(dirk, line))
    is_told(machines, "late", ADVICE[Refusal.EXPIRED])
    is_told(machines, "guest", ADVICE[Refusal.WITHDRAWN])  # what dora granted ended with her office
    is_told(machines, "dora", ADVICE[Refusal.REVOKED])
    machines.wait(eve, lambda now: now.state == "training")
    all_say_out([dirk, bob, eve], ids["dora"], ids["ann"])
    go_on([dirk, bob, eve])
