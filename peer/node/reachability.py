"""Whether others get through to this peer: it asks some of them to call it, now and then (`peer.net.probe` answers).

What they say decides one thing, which this peer says of itself in its joins and presence: whether it reduces, and leads
before others. A peer that believes a liar is one reducer fewer; most that answer have to say so. Keys cost
nothing, and many that lie would leave the reducing to the hostile: members of the chains are asked, while any is live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set

import structlog

from coordinator.chain.chain import Chain
from coordinator.core.events import ReachSeen
from dht.identity import PeerId
from peer.net.addresses import OwnAddresses
from peer.net.frames import ProbeAnswer, ProbeAsk
from peer.net.origins import HostsOf
from peer.net.probe import gets_through, some_of
from peer.node.options import NodeOptions
from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)

ASKED_MAX = 5  # at each look, others each time
ANSWER_SECONDS = 8.0  # a call that nobody takes is given up after 5
LOOK_SECONDS = 60.0  # between two looks
ALONE_SECONDS = 1.0  # while there is nobody to ask


def askable(live: Set[PeerId], chains: Iterable[Chain]) -> Set[PeerId]:
    """Whom to believe: peers that had a part in newest versions and are there; everybody there if none is."""
    return frozenset[PeerId]().union(*(chain.known() for chain in chains)) & live or live


Post = Callable[[PeerId, ProbeAsk, bytes], None]


class ReachLoop:
    """Has live peers call our port, and tells the protocol core what they find, when it has changed."""

    def __init__(
        self,
        me: PeerId,
        port: Callable[[], int],
        live: Callable[[], Iterable[PeerId]],
        post: Post,
        feed: Callable[[ReachSeen], None],
    ) -> None:
        self._me = me
        self._port = port
        self._live = live
        self._post = post
        self._feed = feed
        self._looks = 0
        self._dialable = True  # until somebody has tried
        self._asked: set[PeerId] = set()
        self._found: dict[PeerId, bool] = {}

    def ask(self) -> bool:
        """Ask the next few; False if there is nobody."""
        self._asked, self._found = some_of(self._live(), self._me, self._looks, ASKED_MAX), {}
        self._looks += 1
        for peer in sorted(self._asked):
            self._post(peer, ProbeAsk(ticket=self._ticket, port=self._port()), b"")
        return bool(self._asked)

    def hear(self, sender: PeerId, answer: ProbeAnswer) -> None:
        """Somebody has tried to call us, or could not try; what nobody was asked for counts for nothing."""
        if sender in self._asked and answer.ticket == self._ticket and answer.reachable is not None:
            self._found[sender] = answer.reachable

    def judge(self, connected: Set[PeerId]) -> None:
        """What those who have answered come to; without any answer we go on believing what we did.

        Who is not `connected` but through a relay had no way to answer, and is none of those who might have.
        """
        if not self._found:
            return
        dialable = gets_through(self._found.values(), len(self._asked & (connected | self._found.keys())))
        if dialable != self._dialable:
            self._dialable = dialable
            log.info("reach", dialable=dialable, tried=len(self._found))
            self._feed(ReachSeen(dialable))

    @property
    def _ticket(self) -> int:
        return self._looks % (1 << 32)

    async def run(self, hosts: HostsOf) -> None:
        """Look again and again, until cancelled; `hosts` says from where peers are connected."""
        while True:
            if not self.ask():
                await asyncio.sleep(ALONE_SECONDS)
                continue
            await asyncio.sleep(ANSWER_SECONDS)
            self.judge({peer for peer, host in (await hosts()).items() if host})
            await asyncio.sleep(LOOK_SECONDS)


async def watch_reach(options: NodeOptions, driver: RoundDriver, addresses: OwnAddresses, hosts: HostsOf) -> None:
    """Look until cancelled, unless the owner has said how this peer is called, by announcing an address."""
    if options.announce:
        return
    core = driver.engine.core

    def whom() -> Set[PeerId]:
        return askable(core.presence.live(driver.now), (machine.chain for machine in driver.engine.machines))

    def feed(seen: ReachSeen) -> None:
        driver.feed(seen)
        addresses.hurry()

    loop = ReachLoop(core.me, lambda: addresses.port, whom, driver.post, feed)
    driver.requests.hear_probes(loop.hear)
    await loop.run(hosts)
