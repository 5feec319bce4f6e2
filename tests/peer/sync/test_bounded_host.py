"""A host's memory is bounded: however many versions go by, no container that it can reach grows forever."""

from __future__ import annotations

import gc
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.core.events import PresenceSeen
from dht import identity
from dht.identity import Identity
from dht.statement import digest_of
from peer.storage.credit_book import CreditBook
from peer.storage.run_directory import Captured, RunDirectory
from peer.sync import rate
from tests.peer.rounds.test_driver import Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual

OURS = ("coordinator", "peer", "dht")
CHAIN_KEPT = 24
VERSIONS_FILLING = 40  # more than CHAIN_KEPT, and than what is kept of the newest versions anywhere else
VERSIONS_MORE = 24


def lengths(root: object) -> Counter[str]:
    """Count the items in all containers reachable from here, by the class and attribute that holds them."""
    found: Counter[str] = Counter()
    seen = {id(root)}
    todo: list[tuple[Any, str]] = [(root, "")]
    while todo:
        one, place = todo.pop()
        if isinstance(one, dict | list | set | frozenset | tuple | deque):
            found[place] += len(one)
            inside = [(each, place) for each in gc.get_referents(one)]
        else:
            inside = attributes(one)
        for each, name in inside:
            if id(each) not in seen and (
                isinstance(each, dict | list | set | frozenset | tuple | deque) or is_ours(each)
            ):
                seen.add(id(each))
                todo.append((each, name))
    return found


def is_ours(one: object) -> bool:
    return type(one).__module__.partition(".")[0] in OURS


def attributes(one: object) -> list[tuple[Any, str]]:
    names = [
        *getattr(one, "__dict__", {}),
        *(name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())),
    ]
    return [(getattr(one, name), f"{type(one).__name__}.{name}") for name in names if hasattr(one, name)]


async def host_of(swarm: Swarm) -> Peer:
    """Add a host to the swarm: a peer that contributes nothing."""
    host = await swarm.add(Identity(digest_of(b"host")), swarm.peers[0].driver.engine.core.manifest)
    host.driver.engine.core.contributes = False
    host.driver.learner = None
    await host.driver.transport.start(host.driver.on_frame, host.driver.on_gone)
    return host


def test_nothing_in_a_host_grows_with_the_versions_that_go_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(identity, "VERIFIED_KEPT", CHAIN_KEPT)  # otherwise it would still be filling up at the end
    monkeypatch.setattr(rate, "RATE_SECONDS", 1.0)  # so would this

    async def main() -> tuple[Counter[str], Counter[str]]:
        swarm = Swarm(config_of(fragments=1, steps_per_version=1, quorum=1), 1, tmp_path, chain_kept=CHAIN_KEPT)
        await swarm.start()
        host, [learner] = await host_of(swarm), swarm.peers
        [machine] = host.driver.engine.machines
        run_id = host.driver.engine.core.manifest.run_id
        folder = RunDirectory(tmp_path / "host", run_id)
        book = CreditBook(folder.path, run_id, 1)
        found = []
        for versions in (VERSIONS_FILLING, VERSIONS_FILLING + VERSIONS_MORE):
            while machine.chain.version < versions:
                host.driver.feed(PresenceSeen(learner.identity.peer_id, learner.presence()))
                seen = host.presence().model_copy(update={"state": "hosting"})
                learner.driver.feed(PresenceSeen(host.identity.peer_id, seen))
                await swarm.train(4)
                certificates = machine.held_chain.certificates.copy()
                captured = Captured((machine.held,), (host.driver.anchors.current(0),), (certificates,))
                folder.commit(folder.stage(captured), None)
                book.save([machine.chain.truncated(machine.chain.version)])
            found.append(lengths({"host": [host.driver, folder, book]}))
        await swarm.close()
        await host.driver.close()
        return found[0], found[1]

    before, after = run_virtual(main())
    assert before["PackedHistory._digests"] == CHAIN_KEPT
    grown = {place: (before[place], after[place]) for place in after if after[place] > before[place] + 2}
    assert grown == {}
