"""Real newcomers: to a run whose beginning no peer keeps, whose host is dead, whose donors die meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from coordinator.views.control import ask, limits, snapshot
from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import read_view
from dht.errors import LocalError
from dht.invite import Invite
from tests.real.conftest import WAIT_SECONDS, Machines, invite_of, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(1500)]

KEPT = 12
FOLLOWED = 8  # versions after which a newcomer fetches a state: so many steps of eight bits are longer than it
LARGER = {"hidden_size = 32": "hidden_size = 256", "fragments = 4": "fragments = 1"}  # one state of 3 MB
SLOWLY = ("upload_mbit=2",)  # one donor alone takes 12 s for it
PIECE_BYTES = 250_000  # about; a peer's other traffic meanwhile is less


def test_a_newcomer_joins_long_after_the_beginning_was_forgotten(machines: Machines) -> None:
    machines.more = ("--chain-kept", str(KEPT))
    host = machines.host()
    first_invite = invite_of(host)
    assert Invite.parse(first_invite).heads_version is None
    for number in (1, 2):
        machines.learner(f"peer-{number}", first_invite)
    machines.wait(host, lambda now: version_of(now) > KEPT + 4)
    for number in (1, 2):  # so that the invite does not age while a busy machine starts the next processes
        ask(machines.folder / f"peer-{number}", "pause")

    # with a fresh invite, from any peer
    fresh = invite_of(machines.folder / "peer-1")
    begun = Invite.parse(fresh).heads_version
    assert begun is not None
    assert begun > 4
    newcomer = machines.learner("newcomer", fresh)
    view_file = machines.folder / "view.json"
    machines.start("observer", "peer.observer.process", "--invite", fresh, "--out", str(view_file))
    joined = machines.wait(newcomer, lambda now: now.state == "training")
    assert all(one.held_version > begun for one in joined.fragments)
    newest = {one.head for one in joined.fragments}
    deadline = time.monotonic() + WAIT_SECONDS
    view = NetworkView()
    while not newest <= {one.digest for one in view.certificates}:
        assert time.monotonic() < deadline, f"the observer has not followed: {view.note}"
        with suppress(LocalError):
            view = read_view(view_file)
        time.sleep(0.2)
    assert min(one.version for one in view.certificates) > 1, "not from the beginning"

    # an invite of the first hour leads nowhere, and says so
    late = machines.learner("late", first_invite)
    stuck = machines.wait(late, lambda now: bool(now.advice))
    assert all(one.version == 0 for one in stuck.fragments)
    assert "fresh invite" in stuck.advice

    # the newcomer's work counts
    for number in (1, 2):
        ask(machines.folder / f"peer-{number}", "resume")
    machines.wait(newcomer, lambda now: now.credited_tokens.get(now.peer_id, 0) > 0)


def test_a_newcomer_gets_in_where_the_host_and_all_bootstrap_nodes_but_one_are_dead(machines: Machines) -> None:
    first_invite = invite_of(machines.host())
    one, two = (machines.learner(f"peer-{number}", first_invite) for number in (1, 2))
    machines.wait(one, lambda now: version_of(now) > 0)
    three = machines.learner("peer-3", invite_of(one))  # peer-1 is to it what the host is to the others
    third = machines.id_of(three)
    machines.wait(two, lambda now: now.credited_tokens.get(third, 0) > 0)
    for name in ("host", "peer-1"):
        machines.kill(name)

    invite = invite_of(three)
    assert Invite.parse(invite).peers == {third}
    newcomer = machines.learner("newcomer", invite)
    new = machines.wait(newcomer, lambda now: now.state == "training").peer_id
    machines.wait(two, lambda now: now.credited_tokens.get(new, 0) > 0)


def test_a_newcomer_whose_host_dies_during_the_fetch_of_version_0_goes_on_from_others(machines: Machines) -> None:
    """Before, it gave up at once and kept nothing, though others held the same values."""
    for small, large in LARGER.items():
        machines.run = machines.run.replace(small, large)
    machines.run = machines.run.replace("[model]\n", '[model]\nweights = "given"\nfamily = "gpt2"\n')
    machines.run = machines.run.replace("[pace]\n", "[pace]\nquorum = 2\n")  # one alone certifies nothing
    host = machines.host()
    first = machines.learner("first", invite_of(host))
    machines.wait(first, lambda now: now.state == "training")
    ask(first, "pause")
    for holder in (host, first):
        limits(holder, SLOWLY)

    invite = invite_of(host)
    sent, before = snapshot(host).bytes_sent, snapshot(first).bytes_sent
    newcomer = machines.learner("newcomer", invite)
    machines.wait(host, lambda now: now.bytes_sent - sent > PIECE_BYTES)
    machines.kill("host")
    joined = machines.wait(newcomer, lambda now: now.state == "training")
    assert snapshot(first).bytes_sent - before > PIECE_BYTES
    known = {one.head for one in snapshot(first).fragments}
    assert {one.head for one in joined.fragments} == known
    assert all(one.version == 0 for one in joined.fragments)


def test_a_join_goes_on_when_the_donor_that_gives_is_killed(machines: Machines) -> None:
    for small, large in LARGER.items():
        machines.run = machines.run.replace(small, large)
    host = machines.host()
    first_invite = invite_of(host)
    donors = [host, *(machines.learner(f"peer-{number}", first_invite) for number in (1, 2))]
    machines.wait(host, lambda now: version_of(now) > FOLLOWED)
    for learner in donors[1:]:  # so that the states stay as they are
        ask(learner, "pause")
        machines.wait(learner, lambda now: now.state == "paused" and not now.rounds_in_flight)
    for donor in donors:
        limits(donor, SLOWLY)

    sent = {donor: snapshot(donor).bytes_sent for donor in donors}
    newcomer = machines.learner("newcomer", invite_of(host))
    machines.wait(newcomer, lambda now: "of states from" in now.note and " 0 B of " not in now.note)
    given = {donor: snapshot(donor).bytes_sent - sent[donor] for donor in donors}
    victim = max(donors, key=lambda donor: given[donor])
    assert given[victim] > PIECE_BYTES, given
    machines.kill(victim.name)
    assert "of states from" in snapshot(newcomer).note, "the download was over before its donor was killed"

    donors.remove(victim)
    sent = {donor: snapshot(donor).bytes_sent for donor in donors}
    joined = machines.wait(newcomer, lambda now: now.state == "training")
    living = {donor: snapshot(donor) for donor in donors}
    assert max(living[donor].bytes_sent - sent[donor] for donor in donors) > PIECE_BYTES
    assert {one.head for one in joined.fragments} == {one.head for donor in donors for one in living[donor].fragments}
    assert all(one.held_version == one.version for one in joined.fragments)
