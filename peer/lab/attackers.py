"""What an attacker of a lab does: it lies about its work, merges falsely, or breaks the protocol with honest work."""

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
    """What it trains on, contributes and claims; None: as an honest learner."""
    return None if choice is None or is_lab_attack(choice.name) else choice.make()


def work_of(choice: AttackChoice | None, context: LabContext, anchors: Anchors) -> TensorWorker:
    """How it merges."""
    shared = (context.config, anchors, context.blobs, context.worker)
    if choice is not None and choice.name in FORGERIES:
        return ForgingWork(FORGERIES[choice.name], *shared)
    return TensorWorker(*shared)


def mischief_of(choice: AttackChoice, signer: Signer, peers: Collection[PeerId]) -> Mischief | None:
    """What it says to these peers instead of the truth; None: nothing."""
    return mischief_named(choice.name, signer, peers) if is_mischief(choice.name) else None
