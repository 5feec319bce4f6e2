"""Finds out whether other peers can call this one, by asking some of them to try (`peer.net.probe` answers).

Their answers decide one thing, which this peer states in its joins and presence: whether it reduces, and is preferred
as a leader. A peer that believes a liar means one reducer fewer, so most answers must agree. Keys are free, and many
lying keys would leave the reducing to hostile peers. Therefore members of the chains are asked while any is live.

A peer that listens on loopback needs no answer once it is connected to another machine: nobody there can call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set

import structlog

from coordinator.chain.chain import Chain
from coordinator.core.events import ReachSeen
from dht.daemon.own_hosts import LOOPBACK, hosts_behind
from dht.identity import PeerId
from peer.net.addresses import OwnAddresses
from peer.net.frames import ProbeAnswer, ProbeAsk
from peer.net.origins import HostsOf
from peer.net.probe import is_reachable, rotating_subset
from peer.node.options import NodeOptions
from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)

ASKED_MAX = 5  # at each look, different peers each time
ANSWER_SECONDS = 8.0  # a call that is not answered is given up after 5
LOOK_SECONDS = 60.0  # between two looks
ALONE_SECONDS = 1.0  # while there is no peer to ask


def askable(live: Set[PeerId], chains: Iterable[Chain]) -> Set[PeerId]:
    """Return the peers to believe: live ones that took part in recent versions, or all live ones if there are none."""
    return frozenset[PeerId]().union(*(chain.known() for chain in chains)) & live or live


Post = Callable[[PeerId, ProbeAsk, bytes], None]


class ReachLoop:
    """Lets live peers call our port, and tells the protocol core of changes in what they find."""

    def __init__(
        self,
        me: PeerId,
        port: Callable[[], int],
        live: Callable[[], Iterable[PeerId]],
        post: Post,
        feed: Callable[[ReachSeen], None],
        on_loopback: bool = False,
    ) -> None:
        self._me = me
        self._port = port
        self._live = live
        self._post = post
        self._feed = feed
        self._on_loopback = on_loopback
        self._looks = 0
        self._dialable = True  # assumed until a peer has tried
        self._asked: set[PeerId] = set()
        self._found: dict[PeerId, bool] = {}

    def ask(self) -> bool:
        """Ask the next few peers; False if there are none."""
        self._asked, self._found = rotating_subset(self._live(), self._me, self._looks, ASKED_MAX), {}
        self._looks += 1
        for peer in sorted(self._asked):
            self._post(peer, ProbeAsk(ticket=self._ticket, port=self._port()), b"")
        return bool(self._asked)

    def hear(self, sender: PeerId, answer: ProbeAnswer) -> None:
        """Take the result of a call to us; ignore peers that were not asked or did not try."""
        if sender in self._asked and answer.ticket == self._ticket and answer.reachable is not None:
            self._found[sender] = answer.reachable

    def judge(self, hosts: Mapping[PeerId, str]) -> None:
        """Decide from the answers whether we can be called; keep the earlier result without any answer.

        `hosts` maps each connected peer to the address that it is connected from. A peer that is connected through a
        relay only has the address "". It could not answer, and is not counted among those asked. It may well be on
        this machine.
        """
        direct = {peer: host for peer, host in hosts.items() if host}
        if self._on_loopback and any(LOOPBACK not in hosts_behind(host) for host in direct.values()):
            self._take(False)
        elif self._found:
            self._take(is_reachable(self._found.values(), len(self._asked & (direct.keys() | self._found.keys()))))

    def _take(self, dialable: bool) -> None:
        if dialable != self._dialable:
            self._dialable = dialable
            log.info("reach", dialable=dialable, tried=len(self._found))
            self._feed(ReachSeen(dialable))

    @property
    def _ticket(self) -> int:
        return self._looks % (1 << 32)

    async def run(self, hosts: HostsOf) -> None:
        """Look at intervals, until cancelled; `hosts` returns the addresses from which peers are connected."""
        while True:
            if not self.ask():
                await asyncio.sleep(ALONE_SECONDS)
                continue
            await asyncio.sleep(ANSWER_SECONDS)
            self.judge(await hosts())
            await asyncio.sleep(LOOK_SECONDS)


async def watch_reach(options: NodeOptions, driver: RoundDriver, addresses: OwnAddresses, hosts: HostsOf) -> None:
    """Look until cancelled, unless the owner announces an address for this peer."""
    if options.announce:
        return
    core = driver.engine.core

    def whom() -> Set[PeerId]:
        return askable(core.presence.live(driver.now), (machine.chain for machine in driver.engine.machines))

    def feed(seen: ReachSeen) -> None:
        driver.feed(seen)
        addresses.hurry()

    loop = ReachLoop(core.me, lambda: addresses.port, whom, driver.post, feed, options.on_loopback)
    driver.requests.hear_probes(loop.hear)
    await loop.run(hosts)
