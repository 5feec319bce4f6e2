"""Where names lead that strangers give as their own addresses: to public IP addresses, or nowhere.

A name itself is never called. libp2p would look it up anew, and it might lead into our own network by then.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dht.addresses import ip_of

LOOKUPS_AT_ONCE = 8
LOOKUP_SECONDS_MAX = 1.5  # who looks at presence waits for it; what a slow resolver finds later is there the next time
KEPT_SECONDS = 60.0  # also that a name leads nowhere; a home that gets another address is called there soon
HOSTS_PER_NAME = 2

LOT = secrets.SystemRandom()

LookUp = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class _Found:
    hosts: tuple[str, ...]
    until: float


async def look_up(name: str) -> list[str]:
    """All IP addresses of a name, asked of this machine's resolver; none if it has no answer."""
    from dns.asyncresolver import Resolver  # not before: in few runs does anybody give a name
    from dns.exception import DNSException

    try:
        answers = await Resolver().resolve_name(name, lifetime=LOOKUP_SECONDS_MAX)
    except (DNSException, OSError):
        return []
    return list(answers.addresses())


class Names:
    """What was found lately. A few names are looked up at once, however many strangers give."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._found: dict[str, _Found] = {}

    async def hosts(self, names: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The public IP addresses of these names, by name; names that are not known yet are left out."""
        now = asyncio.get_running_loop().time()
        self._found = {name: found for name, found in self._found.items() if found.until > now}
        new = sorted(set(names) - self._found.keys())
        drawn = LOT.sample(new, min(len(new), LOOKUPS_AT_ONCE))  # nobody's names keep those of others waiting for good
        for name, hosts in zip(drawn, await asyncio.gather(*map(self._public_hosts, drawn)), strict=True):
            self._found[name] = _Found(hosts, now + KEPT_SECONDS)
        return {name: self._found[name].hosts for name in names if name in self._found}

    async def _public_hosts(self, name: str) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                found = await self._look_up(name)
        except TimeoutError:
            return ()
        public = [host for host in found if (address := ip_of(host)) is not None and address.is_global]
        return tuple(public[:HOSTS_PER_NAME])
