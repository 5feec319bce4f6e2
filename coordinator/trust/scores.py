"""What a contribution does to the loss: who looks into whose, and how findings add up (design §9). Pure functions.

After some versions, drawn by their coin, two other members of the roster take one member's contribution alone on the
side and see what it does to the loss: on windows that were that member's to train on, and on others. Floating point
tells here, so what they find stays with them: it is shown, and neither convicts nor weighs anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.chain.certificate import Outcome
from dht.identity import PeerId
from dht.statement import digest_of

SCORERS = 2  # members that look into one contribution
NEWEST_WEIGHT = 0.2  # of the newest finding in a running mean
DRAW_BYTES = 8


@dataclass(frozen=True, slots=True)
class Appraisal:
    """How much lower the loss is with one contribution than without, in nats per token; above 0 is better."""

    assigned: float  # on windows that its member was to train on
    other: float  # on windows that nobody was


@dataclass(frozen=True, slots=True)
class MemberScore:
    """Running means over the contributions of one member that we have looked into."""

    rounds: int = 0
    assigned: float = 0.0
    other: float = 0.0

    def after(self, found: Appraisal) -> MemberScore:
        """With one finding more: a plain mean of the first few, then the newest ones count most."""
        weight = max(NEWEST_WEIGHT, 1 / (self.rounds + 1))
        return MemberScore(
            self.rounds + 1,
            self.assigned + weight * (found.assigned - self.assigned),
            self.other + weight * (found.other - self.other),
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """Whose contribution to a version is looked into, and by whom; `seed` draws the windows."""

    scored: PeerId
    scorers: tuple[PeerId, ...]
    seed: bytes


def assignment_of(outcome: Outcome, share: float) -> Assignment | None:
    """Drawn by the coin of a certified version for this share of them: the same for everybody; None for the others.

    What a cell has brought is nobody's own work, and is not drawn.
    """
    if not share:  # in most runs: nothing is to be drawn
        return None
    seed = digest_of(
        b"muster-score", outcome.coin, outcome.fragment.to_bytes(4, "big"), outcome.version.to_bytes(8, "big")
    )
    able = sorted(one.peer for one in outcome.included() if one.cell is None and one.steps)
    if not able or _number(seed, b"whether") >= share:
        return None
    scored = able[int(_number(seed, b"whose") * len(able))]
    others = sorted(
        (peer for peer in outcome.roster if peer != scored), key=lambda peer: digest_of(seed, peer.encode())
    )
    return Assignment(PeerId(scored), tuple(map(PeerId, others[:SCORERS])), seed)


def _number(seed: bytes, what: bytes) -> float:
    """In [0, 1): 53 bits, so that it never rounds up to 1."""
    return (int.from_bytes(digest_of(seed, what)[:DRAW_BYTES], "big") >> 11) / 2.0**53
