"""A hostile learner's process: `peer.learner.process` with an attack.

`python -m peer.attacks.learner SOCKET MEMORY PARENT`
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from peer.learner.process import main

if TYPE_CHECKING:
    from peer.attacks.attack import Attack


def attack_named(name: str) -> Attack:
    """Return a new attacker for `NAME[:PARAMETER=VALUE]`; raises UsageError."""
    from peer.attacks.zoo import AttackChoice

    return AttackChoice.parse(name).make()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], attack_named))
