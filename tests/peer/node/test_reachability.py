"""Whether other peers can reach us, as they report it and as the protocol core is told."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.core.events import ReachSeen
from dht.identity import Identity, PeerId
from peer.net.frames import ProbeAnswer, ProbeAsk
from peer.net.probe import ProbeResponder
from peer.node.reachability import ASKED_MAX, ReachLoop, askable
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors
from tests.coordinator.builders import Club
from tests.peer.net.test_probe import listening

ME, *OTHERS = sorted(Identity(bytes([number]) * 32).peer_id for number in range(1, 13))
PORT = 7331


ELSEWHERE = "192.0.2.7"


class Street:
    """The peers that are online, and what the reachability loop asks them and reports."""

    def __init__(self, live: list[PeerId], on_loopback: bool = False) -> None:
        self.live = live
        self.asked: list[tuple[PeerId, int]] = []
        self.told: list[ReachSeen] = []
        self.loop = ReachLoop(ME, lambda: PORT, lambda: self.live, self._post, self.told.append, on_loopback)

    def _post(self, peer: PeerId, ask: ProbeAsk, payload: bytes) -> None:
        assert (ask.port, payload) == (PORT, b"")
        self.asked.append((peer, ask.ticket))

    def answer(self, peer: PeerId, ticket: int, reachable: bool | None) -> None:
        self.loop.hear(peer, ProbeAnswer(ticket=ticket, unix_milliseconds=0, reachable=reachable))

    def look(self, *answers: bool | None, hosts: dict[PeerId, str] | None = None) -> list[PeerId]:
        """Take one look, in which the peers asked give these answers in turn; return the peers asked."""
        self.asked.clear()
        self.loop.ask()
        for (peer, ticket), reachable in zip(self.asked, answers, strict=False):
            self.answer(peer, ticket, reachable)
        self.loop.judge(dict.fromkeys(self.live, ELSEWHERE) if hosts is None else hosts)
        return [peer for peer, _ in self.asked]


def test_the_core_is_told_once_whenever_most_who_tried_find_something_new() -> None:
    street = Street(OTHERS[:3])
    street.look(False, False, True)
    street.look(False, False, False)
    assert street.told == [ReachSeen(dialable=False)]
    street.look(True, True, False)
    assert street.told == [ReachSeen(dialable=False), ReachSeen(dialable=True)]


def test_strangers_are_asked_only_where_nobody_of_the_chains_is_there() -> None:
    """Before, nine keys saying that we are unreachable made nine peers of ten believe it."""
    club = Club.of(6)
    chains = [club.grow(club.chain(), range(4)), club.grow(club.chain(), range(2, 6))]
    known = {peer for chain in chains for peer in chain.known()}
    strangers = frozenset(OTHERS)
    assert askable(strangers | {club.ids[0], club.ids[4]}, chains) == {club.ids[0], club.ids[4]}
    assert askable(strangers, chains) == strangers
    assert askable(frozenset(known), chains) == known


def test_as_many_as_get_through_suffice_and_silence_changes_nothing() -> None:
    street = Street(OTHERS[:4])
    street.look(True, False)
    street.look()
    street.look(None, None, None, None)
    assert street.told == []
    street.look(False, False)
    street.look()
    assert street.told == [ReachSeen(dialable=False)]


def test_the_word_of_as_many_as_may_be_hostile_is_not_enough() -> None:
    """Before, one peer that kept all other desks busy and alone said no was believed by everybody, for good."""
    alone = Street(OTHERS[:3])
    for _ in range(5):
        alone.look(False)
    assert alone.told == []
    pair = Street(OTHERS[:2])
    pair.look(False)
    assert pair.told == [ReachSeen(dialable=False)], "of three none may be"


def test_a_peer_that_could_not_answer_lends_the_others_no_doubt() -> None:
    """Before, among one reachable friend and five peers behind routers, only the friend's word was heard, too few."""
    street = Street(OTHERS[:5])
    street.look(False, hosts={OTHERS[5]: ELSEWHERE})
    assert street.told == [ReachSeen(dialable=False)]


def test_a_peer_on_loopback_is_called_by_nobody_elsewhere() -> None:
    """A host, a learner beside it and one elsewhere made no version: the host alone was asked, and got through."""
    here, there = OTHERS[:2]
    street = Street([here, there], on_loopback=True)
    street.look(True, hosts={here: "127.0.0.1"})
    assert street.told == [], "a swarm on one machine has nothing but loopback"
    street.look(True, hosts={here: "127.0.0.1", there: ""})
    assert street.told == [], "a peer behind a relay may be on this machine: else one relay would bring the next"
    street.look(True, hosts={here: "127.0.0.1", there: ELSEWHERE})
    assert street.told == [ReachSeen(dialable=False)]
    street.look(True, hosts={here: "127.0.0.1"})
    assert street.told == [ReachSeen(dialable=False), ReachSeen(dialable=True)]


def test_an_unasked_answer_counts_for_nothing() -> None:
    street = Street(OTHERS[:1])
    street.loop.ask()
    (peer, ticket), *_ = street.asked
    street.answer(OTHERS[1], ticket, False)  # was not asked
    street.answer(peer, ticket + 1, False)  # answers another question
    street.loop.judge({peer: ELSEWHERE})
    street.loop.ask()
    street.answer(peer, ticket, False)  # answers a question of the previous look
    street.loop.judge({peer: ELSEWHERE})
    assert street.told == []


def test_a_few_are_asked_at_a_time_and_others_the_next() -> None:
    street = Street(OTHERS)
    first, second, third = street.look(), street.look(), street.look()
    assert [len(first), len(second), len(third)] == [ASKED_MAX] * 3
    assert set(first) | set(second) | set(third) == set(OTHERS)
    street.live = []
    assert not street.loop.ask()


@pytest.mark.parametrize("open_port", [True, False])
def test_another_peer_calls_our_port_and_tells_us(open_port: bool) -> None:
    """Our question reaches its desk, and its answer our loop, as frames between the two peers."""

    async def course() -> list[ReachSeen]:
        server, port = await listening()
        if not open_port:
            server.close()
            await server.wait_closed()
        told, answered = list[ReachSeen](), asyncio.Event()
        other = OTHERS[0]

        def to_us(_: PeerId, answer: ProbeAnswer, __: bytes) -> None:
            ours.handle(other, answer, b"", 0.0)
            answered.set()

        async def host_of(_: PeerId) -> str:
            return "127.0.0.1"

        theirs = PeerRequests(Anchors((), ()), b"", list, to_us)
        theirs.answer_probes(ProbeResponder(host_of, to_us))
        ours = PeerRequests(Anchors((), ()), b"", list, lambda *_: None)
        loop = ReachLoop(
            ME, lambda: port, lambda: [other], lambda _, ask, __: theirs.handle(ME, ask, b"", 0.0), told.append
        )
        ours.hear_probes(loop.hear)
        assert loop.ask()
        async with asyncio.timeout(20):
            await answered.wait()
        loop.judge({other: "127.0.0.1"})
        server.close()
        await theirs.close()
        return told

    assert asyncio.run(course()) == ([] if open_port else [ReachSeen(dialable=False)])
