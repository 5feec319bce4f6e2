"""Resolves the DNS names that strangers give as their own addresses, to public IP addresses only.

The name itself is never dialled. libp2p would resolve it again, and by then it might point into our own network.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dht.addresses import ip_of

LOOKUPS_AT_ONCE = 8
LOOKUP_SECONDS_MAX = 1.5  # presence waits for it; a slow resolver has the answer the next time
KEPT_SECONDS = 60.0  # failures, too; a home whose address changes is soon dialled at the new one
HOSTS_PER_NAME = 2

RANDOM = secrets.SystemRandom()

LookUp = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class _Found:
    hosts: tuple[str, ...]
    until: float


async def look_up(name: str) -> list[str]:
    """Return all IP addresses of a name from this machine's resolver; empty if it has no answer."""
    from dns.asyncresolver import Resolver  # imported only now: few runs have peers with DNS names
    from dns.exception import DNSException

    try:
        answers = await Resolver().resolve_name(name, lifetime=LOOKUP_SECONDS_MAX)
    except (DNSException, OSError, ValueError):  # the last if /etc/resolv.conf has something else than addresses
        return []
    return list(answers.addresses())


class Names:
    """A cache of recent lookups. Only a few names are looked up at once, however many strangers give."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._found: dict[str, _Found] = {}

    async def hosts(self, names: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the public IP addresses of these names, by name; names that are not resolved yet are left out."""
        now = asyncio.get_running_loop().time()
        self._found = {name: found for name, found in self._found.items() if found.until > now}
        new = sorted(set(names) - self._found.keys())
        # drawn at random, so that no peer's names block others for good
        drawn = RANDOM.sample(new, min(len(new), LOOKUPS_AT_ONCE))
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
