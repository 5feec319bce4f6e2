"""Fetching a state in pieces: it counts only if it is the certified one, whoever sent it."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.views import quantity
from coordinator.wire.merkle import leaf_count
from dht.errors import NetworkError
from dht.identity import PeerId
from dht.statement import digest_of
from peer.net.frames import StateAsk, StatePiece
from peer.node.status import OUTRUN, note_of
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState, state_digest, state_tree
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.sync.download import Wanted
from peer.sync.source import PIECES_IN_FLIGHT, STALL_SECONDS
from peer.sync.state_client import StateClient
from peer.sync.state_server import StateServer
from peer.sync.upload_scheduler import BURST_BYTES
from tests.peer.virtual_loop import run_virtual

OUTER = OuterSpec(momentum=0.8)
CONFIG = RunConfig(model=ModelSpec(hidden_size=256, layers=1, heads=2), pace=PaceSpec(fragments=1), outer=OUTER)
DIGEST = digest_of(b"certificate")
STEP = bytes(range(256)) * (STATE_PIECE_BYTES // 256) * (PIECES_IN_FLIGHT + 1) + b"the end"


def state_of(seed: int) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    elements = layouts_of(CONFIG)[0].elements
    return OuterState(torch.randn(elements, generator=generator), torch.randn(elements, generator=generator))


def certificate_of(state: OuterState) -> Any:
    return SimpleNamespace(fragment=0, version=3, digest=DIGEST, state=state_digest(state.anchor, state.momentum))


@dataclass
class Wire:
    """A fake network of holders by name, each with a state or none, and what each does to the pieces it sends."""

    holders: dict[str, OuterState | None]
    tampered: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    in_flight: int = 0
    in_flight_max: int = 0
    asked: list[str] = field(default_factory=list)
    delay_seconds: float = 0.01

    def fetcher(self) -> StateClient:
        self.servers = {}
        for name, state in self.holders.items():
            anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
            if state is not None:
                anchors.install(0, DIGEST, state, STEP)
            self.servers[name] = StateServer(anchors, partial(self._hand_over, name))
        self.client = StateClient(Anchors(layouts_of(CONFIG), genesis_states(CONFIG)), self._ask)
        return self.client

    def _ask(self, holder: PeerId, ask: StateAsk | StatePiece, _: bytes | memoryview) -> None:
        assert isinstance(ask, StateAsk)
        self.asked.append(holder)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        if holder not in self.silent:
            asyncio.get_running_loop().call_later(self.delay_seconds, self.servers[holder].serve, PeerId("asker"), ask)

    def _hand_over(self, name: str, _: PeerId, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
        self._give(name, piece, data)

    def _give(self, name: str, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
        assert isinstance(piece, StatePiece)
        self.in_flight -= 1
        payload = bytes(data)
        if name in self.tampered and payload:
            payload = bytes([payload[0] ^ 1]) + payload[1:]
        self.client.receive(PeerId(name), piece, payload)


def fetch(wire: Wire, state: OuterState, holders: list[str]) -> OuterState:
    async def main() -> OuterState:
        return await wire.fetcher().fetch(certificate_of(state), [PeerId(name) for name in holders])

    return run_virtual(main())


def test_a_state_arrives_bit_for_bit_with_few_pieces_in_flight() -> None:
    state = state_of(1)
    wire = Wire({"a": state})
    got = fetch(wire, state, ["a"])
    assert torch.equal(got.anchor, state.anchor)
    assert torch.equal(got.momentum, state.momentum)
    assert len(wire.asked) == 1 + 2 * leaf_count(4 * len(state.anchor), STATE_PIECE_BYTES)
    assert 1 < wire.in_flight_max <= PIECES_IN_FLIGHT


def test_a_waiting_peer_is_told_how_long_it_still_takes() -> None:
    state = state_of(1)

    async def main() -> tuple[list[str], float, float]:
        loop = asyncio.get_running_loop()
        states = Wire({"a": state}, delay_seconds=1.0).fetcher()
        machines = [SimpleNamespace(index=0, ready=False)]
        driver: Any = SimpleNamespace(
            requests=SimpleNamespace(states=states),
            engine=SimpleNamespace(machines=machines),
            catch_up=SimpleNamespace(outrun=False, following=[]),
        )
        fetching = loop.create_task(states.fetch(certificate_of(state), [PeerId("a")]))
        notes = []
        for at in (1.5, 3.5):
            await asyncio.sleep(at - loop.time())
            driver.now = loop.time()
            notes.append(note_of("", driver))
        left = states.progress([0], loop.time())[3]
        assert left is not None
        expected = loop.time() + left
        await fetching
        return notes, expected, loop.time()

    notes, expected, ended = run_virtual(main())
    assert notes[0].startswith("░░░░░░░░░░ 0 B of ")
    assert notes[0].endswith(" of states from 1 peer"), "nothing has come yet"
    assert re.search(r" of states from 1 peer, about \d+ s left$", notes[1])
    assert expected == pytest.approx(ended, abs=2.0)


def three_fragments() -> tuple[Anchors, list[bytes], Sequence[OuterState]]:
    """Return a donor's anchors, and the names and contents of the states it holds."""
    config = RunConfig(model=ModelSpec(hidden_size=256, layers=1, heads=2), pace=PaceSpec(fragments=3), outer=OUTER)
    states, layouts = genesis_states(config), layouts_of(config)
    held = Anchors(layouts, states)
    names = [digest_of(b"name", bytes([fragment])) for fragment in range(3)]
    for fragment, name in enumerate(names):
        held.install(fragment, name, states[fragment])
    return held, names, states


