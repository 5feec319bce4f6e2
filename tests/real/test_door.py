"""Invites of a real run: limits, refusals without an invite, and the cost of a crowd of outsiders to the members."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hivemind.p2p import PeerID

from coordinator.views.control import ask, members_of, snapshot
from dht.hivemind_storage import place_of
from dht.hivemind_store import HivemindStore
from dht.identity import Identity, KeyVerifier
from dht.invite import Invite
from dht.records import RecordBody, make_record, presence_key
from dht.refusal import ADVICE, Refusal
from dht.statement import digest_of
from dht.validation import RecordRules
from tests.dht.eclipse import Clock, Nodes
from tests.real.conftest import ENDING_SECONDS, Machines, invite_of, muster, version_of
from tests.real.outsiders import Crowd

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(1500)]

CONNECTIONS = 1000
RECORDS = 10_000
RECORDS_PER_CALL = 50
CALLERS = 10
CALLS = RECORDS // RECORDS_PER_CALL
CALLS_REFUSED_MIN = CALLS // 2  # the others may fail by a closed connection or on a busy machine
HELD_MIN = CONNECTIONS // 4
MEASURED_SECONDS = 120.0
SHARE_KEPT = 0.95
MEMORY_BYTES_MAX = 50_000_000


def _ends_with(machines: Machines, name: str, invite: str, refusal: Refusal) -> None:
    machines.learner(name, invite)
    assert machines.processes[name].wait(ENDING_SECONDS) == 2, machines.said(name)
    assert ADVICE[refusal] in " ".join(machines.said(name).split())


def test_an_invite_lets_in_as_many_as_it_says_and_nobody_after_it_was_withdrawn(machines: Machines) -> None:
    host = machines.host()
    usual = invite_of(host)
    friends = [machines.learner(name, usual) for name in ("ann", "bob")]
    limited = str(ask(host, "invite", changes=("uses=1", "note=for Eve"))["invite"])
    eve = machines.learner("eve", limited)
    machines.wait(eve, lambda now: now.credited_tokens.get(machines.id_of(eve), 0) > 0)
    machines.wait(host, lambda _: any(one.used == 1 for one in members_of(host).invites))
    _ends_with(machines, "late", limited, Refusal.USED_UP)
    _ends_with(machines, "stranger", str(replace(Invite.parse(usual), ticket=None)), Refusal.NO_PASS)
    _ends_with(
        machines, "watcher", str(ask(host, "invite", changes=("role=observer",))["invite"]), Refusal.ONLY_OBSERVES
    )
    ask(host, "revoke", changes=("for Eve", "it leaked", "everybody"))
    assert machines.processes["eve"].wait(ENDING_SECONDS) == 2
    assert "it leaked; ask the run's organiser" in machines.said("eve")
    _ends_with(machines, "again", limited, Refusal.WITHDRAWN)
    now = max(version_of(snapshot(one)) for one in friends)
    for one in friends:
        machines.wait(one, lambda seen: version_of(seen) >= now + 2)


def test_a_list_lets_in_whom_it_names_and_shows_each_peer_its_run(machines: Machines) -> None:
    machines.run += '[admission]\nmode = "list"\n'
    host = machines.host()
    assert "name one: muster invite --peer ID" in machines.said("host")
    lines = {name: _named(machines, host, name) for name in ("ann", "bob", "carl")}
    ann, bob = [machines.learner(name, lines[name]) for name in ("ann", "bob")]
    for one in (host, ann, bob):
        machines.wait(one, lambda now: version_of(now) >= 2)
    for one in (host, ann):  # each sees all three, by what they publish
        view = json.loads(muster("top", "--once", "--json", "--data", str(one)))
        assert {peer["peer_id"] for peer in view["peers"]} == {machines.id_of(data) for data in (host, ann, bob)}
    assert "for it alone" in muster("invite", "--data", str(ann), code=2)
    assert "for the peer" in muster("join", "--yes", "--data", str(machines.folder / "eve"), lines["carl"], code=2)
    looks = str(ask(host, "invite", changes=(f"peer={_id(machines, 'dora')}", "role=observer"))["invite"])
    view = json.loads(muster("top", "--once", "--json", "--data", str(machines.folder / "dora"), looks))
    assert len(view["peers"]) == 3
    muster("revoke", machines.id_of(bob)[-8:], "--data", str(host))
    assert machines.processes["bob"].wait(ENDING_SECONDS) == 2
    assert "removed by the organiser" in machines.said("bob")


def _id(machines: Machines, name: str) -> str:
    return muster("id", "--data", str(machines.folder / name))


def _named(machines: Machines, host: Path, name: str) -> str:
    """Return an invite for the machine of that name."""
    return str(ask(host, "invite", changes=(f"peer={_id(machines, name)}", f"note=for {name}"))["invite"])


@pytest.mark.hours
def test_a_crowd_of_outsiders_costs_the_members_next_to_nothing(machines: Machines) -> None:
    host = machines.host()
    invite = invite_of(host)
    members = [host, *(machines.learner(name, invite) for name in ("ann", "bob"))]
    other = machines.peer("other", "host", str(machines.folder / "run.toml"))  # of a run of its own, without members
    for data in members:
        machines.wait(data, lambda now: version_of(now) >= 2)
    machines.wait(other, lambda now: now.state == "hosting")
    asyncio.run(_measure(machines, host, [invite_of(other), invite]))
    present = {one.peer_id for one in members_of(host).members if one.live}
    assert present == {machines.id_of(data) for data in members}


@dataclass(frozen=True)
class _Load:
    """A host's work over a while, and the resources that it took."""

    versions_per_minute: float
    cores: float
    memory_bytes: int

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 1e6:.0f} MB"
        return f"{self.versions_per_minute:.1f} versions a minute, {self.cores:.2f} cores, {memory}"


