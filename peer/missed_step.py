"""Catching up by one version: the step that led there is a small part of the state (design §8)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from coordinator.certificate import Certificate
from dht.identity import PeerId
from peer.outer_optimizer import OuterState
from peer.round_work import RoundWork
from peer.state_transfer import StateTransfer

HOLDERS_ASKED_MAX = 4  # one after the other, before the whole state is fetched


async def missed_step(
    certificate: Certificate, holders: Sequence[PeerId], work: RoundWork, transfer: StateTransfer
) -> OuterState | None:
    """The certified state, if we hold the one before it and somebody tells us the step between them."""
    if not work.precedes(certificate):
        return None
    length_bytes = work.step_bytes(certificate)
    for holder in holders[:HOLDERS_ASKED_MAX]:
        step = await transfer.fetch_step(certificate, holder, length_bytes)
        state = None if step is None else await work.run(partial(work.follow, certificate, step))
        if state is not None:
            return state
    return None
