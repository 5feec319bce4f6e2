"""A custom attack: send only a part of the own work. Try it from the folder above `examples/`:

PYTHONPATH=. muster lab --learners 4 --steps 100 --attack examples.attacks.half_hearted.HalfHearted:1:share=0.1
"""

from typing import ClassVar

from torch import Tensor

from peer import Attack, Scene


class HalfHearted(Attack):
    """Sends a `share` of its outer gradient: a free rider whose work at least points in the right direction."""

    parameter: ClassVar[str] = "share"
    default: ClassVar[float] = 0.5

    def lie(self, scene: Scene) -> Tensor:
        return scene.own * self.strength