async def _measure(machines: Machines, host: Path, invites: Sequence[str]) -> None:
    """Compare the host's load without a crowd, with one at another run's host here, and with one at its own port."""
    process = psutil.Process(machines.processes["host"].pid)
    alone = await _load(host, process)
    beside, with_them = [await _besieged(Invite.parse(invite), host, process) for invite in invites]
    print("alone, beside a crowd elsewhere, with the crowd:", alone, beside, with_them, sep="\n  ")
    assert with_them.memory_bytes - alone.memory_bytes < MEMORY_BYTES_MAX
    assert with_them.versions_per_minute >= SHARE_KEPT * beside.versions_per_minute


async def _besieged(invite: Invite, host: Path, process: psutil.Process) -> _Load:
    """Measure our host's load while a crowd besieges the host of this invite."""
    address = invite.addresses[0].text.split("/")
    async with Crowd(address[2], int(address[4]), CONNECTIONS) as crowd:
        with tempfile.TemporaryDirectory() as folder:
            nodes = Nodes(Path(folder), RecordRules(invite.run_id, KeyVerifier()), Clock())
            try:
                keys = [Identity(digest_of(b"caller", bytes([number]))) for number in range(CALLERS)]
                hostile = await nodes.start_hostile(keys, invite.addresses[:1])
                said = [_noted(one) for one in hostile]
                flood = asyncio.gather(*(_store(one, invite, number) for number, one in enumerate(hostile)))
                found = await _load(host, process)
                assert sum(await flood) == 0
            finally:
                await nodes.close()
        refused = sum("not let in: no_pass" in one for each in said for one in each)
        print(f"{crowd.opened} connections opened, {crowd.most_held} held at most, {crowd.held} at the end")
        print(f"{refused} of {CALLS} calls with {RECORDS_PER_CALL} records each refused in words")
        assert refused >= CALLS_REFUSED_MIN
        assert crowd.opened >= CONNECTIONS
        assert HELD_MIN <= crowd.most_held <= CONNECTIONS
    return found


def _noted(caller: HivemindStore) -> list[str]:
    """Return a list of the errors that a caller's store calls get from now on."""
    said: list[str] = []
    stub_of = caller._protocol.get_stub

    class Noting:
        def __init__(self, stub: Any) -> None:
            self._stub = stub

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stub, name)

        async def rpc_store(self, request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - hivemind's
            try:
                return await self._stub.rpc_store(request, timeout=timeout)
            except Exception as error:
                said.append(str(error))
                raise

    caller._protocol.get_stub = lambda peer: Noting(stub_of(peer))
    return said


async def _load(host: Path, process: psutil.Process) -> _Load:
    first, began, busy = snapshot(host).certified.versions, time.monotonic(), _busy_seconds(process)
    await asyncio.sleep(MEASURED_SECONDS)
    seconds = time.monotonic() - began
    versions = snapshot(host).certified.versions - first
    return _Load(60 * versions / seconds, (_busy_seconds(process) - busy) / seconds, _memory_bytes(process))


async def _store(caller: HivemindStore, invite: Invite, number: int) -> int:
    """Ask the host to store records, each of its own key; returns how many it says it took."""
    key, taken, host = presence_key(invite.run_id), 0, PeerID.from_base58(invite.addresses[0].peer_id)
    for call in range(CALLS // CALLERS):
        now, records = time.time(), []
        for index in range(RECORDS_PER_CALL):
            name = b"".join(part.to_bytes(4, "big") for part in (number, call, index))
            body = RecordBody(payload=b"here", issued_unix_milliseconds=int(1000 * now), lifetime_milliseconds=60_000)
            records.append(make_record(Identity(digest_of(b"record", name)), key, body))
        answer = await caller._protocol.call_store(
            host,
            [place_of(key)] * len(records),
            [record.value for record in records],
            [record.expires_unix_seconds for record in records],
            [record.sender for record in records],
        )
        taken += sum(map(bool, answer or ()))
    return taken


def _busy_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a peer and its child processes."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def _memory_bytes(process: psutil.Process) -> int:
    """Return the memory of a peer and its child processes."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
