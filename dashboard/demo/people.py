"""Names and devices of invented peers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dht.identity import Identity, PeerId
from dht.statement import digest_of

ADJECTIVES = ("quiet", "amber", "swift", "mossy", "lunar", "brisk", "copper", "gentle", "misty", "polar")
ANIMALS = ("otter", "heron", "lynx", "marten", "puffin", "badger", "ibex", "wren", "orca", "gecko")
DEVICES = (  # with their speeds relative to the first
    ("RTX 3060 12 GB", 1.0),
    ("RTX 3090 24 GB", 1.6),
    ("RTX 4070 12 GB", 1.4),
    ("RTX 3080 Ti 12 GB", 1.5),
    ("RTX 4060 8 GB", 0.9),
    ("Tesla T4 16 GB", 0.5),
)
SOFTWARE = ("0.1.0",) * 4


@dataclass(frozen=True)
class Person:
    """One invented peer. `speed` is relative to the slowest common device."""

    identity: Identity
    name: str
    device: str
    speed: float
    software: str
    dialable: bool

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id


def make_people(count: int, seed: int) -> tuple[Person, ...]:
    """Make the first `count` peers of this seed; a larger count only adds peers."""
    return tuple(_person(number, seed) for number in range(count))


def _person(number: int, seed: int) -> Person:
    draw = Random(f"person {number} of {seed}")
    device, speed = draw.choice(DEVICES)
    batch, place = divmod(number, len(ADJECTIVES) * len(ANIMALS))
    adjective = ADJECTIVES[(7 * place + seed) % len(ADJECTIVES)]
    animal = ANIMALS[(3 * place + place // len(ADJECTIVES) + seed) % len(ANIMALS)]
    return Person(
        identity=Identity(digest_of(b"demo", seed.to_bytes(8, "big"), number.to_bytes(4, "big"))),
        name=f"{adjective}-{animal}" + (f"-{batch + 1}" if batch else ""),
        device=device,
        speed=speed * draw.uniform(0.95, 1.05),
        software=draw.choice(SOFTWARE),
        dialable=draw.random() < 0.7,
    )
