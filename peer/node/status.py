"""A peer's snapshot for people on the same machine, gathered from its parts."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType

from coordinator.chain.chain import Chain
from coordinator.core.context import Core
from coordinator.engine.engine import Engine
from coordinator.engine.fragment import FragmentMachine
from coordinator.group.eligibility import Hindrance
from coordinator.views import quantity
from coordinator.views.network_view import CertificateView
from coordinator.views.snapshot import FragmentStatus, PeerSnapshot, Phase
from coordinator.wire.presence import PresenceTable
from peer.learner.work_counters import LearnerProgress
from peer.machine.pause_policy import Conditions
from peer.node.clock_check import ADVICE_WRONG_CLOCK, clock_words, is_wrong
from peer.node.hang_detector import hang_advice
from peer.node.lifecycle import versions_certified
from peer.node.slow_steps import slow_advice
from peer.observer.view import ban_view
from peer.rounds.driver import RoundDriver
from peer.rounds.evaluation_loop import RunPosition
from peer.rounds.public_status import PublicStatus, public_status
from peer.sync.introduction import ADVICE_OUT_OF_REACH

ROUNDS_SHOWN = 16  # to programs on this machine, which may ask twice a second
CERTIFICATES_SHOWN = 4  # of each fragment
PHASES: Mapping[Hindrance, Phase] = MappingProxyType(
    {Hindrance.BEHIND: "catching up", Hindrance.BOUND: "bound by a vote"}
)
OUTRUN = "versions follow each other faster than they arrive here, so this peer cannot catch up on this line"


def fragment_status(machine: FragmentMachine, last_void: str, now: float) -> FragmentStatus:
    """Describe one fragment in words and digests; `last_void` says why its last attempt failed."""
    _, hindrance = machine.eligibility(now)
    phase: Phase = "idle"
    if hindrance is Hindrance.BUSY:
        phase = "joining" if machine.attempt is None else "in a round"
    elif hindrance is not None:
        phase = PHASES.get(hindrance, "idle")
    return FragmentStatus(
        version=machine.chain.version,
        held_version=machine.held,
        head=machine.chain.digest.hex(),
        state=machine.chain.state.hex(),
        phase=phase,
        reason=last_void,
        hindrance="" if hindrance is None or hindrance is Hindrance.NOT_NEEDED else hindrance,  # nothing waits for it
    )


def newest_certificates(machine: FragmentMachine) -> list[CertificateView]:
    """Return the newest certificates of a fragment, oldest first."""
    chain = machine.chain
    return [
        CertificateView(
            fragment=one.fragment,
            version=one.version,
            digest=one.digest.hex(),
            parent=one.outcome.parent.hex(),
            minor=one.outcome.minor,
            tokens=one.outcome.tokens,
        )
        for one in chain.after(max(0, chain.version - CERTIFICATES_SHOWN), CERTIFICATES_SHOWN)
    ]


def advice_of(driver: RoundDriver) -> str:
    """Return what a person has to do, because this peer cannot."""
    engine, ahead_seconds = driver.engine, driver.counters.clock_ahead_seconds
    stuck = engine.fork_choice.out_of_reach(engine.core.presence.live(driver.now))
    far = f"the others have gone on too far to be followed; {ADVICE_OUT_OF_REACH}" if stuck else ""
    wrong = f"this machine's clock is {clock_words(ahead_seconds)}; {ADVICE_WRONG_CLOCK}"
    full = [f"no {what} could be written: {reason}" for what, reason in sorted(driver.counters.refused.items())]
    return "; ".join(filter(None, (wrong if is_wrong(ahead_seconds) else "", far, hang_advice(driver.counters), *full)))


def note_of(reason: str, driver: RoundDriver) -> str:
    """Describe in one line what is happening now; `reason` says why nothing is."""
    if reason:
        return reason
    lacking = [machine.index for machine in driver.engine.machines if not machine.ready]
    done_bytes, total_bytes, sources, seconds_left = driver.requests.states.progress(lacking, driver.now)
    if total_bytes:
        left = "" if seconds_left is None else f", about {quantity.rough(seconds_left)} left"
        done = f"{quantity.bar(done_bytes / total_bytes)} {quantity.size(done_bytes)} of {quantity.size(total_bytes)}"
        progress = f"{done} of states from {quantity.counted(sources, 'peer')}{left}"
        return f"{progress}; {OUTRUN}" if driver.catch_up.outrun else progress
    if driver.catch_up.following:
        which = quantity.listed("fragment", [*map(str, driver.catch_up.following)])
        return f"fetches the steps of versions that it missed of {which}"
    busy = [_round(machine) for machine in driver.engine.machines if machine.busy]
    rounds = f"takes part in a round for {quantity.listed('fragment', busy)}" if busy else ""
    core, chains = driver.engine.core, driver.engine.chains
    lacks = (lack_of_company(core, driver.now), lack_of_founders(core, chains, driver.now))
    return "; ".join(filter(None, (*lacks, _probation(driver.engine), rounds)))


def lack_of_company(core: Core, now: float) -> str:
    """Return why a learner gets into no round if too few others train."""
    training = len(core.presence.trainers(now) | {core.me})
    if not core.contributes or training >= core.pace.min_group:
        return ""
    return f"waits for others: {training} of at least {core.pace.min_group} learners"


def lack_of_founders(core: Core, chains: Sequence[Chain], now: float) -> str:
    """Return why a learner's rounds fail at the beginning of a run: a founder leads every first version."""
    here = core.presence.live(now) | {core.me}
    if not core.contributes or here & core.manifest.founder_ids or all(chain.version for chain in chains):
        return ""
    return "waits for the run's host or another of its founders, without whom no run begins"


