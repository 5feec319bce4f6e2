"""A learner program that takes a gigabyte more than the run needs."""

from __future__ import annotations

import sys
from typing import Any

import torch

from peer.learner.process import main


class Greedy:
    def read(self, windows: Any) -> Any:
        return windows

    def prepare(self, learner: Any) -> None:
        learner.hoard = torch.ones(1 << 28)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda name: Greedy()))  # type: ignore[arg-type, return-value]
