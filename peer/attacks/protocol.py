"""What hostile processes do to the protocol, by the name that `--attack` gives it (`byzantine.md` §3.2).

The same behaviours as in the simulator (`coordinator.virtual.mischief`); the learner of such a peer is honest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from coordinator.events import Finding
from coordinator.virtual.mischief import Mischief
from dht.identity import PeerId, Signer
from peer.attacks.messages import MESSAGE_ATTACKS

PROTOCOL_ATTACKS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "two_joins": {"two_faced": frozenset({"join"})},
        "two_commits": {"two_faced": frozenset({"commit"})},
        "two_results": {"two_faced": frozenset({"result"})},
        "two_checks": {"two_faced": frozenset({"check"})},
        "two_votes": {"two_faced": frozenset({"vote"})},
        "vote_and_abstain": {"takes_back": True},
        "false_results": {"cheats": True},
        "count_twice": {"altered": frozenset({"result"})},
        "empty_votes": {"altered": frozenset({"vote"})},
        "false_evidence": {"slanders": True},
        "doubt_everything": {"complaint": Finding.DOUBTFUL},
        "refute_everything": {"complaint": Finding.REFUTED},
        "never_return": {"mute": frozenset({"result"})},
        "never_open": {"mute": frozenset({"opening"})},
        "shun_half": {"shuns_half": True},
    }
)
"""How each differs from an honest peer, in fields of `Mischief`."""

PROCESS_ATTACKS = (*PROTOCOL_ATTACKS, *MESSAGE_ATTACKS)
"""What only processes do, for `muster swarm --attack` and plans of chaos; their learners are honest."""


def mischief_named(name: str, signer: Signer, peers: Collection[PeerId]) -> Mischief:
    """One of PROTOCOL_ATTACKS among these peers: every second one is told the other version or nothing."""
    others = sorted(set(peers) - {signer.peer_id})
    fields: dict[str, object] = {**PROTOCOL_ATTACKS[name], "others": frozenset(others[::2])}
    if fields.get("slanders"):
        fields["slanders"] = frozenset(others[:1])
    return Mischief(signer, **fields)  # type: ignore[arg-type]
