"""What hostile peers do to the protocol, by the name that `--attack` gives it (`byzantine.md` §3.2).

The behaviours are those of `coordinator.virtual.collusion`, in processes and in a lab; the learner of such a peer is
honest. An attack of your own is a subclass of `Mischief` or of `MessageAttack`: see `docs/lab.md` and
`examples/attacks/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from coordinator.virtual.collusion import TRICKS, Trick, mischief_of
from coordinator.virtual.mischief import Mischief
from dht.identity import PeerId, Signer
from peer.attacks.forgery import FORGERIES
from peer.attacks.messages import MESSAGE_ATTACKS, MessageAttack
from peer.attacks.names import MORE_WORK, class_named

_IN_PROCESSES = (
    "two_joins",
    "two_commits",
    "two_results",
    "two_checks",
    "two_votes",
    "vote_and_abstain",
    "vote_for_all",
    "false_results",
    "drop_one",
    "count_twice",
    "empty_votes",
    "misshapen_commits",
    "misshapen_checks",
    "other_bytes",
    "short_parts",
    "false_evidence",
    "doubt_everything",
    "refute_everything",
    "look_away",
    "never_commit",
    "never_scatter",
    "never_return",
    "never_open",
    "never_check",
    "never_vote",
    "silent_from_commit",
    "silent_from_part",
    "silent_from_check",
    "shun_half",
    "starve_half",
)

PROTOCOL_ATTACKS: Mapping[str, Trick] = MappingProxyType({name: TRICKS[name] for name in _IN_PROCESSES})
"""How each differs from an honest peer, in fields of `Mischief`. What needs accomplices, or a core that lies to itself,
only virtual peers have."""

PROCESS_ATTACKS = (*PROTOCOL_ATTACKS, *FORGERIES, *MESSAGE_ATTACKS)
"""For `muster swarm --attack` and plans of chaos; learners are honest."""

LAB_ATTACKS = (*TRICKS, *FORGERIES)
"""For `muster lab --attack`; learners are honest."""


def is_process_attack(name: str) -> bool:
    """Whether a process can do this with an honest learner; raises UsageError if a class cannot be imported."""
    return name in PROCESS_ATTACKS or own_attack(name) is not None


def is_lab_attack(name: str) -> bool:
    """Whether a virtual peer can do this with an honest learner; raises UsageError if a class cannot be imported."""
    own = None if name in LAB_ATTACKS else own_attack(name)
    return name in LAB_ATTACKS or (own is not None and issubclass(own, Mischief))


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
