"""Learners that lie about their outer gradient (`byzantine.md` §3.1), by name. They train, and send something else.

To add one: a function of a `Scene` and a strength, and a line in `ATTACKS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

import torch
from torch import Tensor

from dht.errors import UsageError
from peer.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Scene:
    """What an attacker knows when it contributes; vectors are float32[elements] of the fragment."""

    own: Tensor  # the outer gradient that it would send if it were honest
    honest: Callable[[], list[Tensor]]  # what the honest learners have at this moment
    attackers: int
    seed: int

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the honest ones, element by element."""
        stacked = torch.stack(self.honest())
        spread = stacked.std(0) if len(stacked) > 1 else torch.zeros_like(stacked[0])
        return stacked.mean(0), spread


def _sign_flip(scene: Scene, factor: float) -> Tensor:
    return scene.own * -factor


def _scaling(scene: Scene, factor: float) -> Tensor:
    return scene.own * factor


def _random_noise(scene: Scene, factor: float) -> Tensor:
    generator = torch.Generator().manual_seed(scene.seed)
    lengths = torch.stack([vector.norm() for vector in scene.honest()])
    deviation = factor * float(lengths.mean()) / math.sqrt(len(scene.own))
    return torch.randn(len(scene.own), generator=generator) * deviation


def _zero(scene: Scene, factor: float) -> Tensor:
    return torch.zeros_like(scene.own)


def _alie(scene: Scene, z: float) -> Tensor:
    """A little is enough: as far from the mean as honest ones may be; z = 0 chooses the textbook's z_max."""
    mean, spread = scene.moments()
    if z == 0:
        members = len(scene.honest()) + scene.attackers
        supporters = members // 2 + 1 - scene.attackers
        share = (members - scene.attackers - supporters) / (members - scene.attackers)
        z = NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0
    return mean - z * spread


def _ipm(scene: Scene, epsilon: float) -> Tensor:
    mean, _ = scene.moments()
    return -epsilon * mean


@dataclass(frozen=True, slots=True)
class AttackRule:
    """One attack: `lie` gives the outer gradient to send; `parameter` names its strength."""

    name: str
    lie: Callable[[Scene, float], Tensor]
    parameter: str = "factor"
    default: float = 1.0
    garbles: bool = False  # the encoded bytes, so that they decode to values that are not finite


ATTACKS: Mapping[str, AttackRule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            AttackRule("sign_flip", _sign_flip, default=10.0),
            AttackRule("scaling", _scaling, default=100.0),
            AttackRule("random_noise", _random_noise, default=10.0),
            AttackRule("zero", _zero),
            AttackRule("nan", _zero, garbles=True),
            AttackRule("alie", _alie, parameter="z", default=1.5),
            AttackRule("ipm", _ipm, parameter="epsilon", default=2.0),
        )
    }
)
"""Every attack by the name that `--attack` gives it."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack at its strength."""

    rule: AttackRule
    strength: float

    def outer_gradient(self, scene: Scene) -> Tensor:
        """What is sent instead of `scene.own`."""
        return self.rule.lie(scene, self.strength)

    def forge(self, part_roots: tuple[bytes, ...], blobs: BlobStore, leaf_bytes: int) -> tuple[bytes, ...]:
        """Roots of the parts that are sent: garbled ones if that is the attack, and committed to truthfully."""
        if not self.rule.garbles:
            return part_roots
        return tuple(_garble(root, blobs, leaf_bytes) for root in part_roots)


@dataclass(frozen=True, slots=True)
class AttackOrder:
    """`NAME:COUNT[:PARAMETER=VALUE]` of the command line."""

    attack: Attack
    count: int

    @classmethod
    def parse(cls, text: str) -> AttackOrder:
        """Raises UsageError with what is wrong."""
        name, _, rest = text.partition(":")
        count, _, setting = rest.partition(":")
        rule = ATTACKS.get(name)
        if rule is None:
            raise UsageError(f"there is no attack {name!r}; choose one of {', '.join(ATTACKS)}")
        if not count.isdecimal():
            raise UsageError(f"--attack {text!r} is not of the form NAME:COUNT, as in {name}:2")
        parameter, _, value = setting.partition("=")
        try:
            strength = float(value) if setting else rule.default
        except ValueError:
            parameter = ""
        if setting and parameter != rule.parameter:
            raise UsageError(f"the attack {name} has the parameter {rule.parameter}, as in {name}:1:{rule.parameter}=2")
        return cls(Attack(rule, strength), int(count))


def _garble(root: bytes, blobs: BlobStore, leaf_bytes: int) -> bytes:
    """Put beside a part the same with a first number (a scale, or a value) of all ones: NaN in every format."""
    part = blobs.get(root)
    if not part:
        return root
    garbled = b"\xff" * min(4, len(part)) + part[4:]
    return blobs.add(garbled, leaf_bytes)
