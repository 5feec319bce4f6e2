"""Attacks on the protocol by their `--attack` names.

The behaviours are those of `coordinator.adversary.collusion`, in processes and in a lab; the learner of such a peer
is honest. An attack of your own is a subclass of `Mischief` or `MessageAttack`: see `docs/how-to/lab.md` and
`examples/attacks/`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from coordinator.adversary.collusion import TRICKS, mischief_of
from coordinator.adversary.mischief import Mischief
from dht.identity import PeerId, Signer
from peer.attacks.evasion import EVASIVE
from peer.attacks.forgery import FORGERIES
from peer.attacks.messages import MESSAGE_ATTACKS, MessageAttack
from peer.attacks.names import MORE_WORK, class_named

LAB_ATTACKS = (*TRICKS, *FORGERIES)
"""For `muster lab --attack`; learners are honest."""

SWARM_ATTACKS = (EVASIVE, *MESSAGE_ATTACKS)
"""For `muster swarm --attack` and chaos plans only: evasive openings, and misuse of the wire."""

PROCESS_ATTACKS = (*LAB_ATTACKS, *SWARM_ATTACKS)
"""All attacks of processes with an honest learner."""


def is_process_attack(name: str) -> bool:
    """Whether processes with honest learners can attack so; raises UsageError if a class cannot be imported."""
    return name in PROCESS_ATTACKS or own_attack(name) is not None


def is_lab_attack(name: str) -> bool:
    """Whether virtual peers with honest learners can attack so; raises UsageError if a class cannot be imported."""
    return name in FORGERIES or is_mischief(name)


def is_mischief(name: str) -> bool:
    """Whether `mischief_named` accepts this; raises UsageError if a class cannot be imported."""
    own = None if name in PROCESS_ATTACKS else own_attack(name)
    return name in TRICKS or (own is not None and issubclass(own, Mischief))


def own_attack(name: str) -> type[Mischief] | type[MessageAttack] | None:
    """Return the attack on the protocol of this dotted name, or None; raises UsageError as `class_named` does."""
    if name.endswith(MORE_WORK):
        return None  # only attacks on values claim work
    found = class_named(name)
    if found is None or found in (Mischief, MessageAttack) or not issubclass(found, Mischief | MessageAttack):
        return None
    return found


def mischief_named(name: str, signer: Signer, peers: Collection[PeerId]) -> Mischief:
    """Return the mischief of this name among `peers`: one of TRICKS, several joined by plus signs, or a dotted name.

    Every second peer gets its other version of messages, or none.
    """
    others, names = sorted(set(peers) - {signer.peer_id}), name.split("+")
    own = None if TRICKS.keys() >= set(names) else own_attack(name)
    if own is not None and issubclass(own, Mischief):
        mischief = own(signer, victims=frozenset(others[:1]))
    else:
        mischief = mischief_of(signer, names, others[:1])
    return replace(mischief, others=frozenset(others[::2]))
