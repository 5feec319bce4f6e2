"""Checks before anything is loaded or started that an invite leads to a peer, and that the peer admits its holder.

So a refusal costs no waiting. The check reveals an address and a temporary key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from dht.addresses import PeerAddress, ip_of
from dht.daemon.caller import Caller
from dht.door import Door
from dht.errors import NetworkError, UsageError
from dht.identity import Identity
from dht.invite import Invite
from dht.invite_reach import no_answer_message
from dht.meeting import answers, any_answers
from dht.refusal import ADVICE, Refusal
from peer.machine.paths import runtime_directory

Call = Callable[[str, int], Coroutine[Any, Any, bool]]


def first_call(invite: Invite, key: Path, looks: bool = True) -> None:
    """Raise NetworkError if no peer answers at the invite's addresses, UsageError if all that answer refuse the invite.

    A peer that already has a `key` may be admitted whatever became of its invite; its own daemon asks that later. With
    `looks`, an observer asks with another key than its own, unless the invite names that key.
    """
    known = key.exists()
    if invite.named is not None:
        invite.check_named(Identity.load(key).peer_id if known else None)
    asyncio.run(_call(invite, asks_doors=invite.named is None and (looks or not known)))


async def _call(invite: Invite, asks_doors: bool) -> None:
    if not await any_endpoint_answers(invite.addresses, answers):
        raise NetworkError(no_answer_message(invite.addresses))
    if asks_doors and (refused := await _refusal(invite)) is not None:
        raise UsageError(ADVICE[refused])


async def any_endpoint_answers(addresses: Sequence[PeerAddress], call: Call) -> bool:
    """Whether `call` gets through to one of these; true if there is one that only the daemon can call."""
    if not all(address.over_tcp and ip_of(address.host) is not None for address in addresses):
        return True  # resolving a name may take longer than a call, and cannot be cancelled

    places = {(address.host, address.port) for address in addresses}
    return await any_answers(call(*place) for place in sorted(places))


async def _refusal(invite: Invite) -> Refusal | None:
    """Return why all that answer refuse this invite, None if one admits us; raises NetworkError if none answers."""
    async with Caller.start(runtime_directory()) as caller:
        if not await caller.meets(invite.addresses, Door(invite.pass_for)):
            raise NetworkError(no_answer_message(invite.addresses))
        return next(iter(caller.refusals)) if all(caller.refusals) else None
