"""All hostile behaviours by name, and bands of hostile peers that know each other.

`draw_band` draws behaviours for the simulator. Hostile peers of a lab and real processes use the same names for the
behaviours of a lone peer (`peer.attacks.protocol`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from coordinator.adversary import lies
from coordinator.adversary.mischief import Mischief
from coordinator.core.events import Finding
from dht.identity import PeerId, Signer

Trick = Mapping[str, object]
"""Fields of `Mischief` without the ones that name peers."""

IN_ORDER = ("join", "roster", "commit", "bundle", "part", "result", "opening", "check", "redo", "proposal", "vote")
"""The kinds of messages in a round, in order; a withholding peer may stop at any of these."""

TRICKS: Mapping[str, Trick] = MappingProxyType(
    {
        # contradicting statements
        "two_joins": {"two_faced": frozenset({"join"})},
        "two_rosters": {"two_faced": frozenset({"roster"})},
        "two_commits": {"two_faced": frozenset({"commit"})},
        "two_bundles": {"two_faced": frozenset({"bundle"})},
        "two_results": {"two_faced": frozenset({"result"})},
        "two_checks": {"two_faced": frozenset({"check"})},
        "two_redos": {"two_faced": frozenset({"redo"})},
        "two_proposals": {"two_faced": frozenset({"proposal"})},
        "two_votes": {"two_faced": frozenset({"vote"})},
        "two_abstentions": {"two_faced": frozenset({"abstain"})},
        "vote_and_abstain": {"takes_back": True},
        "vote_for_all": {"votes_for_all": True},
        # false or malformed statements
        "false_results": {"cheats": True},
        "garbage_commits": {"garbles": True},
        "raised_shares": {"raises": True},
        "claim_more": {"claims": True},
        "drop_one": {"drops": True},
        "count_twice": {"altered": frozenset({"result"})},
        "empty_votes": {"altered": frozenset({"vote"})},
        "expired_joins": {"altered": frozenset({"join"})},
        "misshapen_rosters": {"altered": frozenset({"roster"})},
        "misshapen_commits": {"altered": frozenset({"commit"})},
        "misshapen_bundles": {"altered": frozenset({"bundle"})},
        "misshapen_checks": {"altered": frozenset({"check"})},
        "misshapen_redos": {"altered": frozenset({"redo"})},
        "void_proposals": {"altered": frozenset({"proposal"})},
        "other_bytes": {"spoils": lies.flip},
        "short_parts": {"spoils": lies.cut},
        "say_again": {"replays": True},
        # harm to others
        "false_evidence": {"slanders": True},
        "frame": {"frames": True},
        "shut_out": {"shuts_out": True},
        "pass_over": {"passes_over": True},
        "long_deadlines": {"stretches": True},
        "grind_coin": {"grinds": True},
        "doubt_everything": {"complaint": Finding.DOUBTFUL},
        "refute_everything": {"complaint": Finding.REFUTED},
        "open_nothing": {"complaint": Finding.UNOPENED},
        "look_away": {"complaint": Finding.CONFIRMED},
        # silence
        "never_join": {"mute": frozenset({"join"})},
        "never_gather": {"mute": frozenset({"roster"})},
        "never_commit": {"mute": frozenset({"commit"})},
        "never_bundle": {"mute": frozenset({"bundle"})},
        "never_scatter": {"mute": frozenset({"part"})},
        "never_return": {"mute": frozenset({"result"})},
        "never_open": {"mute": frozenset({"opening"})},
        "never_check": {"mute": frozenset({"check"})},
        "never_redo": {"mute": frozenset({"redo"})},
        "never_propose": {"mute": frozenset({"proposal"})},
        "never_vote": {"mute": frozenset({"vote"})},
        "silent_from_commit": {"mute": frozenset(IN_ORDER[2:])},
        "silent_from_part": {"mute": frozenset(IN_ORDER[4:])},
        "silent_from_check": {"mute": frozenset(IN_ORDER[7:])},
        "shun_half": {"shuns_half": True},
        "starve_half": {"halved": frozenset({"part"})},
        "give_half": {"halved": frozenset({"result"})},
        "open_half": {"halved": frozenset({"opening"})},
        "hoard_votes": {"hoards": True, "shuts_out": True},
    }
)
"""By name, the differences of a hostile peer from an honest one."""


def mischief_of(signer: Signer, names: Collection[str], victims: Collection[PeerId]) -> Mischief:
    """Return a mischief with all these behaviours; if two exclude each other, the later one counts."""
    fields: dict[str, object] = {}
    for name in names:
        for key, value in TRICKS[name].items():
            known = fields.get(key)
            both = isinstance(known, frozenset) and isinstance(value, frozenset)
            fields[key] = known | value if both else value  # type: ignore[operator]
    return Mischief(signer, victims=frozenset(victims), **fields)  # type: ignore[arg-type]


def draw_names(draw: random.Random) -> list[str]:
    """Draw a few tricks: a peer with many would be convicted before most of them matter."""
    return draw.sample(list(TRICKS), draw.choice([1, 1, 2, 2, 3, 5]))


def draw_band(
    signers: Sequence[Signer], honest: Sequence[PeerId], draw: random.Random, sybils: Sequence[Signer] = ()
) -> list[Mischief]:
    """Draw the mischief of each hostile peer. In half of all bands they know each other.

    Peers of such a band are loyal, and have the same victims. They show their second face to the same half of the
    honest peers, and often use the same tricks. The victims are one honest peer, many, or all. `sybils` are dealt out
    in turn to the peers that join for them.
    """
    together = len(signers) > 1 and draw.random() < 0.5
    half, victims = frozenset(draw.sample(honest, len(honest) // 2)), _victims(honest, draw)
    common = draw_names(draw) if together and draw.random() < 0.5 else None
    ids = frozenset(signer.peer_id for signer in signers)
    band: list[Mischief] = []
    for number, signer in enumerate(signers):
        names = common or draw_names(draw)
        mischief = mischief_of(signer, names, victims if together else _victims(honest, draw))
        mischief = replace(mischief, sybils=tuple(sybils[number :: len(signers)]))
        if together:
            accomplices = ids - {signer.peer_id}
            mischief = replace(mischief, others=half, accomplices=accomplices)
        band.append(mischief)
    return band


def _victims(honest: Sequence[PeerId], draw: random.Random) -> frozenset[PeerId]:
    return frozenset(draw.sample(honest, draw.choice([1, 1, (len(honest) + 1) // 2, len(honest)])))
