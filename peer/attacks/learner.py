"""A hostile learner's process, as `peer.learner.process` but for what it lies about.

`python -m peer.attacks.learner SOCKET MEMORY PARENT`
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from peer.learner.process import main

if TYPE_CHECKING:
    from peer.attacks.attack import Attack


def attack_named(name: str) -> Attack:
    """A fresh attacker for `NAME[:PARAMETER=VALUE]`; raises UsageError."""
    from peer.attacks.zoo import AttackChoice

    return AttackChoice.parse(name).make()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], attack_named))
