"""Random faults, the same for the same seed: which peers are hit, and when."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from peer.chaos.plan import HOST, ChaosPlanFile, Event, Kind, Plan, Repeated

KILL_EVERY_SECONDS, KILL_FOR_SECONDS = 40.0, 15.0
STOP_EVERY_SECONDS, STOP_FOR_SECONDS = 90.0, 10.0
CALM_SECONDS_MAX = 30.0  # at the end, so that the peer that was hit last is back before peers are counted
CALM_SHARE_MAX = 0.25
PARTITION_FROM, PARTITION_TO = 0.35, 0.5  # as shares of the time
HOST_KILLED_AT = 0.6
SHAPED_FROM, SHAPED_FOR = 0.1, 0.2
DELAY_SECONDS, LOSS_SHARE, BITS_PER_SECOND = 0.05, 0.01, 20e6  # a poor home connection
SKEW_EVERY_SECONDS, SKEW_FOR_SECONDS, SKEW_SECONDS = 150.0, 30.0, 120.0
ATTACKED_FROM, ATTACKED_FOR, ATTACK = 0.7, 0.2, "false_results"
HOW: dict[Kind, dict[str, float]] = {"clock_skew": {"skew_seconds": SKEW_SECONDS}}
"""Further fields of the events that are drawn repeatedly."""


def plan_of(file: ChaosPlanFile, peers: int, minutes: float, seed: int | None = None) -> Plan:
    """Return a file's plan for this many peers and minutes; repeated faults are drawn by `seed`, or by the file's.

    Raises UsageError if it does not fit.
    """
    random = Random(file.seed if seed is None else seed)
    repeated: dict[Kind, Repeated] = {}
    if file.kills is not None:
        repeated["kill"] = file.kills
    if file.stops is not None:
        repeated["stop"] = file.stops
    return Plan.of(peers, minutes * 60, (*file.event, *_absences(random, peers, minutes * 60, repeated)))


def draw_plan(seed: int, peers: int, minutes: float) -> Plan:
    """Draw some of each: kills, stops, wrong clocks, a partition, a poor connection, an attacker, a dead host."""
    seconds, random = minutes * 60, Random(seed)
    repeated: dict[Kind, Repeated] = {
        "kill": Repeated(every_seconds=KILL_EVERY_SECONDS, for_seconds=KILL_FOR_SECONDS),
        "stop": Repeated(every_seconds=STOP_EVERY_SECONDS, for_seconds=STOP_FOR_SECONDS),
        "clock_skew": Repeated(every_seconds=SKEW_EVERY_SECONDS, for_seconds=SKEW_FOR_SECONDS),
    }
    events = [*_absences(random, peers, seconds, repeated)]
    events += [Event(do="kill", at_seconds=HOST_KILLED_AT * seconds, peer=HOST)]
    far = random.randint(1, peers)
    poor = Event(
        do="delay",
        peer=far,
        at_seconds=SHAPED_FROM * seconds,
        for_seconds=SHAPED_FOR * seconds,
        delay_seconds=DELAY_SECONDS,
    )
    other: tuple[dict[str, object], ...] = (
        {"do": "loss", "loss_share": LOSS_SHARE},
        {"do": "bandwidth", "bits_per_second": BITS_PER_SECOND},
    )
    events += [poor, *(poor.model_copy(update={"delay_seconds": None, **more}) for more in other)]
    if few := _absent_max(peers):
        start, lasts = ATTACKED_FROM * seconds, ATTACKED_FOR * seconds
        hostile = random.randint(1, peers)
        events.append(Event(do="attacker", peer=hostile, at_seconds=start, for_seconds=lasts, attack=ATTACK))
        small = tuple(sorted(random.sample(range(1, peers + 1), few)))
        large = tuple(number for number in range(1, peers + 1) if number not in small)
        lasts = (PARTITION_TO - PARTITION_FROM) * seconds
        start = PARTITION_FROM * seconds
        events.append(Event(do="partition", at_seconds=start, for_seconds=lasts, sides=(large, small)))
    return Plan.of(peers, seconds, tuple(events))


def _absences(random: Random, peers: int, seconds: float, repeated: Mapping[Kind, Repeated]) -> list[Event]:
    """Draw temporary absences of peers, each kind as a Poisson process, never too many at once."""
    end = seconds - min(CALM_SECONDS_MAX, CALM_SHARE_MAX * seconds)
    due: dict[Kind, float] = {kind: random.expovariate(1 / one.every_seconds) for kind, one in repeated.items()}
    back = dict.fromkeys(range(1, peers + 1), 0.0)  # when each peer is back
    events = []
    while due and (now := min(due.values())) < end:
        kind = min(due, key=lambda one: due[one])
        absent = [until for until in back.values() if until > now]
        if len(absent) >= max(1, _absent_max(peers)):
            due[kind] = min(absent)
            continue
        number = random.choice([number for number, until in back.items() if until <= now])
        lasts = repeated[kind].for_seconds
        if now + lasts < end:
            event = {"do": kind, "at_seconds": now, "for_seconds": lasts, "peer": number, **HOW.get(kind, {})}
            events.append(Event.model_validate(event))
            back[number] = now + lasts
        due[kind] = now + random.expovariate(1 / repeated[kind].every_seconds)
    return events


def _absent_max(peers: int) -> int:
    """Return how many peers may be absent while the others can still certify: fewer than a third (design §6.3)."""
    return (peers - 1) // 3