def test_the_progress_is_that_of_all_states_that_are_lacking_between_two_tries_too() -> None:
    held, names, states = three_fragments()
    wanted = [
        Wanted(fragment, 3, names[fragment], state_digest(one.anchor, one.momentum))
        for fragment, one in enumerate(states)
    ]
    holders = [PeerId("a"), PeerId("b")]

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        given = 12  # after these, nothing more comes

        def give(to: PeerId, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
            nonlocal given
            given -= 1
            if given >= 0:
                assert isinstance(piece, StatePiece)
                loop.call_later(0.5, newcomer.receive, to, piece, bytes(data))

        donor = StateServer(held, give)
        newcomer = StateClient(
            Anchors(held.layouts, states),
            lambda to, ask, data: donor.serve(to, ask) if isinstance(ask, StateAsk) else None,
        )
        machines = [SimpleNamespace(index=fragment, ready=False) for fragment in range(3)]
        driver: Any = SimpleNamespace(
            requests=SimpleNamespace(states=newcomer),
            engine=SimpleNamespace(machines=machines),
            catch_up=SimpleNamespace(outrun=False, following=[]),
        )
        tasks = [loop.create_task(newcomer.get(one, holders)) for one in wanted]
        notes = []
        for at in (1.1, 200.0):
            await asyncio.sleep(at - loop.time())
            driver.now = loop.time()
            notes.append(note_of("", driver))
        assert all(task.exception() for task in tasks), "between two tries"
        driver.catch_up.outrun = True
        machines[1].ready = machines[2].ready = True
        notes.append(note_of("", driver))
        machines[0].ready, driver.catch_up.following = True, [1, 2]
        notes.append(note_of("", driver))
        donor.close()
        newcomer.close()
        return notes

    running, between, last, following = run_virtual(main())
    total = quantity.size(sum(held.state_bytes(fragment) for fragment in range(3)))
    assert re.fullmatch(rf"[█▌][█▌░]{{9}} [\d.]+ [kM]B of {total} of states from 2 peers.*", running)
    assert re.fullmatch(rf"[█▌].* of {total} of states from 0 peers", between)
    assert f" of {quantity.size(held.state_bytes(0))} of states" in last
    assert last.endswith(OUTRUN)
    assert following == "fetches the steps of versions that it missed of fragments 1, 2"


@pytest.mark.parametrize("fault", ["tampered", "silent", "without it", "another state"])
def test_a_holder_that_fails_is_passed_over(fault: str) -> None:
    state = state_of(1)
    bad = {"tampered": state, "silent": state, "without it": None, "another state": state_of(2)}[fault]
    wire = Wire({"bad": bad, "good": state})
    wire.tampered = {"bad"} if fault == "tampered" else set()
    wire.silent = {"bad"} if fault == "silent" else set()
    got = fetch(wire, state, ["bad", "good"])
    assert torch.equal(got.anchor, state.anchor)
    assert "bad" in wire.asked


def test_one_whole_state_is_hashed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each question of a few bytes would cost a pass over a state, however many states are served."""
    hashed: list[int] = []
    monkeypatch.setattr(
        "peer.numerics.outer_optimizer.state_tree", lambda vector: hashed.append(len(vector)) or state_tree(vector)
    )
    config = RunConfig(model=ModelSpec(hidden_size=64, layers=1, heads=2), pace=PaceSpec(fragments=6))
    states, layouts = genesis_states(config), layouts_of(config)
    anchors = Anchors(layouts, states)
    firsts = [digest_of(b"first", bytes([fragment])) for fragment in range(len(layouts))]
    anchors.serve_first(firsts, states)
    names = [(f, digest_of(b"version", bytes([f, version]))) for f in range(len(layouts)) for version in range(2)]
    for fragment, name in names:
        anchors.install(fragment, name, states[fragment])
    names += list(enumerate(firsts))
    answers: list[bytes] = []
    donor = StateServer(anchors, lambda to, piece, data: answers.append(bytes(data)))

    async def main() -> None:
        for _ in range(3):
            for fragment, name in names:
                donor.serve(PeerId("x"), StateAsk(fragment=fragment, certificate=name, piece=None))
                await asyncio.sleep(1.0)
        donor.close()

    run_virtual(main())
    assert all(answers)
    assert len(answers) == 3 * len(names)
    assert len(hashed) == len(names)


def test_without_an_honest_holder_nothing_is_believed() -> None:
    state = state_of(1)
    wire = Wire({"a": state_of(2), "b": state}, tampered={"b"})
    with pytest.raises(NetworkError, match="no holder gave version 3"):
        fetch(wire, state, ["a", "b"])


def test_hostile_questions_are_answered_with_nothing() -> None:
    answers: list[bytes] = []
    anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
    anchors.install(0, DIGEST, state_of(1))
    server = StateServer(anchors, lambda to, piece, data: answers.append(bytes(data)))

    async def main() -> None:
        for fragment, digest, piece in [(200, DIGEST, 0), (0, digest_of(b"other"), 0), (0, DIGEST, 99_999)]:
            server.serve(PeerId("x"), StateAsk(fragment=fragment, certificate=digest, piece=piece))
        client = StateClient(anchors, lambda to, piece, data: None)
        client.receive(PeerId("x"), StatePiece(fragment=0, certificate=DIGEST, piece=0), b"unasked")

    run_virtual(main())
    assert answers == [b"", b"", b""]


def test_all_holders_share_the_work_and_a_later_try_goes_on_where_the_first_ended() -> None:
    state = state_of(1)
    wire = Wire({"a": state, "b": state, "c": state})

    async def main() -> OuterState:
        client = wire.fetcher()
        give, left = wire._give, 7

        def gives_few(name: str, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                give(name, piece, data)

        wire._give = gives_few  # type: ignore[method-assign]
        with pytest.raises(NetworkError, match="no holder gave version 3"):
            await client.fetch(certificate_of(state), [PeerId("a"), PeerId("b")])
        assert {"a", "b"} <= set(wire.asked)
        wire._give = give  # type: ignore[method-assign]
        wire.asked.clear()
        return await client.fetch(certificate_of(state), [PeerId("c")])

    got = run_virtual(main())
    assert torch.equal(got.momentum, state.momentum)
    assert len(wire.asked) < 2 * leaf_count(4 * len(state.anchor), STATE_PIECE_BYTES)


def test_nothing_is_kept_for_an_answer_that_is_not_waited_for_any_more() -> None:
    """After silence, or once the asker has given up, a late answer is dropped."""
    state = state_of(1)
    certificate = certificate_of(state)

    async def main() -> None:
        wire = Wire({"a": state}, silent={"a"})
        client = wire.fetcher()
        with pytest.raises(NetworkError, match="no holder gave version 3"):
            await client.fetch(certificate, [PeerId("a")])
        assert await client.steps.fetch(certificate, PeerId("a"), len(STEP)) is None
        for waiting in (client.fetch(certificate, [PeerId("a")]), client.steps.fetch(certificate, PeerId("a"), 9)):
            task = asyncio.get_running_loop().create_task(waiting)
            await asyncio.sleep(1.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not client._downloads.is_awaited(0)
        assert client.steps._arrivals == {}
        client.receive(PeerId("a"), StatePiece(fragment=0, certificate=DIGEST, piece=0), b"late")
        assert client.progress([0], 0.0)[:3] == (0, 8 * layouts_of(CONFIG)[0].elements, 0)
        assert not any(holder.owed for holder in client._downloads._holders.values())

    run_virtual(main())


def test_a_peer_that_is_gone_is_given_nothing_more() -> None:
    state = state_of(1)
    given: list[str] = []
    anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
    anchors.install(0, DIGEST, state)
    donor = StateServer(anchors, lambda to, piece, data: given.append(to))

    async def main() -> None:
        donor.give_at_most(STATE_PIECE_BYTES)
        for _ in range(3 * BURST_BYTES // STATE_PIECE_BYTES):
            donor.serve(PeerId("first"), StateAsk(fragment=0, certificate=DIGEST, piece=0))
        donor.serve(PeerId("vanished"), StateAsk(fragment=0, certificate=DIGEST, piece=0))
        before = len(given)
        donor.gone(PeerId("vanished"))
        await asyncio.sleep(60.0)
        assert "vanished" not in given[before:]
        donor.close()

    run_virtual(main())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_state_that_is_no_numbers_is_as_good_as_none(value: float) -> None:
    state = state_of(1)
    state.momentum[-1] = value
    with pytest.raises(NetworkError, match="nothing that one can go on from"):
        fetch(Wire({"a": state}), state, ["a"])


def test_a_stranger_does_not_use_up_the_days_upload() -> None:
    given, refused = 0, 0
    day_bytes = 10 * STATE_PIECE_BYTES
    anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
    anchors.install(0, DIGEST, state_of(1))

    def post(_: PeerId, piece: object, data: bytes | memoryview) -> None:
        nonlocal given, refused
        given, refused = given + len(data), refused + (not data)

    async def main() -> None:
        donor = StateServer(anchors, post)
        donor.give_at_most(math.inf, day_bytes)
        length = len(anchors.served(0, DIGEST).anchor) * 4  # type: ignore[union-attr]
        for _ in range(24 * 60):
            donor.serve(PeerId("stranger"), StateAsk(fragment=0, certificate=DIGEST, piece=0))
            await asyncio.sleep(60.0)
        assert refused > 0
        assert given <= 2 * day_bytes + min(length, STATE_PIECE_BYTES)
        donor.close()

    run_virtual(main())


def fetch_step(wire: Wire, length_bytes: int = len(STEP)) -> bytes | None:
    async def main() -> bytes | None:
        return await wire.fetcher().steps.fetch(certificate_of(state_of(1)), PeerId("a"), length_bytes)

    return run_virtual(main())


def test_a_step_that_led_to_a_state_arrives_as_it_was_told() -> None:
    wire = Wire({"a": state_of(1)})
    assert fetch_step(wire) == STEP
    assert wire.in_flight_max == PIECES_IN_FLIGHT


def test_a_step_that_only_trickles_in_is_not_waited_for() -> None:
    """Its pieces arrive just before the holder would be abandoned, again and again."""
    wire = Wire({"a": state_of(1)}, delay_seconds=0.6 * STALL_SECONDS)
    assert fetch_step(wire) is not None
    wire = Wire({"a": state_of(1)})
    serve = StateServer.serve

    async def main() -> bytes | None:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        free_at = loop.time()

        def slowly(sender: PeerId, ask: StateAsk) -> None:
            nonlocal free_at
            free_at = max(free_at, loop.time()) + 0.9 * STALL_SECONDS
            loop.call_at(free_at, serve, wire.servers["a"], sender, ask)

        wire.servers["a"].serve = slowly  # type: ignore[method-assign]
        return await client.steps.fetch(certificate_of(state_of(1)), PeerId("a"), len(STEP))

    assert run_virtual(main()) is None


def test_a_step_may_take_longer_where_the_state_did() -> None:
    """Otherwise, on a slow line or from busy donors, no step would arrive, and states would start again forever."""
    state, piece_seconds = state_of(1), 2 * STALL_SECONDS

    async def main() -> None:
        wire = Wire({"a": state})
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        donor, free_at = wire.servers["a"], 0.0

        def slowly(sender: PeerId, ask: StateAsk) -> None:
            nonlocal free_at
            free_at = max(free_at, loop.time()) + (0.0 if ask.piece is None else piece_seconds)
            loop.call_at(free_at, StateServer.serve, donor, sender, ask)

        donor.serve = slowly  # type: ignore[method-assign]
        assert await client.steps.fetch(certificate_of(state), PeerId("a"), len(STEP)) is None, "not known to be slow"
        assert client.steps.has_stalled(PeerId("a"))
        await asyncio.sleep(free_at - loop.time())
        await client.fetch(certificate_of(state), [PeerId("a")])
        assert await client.steps.fetch(certificate_of(state), PeerId("a"), len(STEP)) == STEP

    run_virtual(main())


def test_a_holder_that_is_gone_is_not_waited_for_with_a_step() -> None:
    wire = Wire({"a": state_of(1)}, silent={"a"})

    async def main() -> None:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        loop.call_later(0.1, client.gone, PeerId("b"))
        loop.call_later(0.2, client.gone, PeerId("a"))
        assert await client.steps.fetch(certificate_of(state_of(1)), PeerId("a"), len(STEP)) is None
        assert loop.time() == pytest.approx(0.2)
        assert not client.steps.has_stalled(PeerId("a"))

    run_virtual(main())


def test_a_holder_that_does_not_tell_a_step_is_not_waited_for() -> None:
    assert fetch_step(Wire({"a": None})) is None
    assert fetch_step(Wire({"a": state_of(1)}, silent={"a"})) is None
    assert fetch_step(Wire({"a": state_of(1)}), len(STEP) + 1) is None
    assert fetch_step(Wire({"a": state_of(1)}), len(STEP) - 1) is None
    assert fetch_step(Wire({"a": state_of(1)}), 2 * len(STEP)) is None


def test_a_step_that_is_asked_for_again_may_come_twice() -> None:
    wire = Wire({"a": state_of(1)})

    async def main() -> bytes | None:
        client = wire.fetcher()
        hand_over = wire._give

        def twice(name: str, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
            for _ in range(2):
                hand_over(name, piece, data)

        wire._give = twice  # type: ignore[method-assign]
        return await client.steps.fetch(certificate_of(state_of(1)), PeerId("a"), len(STEP))

    assert run_virtual(main()) == STEP


def test_steps_come_one_after_the_other_on_a_slow_line_and_before_states() -> None:
    """A step that shares a slow line with others could not reach the rate that is required of it."""
    state = state_of(1)
    wire = Wire({"a": state, "b": state}, delay_seconds=0.5)

    async def main() -> None:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        whole = loop.create_task(client.fetch(certificate_of(state), [PeerId("a")]))
        await asyncio.sleep(0.7)
        asked = len(wire.asked)
        steps = [
            loop.create_task(client.steps.fetch(certificate_of(state), PeerId(name), len(STEP))) for name in ("a", "b")
        ]
        await asyncio.sleep(0.1)
        assert wire.asked[asked:] == ["a"] * PIECES_IN_FLIGHT, "and no more of the state"
        assert await steps[0] == STEP
        assert await steps[1] == STEP
        assert torch.equal((await whole).anchor, state.anchor)

    run_virtual(main())


def test_a_step_that_stalls_does_not_keep_a_state_from_coming() -> None:
    state = state_of(1)
    wire = Wire({"a": state, "mute": state}, silent={"mute"})

    async def main() -> float:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        assert await client.steps.fetch(certificate_of(state), PeerId("mute"), len(STEP)) is None
        assert client.steps.has_stalled(PeerId("mute"))
        began = loop.time()
        step = loop.create_task(client.steps.fetch(certificate_of(state), PeerId("mute"), len(STEP)))
        await asyncio.sleep(0.01)
        await client.fetch(certificate_of(state), [PeerId("a")])
        took = loop.time() - began
        await step
        return took

    assert run_virtual(main()) < STALL_SECONDS


def test_a_holder_that_lets_one_step_wait_does_not_let_all_the_others_wait() -> None:
    wire = Wire({"mute": state_of(1)}, silent={"mute"})

    async def main() -> float:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        steps = [client.steps.fetch(certificate_of(state_of(1)), PeerId("mute"), len(STEP)) for _ in range(8)]
        assert await asyncio.gather(*steps) == [None] * 8
        return loop.time()

    assert run_virtual(main()) < 1.1 * STALL_SECONDS


def test_a_whole_fragment_counts_for_the_progress_until_all_are_here() -> None:
    """Otherwise the share shown would fall at every fragment, because states come one after the other."""
    held, names, states = three_fragments()

    async def main() -> None:
        loop, free_at = asyncio.get_running_loop(), 0.0

        def give(to: PeerId, piece: StateAsk | StatePiece, data: bytes | memoryview) -> None:
            nonlocal free_at
            free_at = max(free_at, loop.time()) + 0.5
            loop.call_at(free_at, newcomer.receive, to, piece, bytes(data))

        donor = StateServer(held, give)
        newcomer = StateClient(
            Anchors(held.layouts, states),
            lambda to, ask, data: donor.serve(to, ask) if isinstance(ask, StateAsk) else None,
        )
        lacking, shown = {0, 1, 2}, list[tuple[int, int]]()

        async def get(fragment: int) -> None:
            digest = state_digest(states[fragment].anchor, states[fragment].momentum)
            await newcomer.get(Wanted(fragment, 3, names[fragment], digest), [PeerId("a")])
            lacking.discard(fragment)

        for fragments in ([0, 1, 2], [1]):
            lacking.update(fragments)
            tasks = [loop.create_task(get(fragment)) for fragment in fragments]
            total = sum(held.state_bytes(fragment) for fragment in fragments)
            await asyncio.sleep(0)
            shown.clear()
            while lacking:
                shown.append(newcomer.progress(lacking, loop.time())[:2])
                await asyncio.sleep(0.1)
            assert shown == sorted(shown)
            assert {whole for _, whole in shown} == {total}
            assert shown[-1][0] > 0.9 * total > 0 == shown[0][0]
            assert newcomer.progress(lacking, loop.time())[:2] == (0, 0)
            await asyncio.gather(*tasks)
        donor.close()
        newcomer.close()

    run_virtual(main())


def test_nothing_is_left_of_a_state_that_was_not_needed_in_the_end() -> None:
    state = state_of(1)
    wire = Wire({"a": state}, delay_seconds=0.5)

    async def main() -> None:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        fetching = loop.create_task(client.fetch(certificate_of(state), [PeerId("a")]))
        await asyncio.sleep(1.3)
        client.forget(0)
        assert client.has_begun(0), "somebody waits for it"
        client.gone(PeerId("a"))
        with pytest.raises(NetworkError):
            await fetching
        assert client.has_begun(0), "for another try"
        client.forget(0)
        assert not client.has_begun(0)
        client.forget(0)

    run_virtual(main())


def test_a_later_call_for_a_state_of_the_same_fragment_ends_the_one_before() -> None:
    state = state_of(1)
    wire = Wire({"a": state})

    async def main() -> None:
        client, loop = wire.fetcher(), asyncio.get_running_loop()
        first = loop.create_task(client.fetch(certificate_of(state), [PeerId("a")]))
        await asyncio.sleep(0.001)
        got = await client.fetch(certificate_of(state), [PeerId("a")])
        assert torch.equal(got.anchor, state.anchor)
        with pytest.raises(NetworkError, match="no holder gave version 3"):
            await first

    run_virtual(main())


@pytest.mark.parametrize("fetched", [True, False])
def test_a_donor_keeps_a_state_that_somebody_fetches_and_steps_for_longer(fetched: bool) -> None:
    anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
    names = [digest_of(b"version", bytes([version])) for version in range(30)]
    step = bytes(anchors.state_bytes(0) // 8)
    answers: list[int] = []
    donor = StateServer(anchors, lambda to, piece, data: answers.append(len(data)))

    async def main() -> None:
        for place, name in enumerate(names):
            anchors.install(0, name, state_of(place), step)
            if place == 0 or fetched:
                piece = 0 if fetched else None  # asking what there would be to fetch fetches nothing yet
                donor.serve(PeerId("x"), StateAsk(fragment=0, certificate=names[0], piece=piece))
            await asyncio.sleep(1.0)
        assert [bool(anchors.step(0, name)) for name in names] == [False] * 22 + [True] * 8
        before = len(answers)
        donor.serve(PeerId("x"), StateAsk(fragment=0, certificate=names[0], piece=1))
        for name in (names[21], names[22]):
            first = 2 * leaf_count(anchors.state_bytes(0) // 2, STATE_PIECE_BYTES)
            donor.serve(PeerId(name.hex()), StateAsk(fragment=0, certificate=name, piece=first))
        await asyncio.sleep(1.0)
        assert [bool(length) for length in answers[before:]] == [fetched, False, True]
        donor.close()

    run_virtual(main())
