"""Other methods of joint training for the same peers: closed forms, each with its omissions.

* data-parallel: gradients of the whole model at every step, around a ring with one connection to each neighbour, as
  in gloo. The slowest peer and line set the pace, and whenever a peer leaves or comes back all start again. Nothing
  overlaps.
* hivemind-style: H local steps, then all peers stop and average the whole model in groups of 16 with fp16, as
  OpenDiLoCo does. A peer that leaves meanwhile costs its group the time-out and the round.
* hub, as in gradientmail: fragments go through an object store, and one peer merges. Learners never wait. The merging
  peer's line carries all fragments, and all peers must trust it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dht.units import DAY_SECONDS
from peer.plan.cost import CODEC_BITS, Workload, transfer_seconds
from peer.plan.population import Floats, Population, Timetable

HIVEMIND_GROUP = 16
HIVEMIND_TIMEOUT_SECONDS = 15.0  # an `allreduce_timeout` after which a frozen peer causes an error rather than a hang
REFORM_SECONDS = 30.0  # to notice a lost member of a data-parallel job and to begin again without it


@dataclass(frozen=True, slots=True)
class Alternative:
    """One other method: useful tokens per second of all peers, bytes one peer sends a day, and the parties to trust."""

    name: str
    tokens_per_second: float
    bytes_sent_per_peer_day: float
    trust: str


@dataclass(frozen=True, slots=True)
class ClosedFormInputs:
    """A scenario's inputs to the closed forms: the peers present on average, and how often one leaves."""

    work: Workload
    people: Population
    present_share: float
    leaves_per_second: float  # of all peers together

    @classmethod
    def of(cls, work: Workload, people: Population, timetable: Timetable, seconds: float) -> ClosedFormInputs:
        absent, _ = timetable.absent_seconds(len(people), seconds)
        leaves = sum(0 < one.start_seconds < seconds for one in timetable.absences)
        return cls(work, people, 1 - float(absent.mean()) / seconds, leaves / seconds)

    @property
    def present(self) -> float:
        """Number of peers present at a time."""
        return max(1.0, len(self.people) * self.present_share)

    @property
    def slowest_step_seconds(self) -> float:
        return float(1 / self.people.steps_per_second.min())

    @property
    def hop_seconds(self) -> float:
        return 2 * float(np.median(self.people.latency_seconds))

    @property
    def lines(self) -> Floats:
        return np.minimum(self.people.up, self.people.down)


def alternatives(inputs: ClosedFormInputs) -> tuple[Alternative, ...]:
    """Return all methods, data-parallel with two kinds of gradient."""
    return (data_parallel(inputs, 32), data_parallel(inputs, 16), hivemind(inputs), hub(inputs))


def data_parallel(inputs: ClosedFormInputs, bits: int) -> Alternative:
    """Return what these peers would do with a ring all-reduce of gradients at each step, so many bits a parameter."""
    n, work = inputs.present, inputs.work
    sent = work.parameters * bits * 2 * (n - 1) / n
    rtt = 2 * inputs.hop_seconds
    sending = float(transfer_seconds(sent, float(inputs.lines.min()), rtt)) + 2 * (n - 1) * inputs.hop_seconds
    step = inputs.slowest_step_seconds + (sending if n > 1 else 0.0)
    going = 1 / (1 + inputs.leaves_per_second * REFORM_SECONDS)
    steps_per_second = going / step
    return Alternative(
        f"data-parallel, {bits} bit",
        n * work.tokens_per_step * steps_per_second,
        sent / 8 * steps_per_second * DAY_SECONDS,
        "everybody",
    )


def hivemind(inputs: ClosedFormInputs) -> Alternative:
    """Return training by H steps, then a pause in which groups average the whole model."""
    n, work = inputs.present, inputs.work
    group = min(float(HIVEMIND_GROUP), n)
    sent = work.parameters * 16 * 2 * (group - 1) / group
    rtt, others = 2 * inputs.hop_seconds, max(round(group) - 1, 1)
    averaging = float(transfer_seconds(sent, float(inputs.lines.min()), rtt, others)) if n > 1 else 0.0
    cycle = work.pace.steps_per_version * inputs.slowest_step_seconds + averaging
    broken = 1 - float(np.exp(-inputs.leaves_per_second / n * group * averaging))
    cycle += HIVEMIND_TIMEOUT_SECONDS * (1 - float(np.exp(-inputs.leaves_per_second * averaging)))
    tokens = n * work.tokens_per_step * work.pace.steps_per_version / cycle * (1 - broken)
    return Alternative("hivemind-style averaging", tokens, sent / 8 / cycle * DAY_SECONDS, "everybody")


def hub(inputs: ClosedFormInputs) -> Alternative:
    """Return training with one merging peer, the one with the best line; learners beyond its capacity are left out."""
    n, work = inputs.present, inputs.work
    bits = CODEC_BITS[work.outer.contribution_codec]
    rate = float(np.median(inputs.people.steps_per_second))
    best = float(np.minimum(inputs.people.down, inputs.people.up).max())
    seconds = n * work.parameters * bits / best  # to receive every peer's model once
    taken = min(1.0, work.pace.steps_per_version / rate / seconds)
    own = min(1.0, float(np.median(inputs.people.up)) * work.pace.steps_per_version / rate / (work.parameters * bits))
    tokens = n * work.tokens_per_step * float(inputs.people.steps_per_second.mean()) * min(taken, own)
    sent = work.parameters * bits / 8 * rate / work.pace.steps_per_version * DAY_SECONDS
    return Alternative("hub (one merging peer)", tokens, sent * min(taken, own), "the hub and its store")
