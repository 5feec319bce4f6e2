"""The cost of one round for its members in bytes and seconds (design §6.2), by sender, receiver and line.

A round is seven messages that wait for each other and two transfers. Times are those of the slowest member that the
others wait for. Left out: lost packets, other traffic, CPUs busy with other work, and the seconds of spot checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX, OuterSpec, PaceSpec
from coordinator.wire.openings import leaves_per_voter
from peer.numerics.codec import BLOCK_ELEMENTS, CODECS
from peer.numerics.leaves import Leaves
from peer.plan.population import Flags, Floats, Population

CODEC_BITS = {name: 8 * codec.encoded_bytes(BLOCK_ELEMENTS) / BLOCK_ELEMENTS for name, codec in CODECS.items()}
ANCHOR_BITS = 32.0  # of a state, and as many for its momentum, if it has one
HANDLE_SECONDS = 0.02  # from a message's arrival to the answer's departure, at a peer whose CPU also trains
ENCODED_PER_SECOND = 1e8  # elements encoded and hashed on one core (docs/research/experiments.md: codecs)
MERGED_PER_SECOND = 4e7  # elements × members of the default merge on one core (design §7: 0.4 s for 16 × 2²⁰)
APPLIED_PER_SECOND = 5e7  # elements decoded, stepped, and hashed as anchor and momentum, on one core
FIRST_FLIGHT_BYTES = 14_480  # ten segments: what TCP sends before the first acknowledgement (RFC 6928)
WINDOW_BYTES = 3 << 20  # half of Linux's largest receive buffer: one connection's bytes in flight
STATEMENT_BYTES = 330  # context, sender, signature, small body; measured on the simulator's messages
VOTE_BYTES = 300
PER_ROOT_BYTES = 34  # one more digest in a commitment, check or proposal

Peers = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Kept:
    """The bytes per parameter that a peer keeps; the defaults are those of a default run, with fragments of one size.

    `largest_share` is the largest tensor's share of the model, which more fragments do not reduce.
    """

    learner_bytes: float = 4 + 4 + 1.1  # value, gradient, and the optimizer's state; without activations
    rounding_bytes: float = 0.0  # in host memory, for the remainders of bfloat16 rounding
    disk_bytes: float = 2 * (4 + 4 + 1.1) + 1
    largest_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The training, its fragments and codecs. `parameters` are the whole model's, without an adapter's base."""

    parameters: float
    tokens_per_step: int
    pace: PaceSpec
    outer: OuterSpec
    group_max: int = PEERS_PER_GROUP_MAX
    base_bytes: float = 0.0
    kept: Kept = Kept()
    fragments_max: int = FRAGMENTS_MAX  # into which the model can be cut

    @property
    def elements(self) -> float:
        """Number of elements of one fragment."""
        return self.parameters / self.pace.fragments

    @property
    def contribution_bits(self) -> float:
        """Bits of one fragment's outer gradient."""
        return self.elements * CODEC_BITS[self.outer.contribution_codec]

    @property
    def result_bits(self) -> float:
        return self.elements * CODEC_BITS[self.outer.result_codec]

    @property
    def state_bits(self) -> float:
        """Bits of one fragment's state, as a peer that missed a version fetches it."""
        return self.elements * ANCHOR_BITS * (2 if self.outer.momentum else 1)


def transfer_seconds(
    bits: Floats | float, bits_per_second: Floats | float, rtt_seconds: Floats | float, connections: Floats | int = 1
) -> Floats:
    """Return the seconds to send over idle connections: slow start, then the line or the windows, whichever is slower.

    Every round trip doubles the bytes in flight until the line is full; until then a share of the line stays empty.
    """
    flight, window = FIRST_FLIGHT_BYTES * connections, WINDOW_BYTES * connections
    size, rtt = np.asarray(bits, dtype=float) / 8, np.asarray(rtt_seconds, dtype=float)
    rate = np.asarray(bits_per_second, dtype=float) / 8
    rate = np.where(rtt > 0, np.minimum(rate, window / np.maximum(rtt, 1e-9)), rate)
    full = np.maximum(rate * rtt / flight, 1.0)  # flights until the line is full, in units of the first
    trips = np.ceil(np.log2(full))
    ramp_bytes = flight * (2.0**trips - 1)
    few_trips = np.ceil(np.log2(size / flight + 1)) - 1
    in_ramp = np.maximum(few_trips, 0) * rtt + size / rate
    seconds = np.where(size <= ramp_bytes, in_ramp, trips * rtt + (size - ramp_bytes) / rate)
    return np.asarray(np.where(size <= 0, 0.0, np.maximum(seconds, size / rate)))


