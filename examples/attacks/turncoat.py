"""A custom attack on the protocol: be honest for a while, then vote twice. From the folder above `examples/`:

PYTHONPATH=. muster swarm --peers 5 --versions 24 --attack examples.attacks.turncoat.Turncoat:1
PYTHONPATH=. muster lab --learners 5 --steps 100 --attack examples.attacks.turncoat.Turncoat:1
"""

from __future__ import annotations

from dataclasses import dataclass

from peer import Mischief, Send, Statement

HONEST_VERSIONS = 3  # of each fragment, in which it earns trust


@dataclass(frozen=True, slots=True)
class Turncoat(Mischief):
    """Signs two votes for one version and sends the second one to every other peer, after HONEST_VERSIONS versions."""

    two_faced: frozenset[str] = frozenset({"vote"})

    def sends(self, action: Send) -> list[Send]:
        message = action.message
        if isinstance(message, Statement) and message.context.version < HONEST_VERSIONS:
            return [action]
        return Mischief.sends(self, action)