def _round(machine: FragmentMachine) -> str:
    """Describe the round of a fragment: its number, and the size of the group."""
    return str(machine.index) + (f" ({len(machine.attempt.group.members)} peers)" if machine.attempt else "")


def swarm_loss(presence: PresenceTable, own: float | None, now: float) -> float | None:
    """Return the median of our learner's loss and those that others report; None without any."""
    said = [presence.sightings[peer].presence.loss for peer in presence.trainers(now)]
    known = [loss for loss in (own, *said) if loss is not None]
    return median(known) if known else None


def _probation(engine: Engine) -> str:
    """Say in which fragments our own work has no weight yet."""
    core = engine.core
    new = [str(chain.fragment) for chain in engine.chains if core.contributes and chain.on_probation({core.me})]
    needed = core.rules.trust.probation_rounds
    return f"on probation in {quantity.listed('fragment', new)}, for {needed} certified rounds" if new else ""


def peer_snapshot(
    base: PeerSnapshot, driver: RoundDriver, progress: LearnerProgress, seen: Conditions, now: float
) -> PeerSnapshot:
    """Complete `base`, which has identity and state, with the values of the parts."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    traffic = driver.transport.traffic
    counters, engine = driver.counters, driver.engine
    return base.model_copy(
        update={
            "note": base.note if base.state == "finished" else note_of(base.note, driver),
            "advice": advice_of(driver),
            "late": slow_advice(engine.core.pace, counters),
            "device": ": ".join(filter(None, (progress.device, progress.use))),
            "celsius": seen.celsius,
            "gpu_watts": seen.watts,
            "pid": os.getpid(),
            "steps": progress.steps,
            "steps_per_second": progress.steps_per_second,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "swarm_loss": swarm_loss(engine.core.presence, progress.loss, now),
            "learner_cpu_seconds": progress.cpu_seconds,
            "training_seconds": progress.training_seconds,
            "peer_cpu_seconds": usage.ru_utime + usage.ru_stime,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "peers_live": len(engine.core.presence.live(now)),
            "dialable": engine.core.dialable,
            "rounds_in_flight": engine.in_flight,
            "fragments": tuple(
                fragment_status(machine, driver.traces.last_void(machine), now) for machine in engine.machines
            ),
            "certified": counters.certified,
            "credited_tokens": counters.credited_tokens,
            "rounds": driver.traces.views(ROUNDS_SHOWN),
            "certificates": tuple(one for machine in engine.machines for one in newest_certificates(machine)),
            "bans": tuple(map(ban_view, engine.core.bans.held.values())),
            "adoption_delays_steps": tuple(counters.delays_steps),
            "events": {name: count for name, count in counters.events.items() if count}
            | ({"frames_dropped": traffic.frames_dropped} if traffic.frames_dropped else {}),
        }
    )


def own_public_status(snapshot: PeerSnapshot, driver: RoundDriver) -> PublicStatus:
    """Return the status that is told to every peer that asks."""
    return public_status(snapshot, driver.traces.views(), driver.counters.audits)


def run_position(driver: RoundDriver, wall_seconds: float, before: int) -> RunPosition:
    """Return the position of the run, for an evaluation of the current anchors.

    `before` are the tokens that were certified before this process began to count.
    """
    machines = driver.engine.machines
    complete = all(machine.ready for machine in machines)
    tokens = before + driver.counters.certified.tokens
    return RunPosition(versions_certified(driver.engine), tokens, wall_seconds, complete)
