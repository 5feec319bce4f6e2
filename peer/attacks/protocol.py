"""What hostile peers do to the protocol, by the name that `--attack` gives it.

The behaviours are those of `coordinator.adversary.collusion`, in processes and in a lab; the learner of such a peer is
honest. An attack of your own is a subclass of `Mischief` or of `MessageAttack`: see `docs/how-to/lab.md` and
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
"""For `muster swarm --attack` and plans of chaos only: who opens by what is drawn, and what misuses the wire."""

PROCESS_ATTACKS = (*LAB_ATTACKS, *SWARM_ATTACKS)
"""All that processes can do with an honest learner."""


def is_process_attack(name: str) -> bool:
    """Whether a process can do this with an honest learner; raises UsageError if a class cannot be imported."""
    return name in PROCESS_ATTACKS or own_attack(name) is not None


def is_lab_attack(name: str) -> bool:
    """Whether a virtual peer can do this with an honest learner; raises UsageError if a class cannot be imported."""
    return name in FORGERIES or is_mischief(name)


def is_mischief(name: str) -> bool:
    """Whether `mischief_named` knows this; raises UsageError if a class cannot be imported."""
    own = None if name in PROCESS_ATTACKS else own_attack(name)
    return name in TRICKS or (own is not None and issubclass(own, Mischief))


def own_attack(name: str) -> type[Mischief] | type[MessageAttack] | None:
    """The attack on the protocol of this dotted name, None if it names none; raises UsageError as `class_named`."""
    if name.endswith(MORE_WORK):
        return None  # only attacks on values claim work
    found = class_named(name)
    if found is None or found in (Mischief, MessageAttack) or not issubclass(found, Mischief | MessageAttack):
        return None
    return found


def mischief_named(name: str, signer: Signer, peers: Collection[PeerId]) -> Mischief:
    """One of TRICKS, or several with a plus between them, or a `Mischief` of that dotted name, among these peers:
    every second one is told the other version or nothing."""
    others, names = sorted(set(peers) - {signer.peer_id}), name.split("+")
    own = None if TRICKS.keys() >= set(names) else own_attack(name)
    if own is not None and issubclass(own, Mischief):
        mischief = own(signer, victims=frozenset(others[:1]))
    else:
        mischief = mischief_of(signer, names, others[:1])
    return replace(mischief, others=frozenset(others[::2]))