@dataclass(frozen=True, slots=True)
class Members:
    """The members of one round, as arrays; rates are the share of the line for this round."""

    up: Floats
    down: Floats
    latency_seconds: Floats
    snapshot_seconds: Floats  # until each member's next step boundary
    reduces: Flags

    def __len__(self) -> int:
        return len(self.up)

    @classmethod
    def of(cls, people: Population, roster: Peers, snapshot_seconds: Floats, share: float) -> Members:
        """Return these peers as members, with this share of their lines; if none can be dialled, all reduce."""
        dialable = people.dialable[roster]
        return cls(
            people.up[roster] * share,
            people.down[roster] * share,
            people.latency_seconds[roster],
            snapshot_seconds,
            dialable if dialable.any() else ~dialable,
        )

    def only(self, chosen: Flags) -> Members:
        """Return the chosen members."""
        lines = self.up[chosen], self.down[chosen], self.latency_seconds[chosen]
        return Members(*lines, self.snapshot_seconds[chosen], self.reduces[chosen])


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds since the roster was sent: of each member's inputs at the reducers, of its results, and for all."""

    inputs_at: Floats
    results_at: Floats
    voted_after_seconds: float  # after the last result: check, proposal, outer step, vote
    sent_bits: Floats
    received_bits: Floats

    @property
    def seconds(self) -> float:
        """Seconds from the roster to the certificate."""
        return float(self.results_at.max()) + self.voted_after_seconds


def round_cost(work: Workload, members: Members) -> RoundCost:
    """Return the cost of one round (steps 4–9); the reducers are `members.reduces`, each with an equal part."""
    n, reducers = len(members), max(int(members.reduces.sum()), 1)
    hop = members.latency_seconds + np.median(members.latency_seconds)  # to a typical other member, one way
    own = members.reduces / reducers  # share of the fragment that a member keeps or computes itself
    up_parts, down_parts = (1 - own) * work.contribution_bits, own * (n - 1) * work.contribution_bits
    up_results, down_results = own * (n - 1) * work.result_bits, (1 - own) * work.result_bits
    statements_up, statements_down = statement_bits(n, reducers)
    opened = opened_bits(work, n, reducers)  # one reducer's answer to one voter
    opened_up, opened_down = members.reduces * (n - 1) * opened, (reducers - members.reduces) * opened
    committed = members.snapshot_seconds + work.elements / ENCODED_PER_SECOND + hop + HANDLE_SECONDS
    bundled = committed.max() + hop + HANDLE_SECONDS
    inputs_at = bundled + _both(members, up_parts, down_parts, hop) + hop + HANDLE_SECONDS
    merged = inputs_at.max() + n * work.elements / reducers / MERGED_PER_SECOND
    results_at = merged + _both(members, up_results, down_results, hop) + hop + HANDLE_SECONDS
    after = 3 * (float(np.median(hop)) + HANDLE_SECONDS) + float(hop.max()) + work.elements / APPLIED_PER_SECOND
    return RoundCost(
        inputs_at,
        results_at,
        after,
        up_parts + up_results + opened_up + statements_up,
        down_parts + down_results + opened_down + statements_down,
    )


def _both(members: Members, up: Floats, down: Floats, hop: Floats) -> Floats:
    """Return seconds for sending and receiving at once."""
    others = max(len(members) - 1, 1)
    sending = transfer_seconds(up, members.up, 2 * hop, others)
    return np.maximum(sending, transfer_seconds(down, members.down, 2 * hop, others))


def sent_bits(work: Workload, members: int) -> float:
    """Return the bits that a member sends in one round if all of them reduce an equal part."""
    others = members - 1
    parts = others / members * (work.contribution_bits + work.result_bits)
    return parts + others * opened_bits(work, members, members) + statement_bits(members, members)[0]


def opened_bits(work: Workload, members: int, reducers: int) -> float:
    """Return about the bits of a reducer's answer to one voter's spot check (`peer.rounds.spot_checks`).

    It opens leaves of every input but the voter's, each with its proof, but never more than the whole inputs.
    """
    codecs = CODECS[work.outer.contribution_codec], CODECS[work.outer.result_codec]
    each = Leaves(round(work.elements / reducers), *codecs).bytes_each
    butterfly_bytes = int((work.contribution_bits + work.result_bits) / 8 * (members - 1) / members)
    leaves = leaves_per_voter(members, members, reducers, each, butterfly_bytes)
    return 8 * (members - 1) * min(leaves * each, work.contribution_bits / 8 / reducers)


def statement_bits(members: int, reducers: int) -> tuple[float, float]:
    """Return a member's other bits sent and received: join, roster, commitments, checks, proposal, votes."""
    each = STATEMENT_BYTES + PER_ROOT_BYTES * reducers
    leaders = members * members * (STATEMENT_BYTES + 2 * each)  # roster, bundle and proposal contain all statements
    small = 3 * STATEMENT_BYTES + 2 * each + members * (VOTE_BYTES + STATEMENT_BYTES)
    received = members * (2 * VOTE_BYTES + STATEMENT_BYTES + 2 * each)
    return 8 * (leaders / members + small), 8.0 * (received + STATEMENT_BYTES)
