"""Mined keys are nearest to a real swarm's presence records, and swallow them (docs/adr/0048)."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID

from coordinator.views.control import snapshot
from dht.hivemind_store import REPLICAS, HivemindStore
from dht.identity import Identity, KeyVerifier
from dht.invite import Invite
from dht.records import RecordKey, presence_key
from dht.statement import digest_of
from dht.validation import RecordRules
from peer.machine.paths import IDENTITY_NAME
from tests.dht.eclipse import Clock, Nodes, keys, mined_keys
from tests.real.conftest import Machines, invite_of, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]

HOSTILE = 2 * REPLICAS
PRESENCE_LIFETIME_SECONDS = 3.0  # of tests/real/run.toml
SWALLOWED_SECONDS_MAX = 120.0
VERSIONS = 8  # so many may still come from earlier messages
NAMES = ("host", "peer-1", "peer-2", "newcomer")


def test_an_eclipsed_swarm_goes_on_and_lets_a_newcomer_in(machines: Machines) -> None:
    honest = keys("eclipsed", len(NAMES))
    for name, identity in zip(NAMES, honest, strict=True):
        (machines.folder / name).mkdir()
        identity.save(machines.folder / name / IDENTITY_NAME)
    host = machines.host()
    invite = invite_of(host)
    learners = [machines.learner(name, invite) for name in NAMES[1:3]]
    for data in (host, *learners):
        machines.wait(data, lambda now: version_of(now) > 0)
    asyncio.run(_eclipse(machines, invite, honest))


async def _eclipse(machines: Machines, invite: str, honest: list[Identity]) -> None:
    key = presence_key(Invite.parse(invite).run_id)
    with tempfile.TemporaryDirectory() as folder:
        inside = Invite.parse(invite).pass_for  # hostile members: outsiders get no answer at all
        nodes = Nodes(Path(folder), RecordRules(key.run_id, KeyVerifier()), Clock(), inside)
        try:
            victims = [Invite.parse(invite_of(machines.folder / name)).addresses[0] for name in NAMES[:3]]
            mined, _ = mined_keys(HOSTILE, key, honest)
            await nodes.start_hostile(mined, victims)
            asked = await nodes.start(Identity(digest_of(b"anybody")), victims[0])
            async with asyncio.timeout(SWALLOWED_SECONDS_MAX):  # hivemind calls nodes back one after the other
                while not await _is_swallowed(asked, key, mined):  # noqa: ASYNC110 - other processes tell nobody
                    await asyncio.sleep(1)
            await asyncio.sleep(PRESENCE_LIFETIME_SECONDS)
            await asyncio.to_thread(_goes_on, machines, invite)
        finally:
            await nodes.close()


async def _is_swallowed(asked: HivemindStore, key: RecordKey, mined: Sequence[Identity]) -> bool:
    """Whether a node finds only hostile nodes responsible for this key."""
    responsible = await asked._nearest(DHTID.generate(source=key.text))
    return {peer.to_base58() for peer in responsible} <= {one.peer_id for one in mined}


def _goes_on(machines: Machines, invite: str) -> None:
    host = machines.folder / "host"
    before = version_of(snapshot(host))
    with _timed(f"the host followed {VERSIONS} versions"):
        machines.wait(host, lambda now: version_of(now) >= before + VERSIONS)
    with _timed("a newcomer's work counted, its start included"):
        newcomer = machines.learner("newcomer", invite)
        own = machines.id_of(newcomer)
        machines.wait(machines.folder / "peer-1", lambda now: now.credited_tokens.get(own, 0) > 0)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Print the time of a block for docs/research/results.md, under `pytest -s`; asserts nothing."""
    start = time.monotonic()
    yield
    print(f"{what} in {time.monotonic() - start:.1f} s")
