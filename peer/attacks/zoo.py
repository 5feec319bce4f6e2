"""Every attack on values by its `--attack` name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coordinator.adversary.mischief import Mischief
from dht.errors import UsageError
from peer.attacks.attack import Attack
from peer.attacks.data import Backdoor, LabelFlip
from peer.attacks.memory import DeltaReplay, Sleeper, Stale
from peer.attacks.messages import MessageAttack
from peer.attacks.names import MORE_WORK, class_named
from peer.attacks.omniscient import Alie, Ipm, Mimic, MinMax, MinSum, OptimisedAlie, OptimisedIpm
from peer.attacks.plain import (
    FixedDirection,
    NotANumber,
    RandomNoise,
    Scaling,
    SignFlip,
    TokenLie,
    WorkLie,
    Zero,
    with_work,
)
from peer.attacks.protocol import is_process_attack

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType(
    {
        "sign_flip": SignFlip,
        "scaling": Scaling,
        "random_noise": RandomNoise,
        "fixed_direction": FixedDirection,
        "label_flip": LabelFlip,
        "alie": Alie,
        "ipm": Ipm,
        "alie_optimised": OptimisedAlie,
        "ipm_optimised": OptimisedIpm,
        "min_max": MinMax,
        "min_sum": MinSum,
        "mimic": Mimic,
        "zero": Zero,
        "delta_replay": DeltaReplay,
        "stale": Stale,
        "sleeper": Sleeper,
        "backdoor": Backdoor,
        "token_lie": TokenLie,
        "work_lie": WorkLie,
        "nan": NotANumber,
    }
)

CLAIMED = 4.0  # times the work: far more than truncation lets count


@dataclass(frozen=True, slots=True)
class AttackChoice:
    """An attack and its strength.

    `name` is one of ATTACKS, or MODULE.CLASS of your own; the suffix «+work» adds a claim to more work. An attack on
    the protocol is a name alone.
    """

    name: str
    strength: float

    @classmethod
    def parse(cls, text: str) -> AttackChoice:
        """Parse `NAME[:PARAMETER=VALUE]` of the command line; raises UsageError with the mistake."""
        name, colon, setting = text.partition(":")
        kind = attack_named(name)
        if colon and not kind.parameter:
            raise UsageError(f"the attack {name} has no parameter; leave out what follows its name and number")
        parameter, _, value = setting.partition("=")
        try:
            strength = float(value) if colon else kind.default
        except ValueError:
            strength = math.nan
        if colon and (parameter != kind.parameter or not math.isfinite(strength)):
            example = f"{kind.parameter}={kind.default:g}"
            raise UsageError(f"the attack {name} has the parameter {kind.parameter}, as in {example}")
        if not kind.least <= strength <= kind.most:
            most = "" if kind.most == math.inf else f" and at most {kind.most:g}"
            raise UsageError(f"{kind.parameter} of the attack {name} is at least {kind.least:g}{most}, not {value}")
        if kind.whole and strength != int(strength):
            raise UsageError(f"{kind.parameter} of the attack {name} is a whole number, not {value}")
        return cls(name, strength)

    def make(self) -> Attack:
        """Return a new attacker; raises UsageError if there is no such attack."""
        return attack_named(self.name)(self.strength)


@dataclass(frozen=True, slots=True)
class AttackOrder:
    """`NAME:COUNT[:PARAMETER=VALUE]` of the command line."""

    choice: AttackChoice
    count: int

    @classmethod
    def parse(cls, text: str, is_on_protocol: Callable[[str], bool] = lambda _: False) -> AttackOrder:
        """Parse an order; raises UsageError. Attacks that `is_on_protocol` accepts are valid without parameter."""
        name, _, rest = text.partition(":")
        count, colon, setting = rest.partition(":")
        on_protocol = is_on_protocol(name)
        if not on_protocol:
            attack_named(name)
        if not count.isdecimal() or int(count) < 1 or (on_protocol and colon):
            raise UsageError(f"--attack {text!r} is not of the form NAME:COUNT, as in {name}:2")
        choice = AttackChoice(name, 1.0) if on_protocol else AttackChoice.parse(name + colon + setting)
        return cls(choice, int(count))


def attack_named(name: str) -> type[Attack]:
    """Return one of ATTACKS, or the class of that dotted name; «+work» adds a claim to more work. Raises UsageError."""
    if name.endswith(MORE_WORK):
        plain = name.removesuffix(MORE_WORK)
        if plain.endswith(MORE_WORK):
            raise UsageError(f"{MORE_WORK} stands once behind an attack, not twice as in {name}")
        if is_process_attack(plain):
            raise UsageError(f"{plain} is an attack on the protocol, with an honest learner: leave out {MORE_WORK}")
        return _claiming(attack_named(plain))
    if name in ATTACKS:
        return ATTACKS[name]
    if is_process_attack(name):
        raise UsageError(f"{name} is an attack of real processes: try it with `muster swarm --attack {name}:1`")
    found = class_named(name)
    if found in (Attack, Mischief, MessageAttack):
        raise UsageError(f"{name} attacks nothing: it is what attacks are made of; name a subclass of it")
    if found is None or not issubclass(found, Attack):
        raise UsageError(f"there is no attack {name!r}; choose one of `muster lab --list`, or MODULE.CLASS of your own")
    return found


def _claiming(kind: type[Attack]) -> type[Attack]:
    """Return this attack with a claim to more work, for the largest weight that this can give (docs/adr/0039)."""
    return type(f"{kind.__name__}{MORE_WORK}", (kind,), {"claim": lambda _, encoded: with_work(encoded, CLAIMED)})
