"""Catching up version by version: the step that led to a version is much smaller than its state (design §8)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from dht.identity import PeerId
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import HeldState
from peer.sync.step_client import StepClient

TRIES_MAX = 4  # tries that cost time, before the whole state is fetched; the answer "I do not know" costs none


def missed_versions(chain: Chain, digest: bytes, work: TensorWorker, most_bytes: int) -> list[Certificate]:
    """Return the certificates after this version up to the newest one, oldest first; none if their steps are too large.

    `most_bytes` limits the size of all these steps together.
    """
    missed: list[Certificate] = []
    for certificate in reversed(chain.certificates):
        most_bytes -= work.step_bytes(certificate)
        if most_bytes < 0:
            break
        missed.insert(0, certificate)
        if certificate.outcome.parent == digest:
            return missed
    return []


async def follow_steps(
    held: HeldState, missed: Sequence[Certificate], holders: Sequence[PeerId], work: TensorWorker, steps: StepClient
) -> HeldState:
    """Follow the steps that holders serve, from the state that we hold; return the newest certified state reached."""
    for certificate in missed:
        reached = await _follow_step(held, certificate, holders, work, steps)
        if reached is None:
            break
        held = reached
    return held


async def _follow_step(
    held: HeldState, certificate: Certificate, holders: Sequence[PeerId], work: TensorWorker, steps: StepClient
) -> HeldState | None:
    length_bytes, tries = work.step_bytes(certificate), 0
    for holder in sorted(holders, key=steps.has_stalled):
        step = await steps.fetch(certificate, holder, length_bytes)
        reached = None if step is None else await work.run(partial(work.follow, certificate, step, held))
        if reached is not None:
            return reached
        tries += step is not None or steps.has_stalled(holder)
        if tries == TRIES_MAX:
            break
    return None
