"""The attackers of a lab: they lie about their work, merge falsely, or break the protocol with honest work."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.adversary.mischief import Mischief
from dht.identity import PeerId, Signer
from peer.attacks.attack import Attack
from peer.attacks.forgery import FORGERIES
from peer.attacks.protocol import is_lab_attack, is_mischief, mischief_named
from peer.attacks.work import ForgingWork
from peer.attacks.zoo import AttackChoice
from peer.lab.lab_context import LabContext
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors


def lies_of(choice: AttackChoice | None) -> Attack | None:
    """Return the attack on training, contribution and claims; None for an attacker that learns honestly."""
    return None if choice is None or is_lab_attack(choice.name) else choice.make()


def work_of(choice: AttackChoice | None, context: LabContext, anchors: Anchors) -> TensorWorker:
    """Return the worker that merges for this peer, honest or forging."""
    shared = (context.config, anchors, context.blobs, context.worker)
    if choice is not None and choice.name in FORGERIES:
        return ForgingWork(FORGERIES[choice.name], *shared)
    return TensorWorker(*shared)


def mischief_of(choice: AttackChoice, signer: Signer, peers: Collection[PeerId]) -> Mischief | None:
    """Return the lies that the attacker tells to these peers; None if it tells none."""
    return mischief_named(choice.name, signer, peers) if is_mischief(choice.name) else None
