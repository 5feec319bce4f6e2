"""Measures what several cores save of a peer's tensor work in a round: `python tests/bench/bench_cores.py [--cores 2]`.

Four members, four partitions, ten million parameters, int8, the default merge: encode, admit and merge one partition,
decode all results, take the outer step, hash the state; on one core and on several in turn. Prints seconds (medians),
milliseconds per million parameters, and the speed-up. Beside them are the times to hash 40 MB by BLAKE3, in leaves as
long as a state's, and by SHA-256, in leaves as long as a contribution's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.wire.merkle import merkle_tree
from peer.numerics.codec import CODECS
from peer.numerics.core_pool import Cores
from peer.numerics.fragments import Partitioning, split_fragments
from peer.numerics.merge import MERGES
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState
from peer.numerics.outer_step import AgreedResult, apply_merged, merged_gradients
from peer.numerics.reduction import admit, encode_contribution, measure, merge_partition, publish
from tests.bench.allreduce.gradients import model_of, outer_gradient
from tests.peer.merging import Committed

from peer.model.build import parameter_specs  # isort: skip

MEMBERS = 4
PARAMETERS = 10_000_000
CODEC, RULE = CODECS["int8"], MERGES["robust_rda"]


class Round:
    """The computations of one peer in a round."""

    def __init__(self, parameters: int) -> None:
        (layout,) = split_fragments(parameter_specs(model_of(parameters)), 1)
        self.cut = Partitioning.of(layout, MEMBERS)
        self.draws = [outer_gradient(layout.elements, number) for number in range(MEMBERS)]
        self.made = [encode_contribution(self._gradient(one), self.cut, CODEC) for one in self.draws]
        self.members = {index: Committed(1.0, one.squared_norms) for index, one in enumerate(self.made)}
        self.state = OuterState.begin(self.draws[0], 0.0)
        self.results = [self.reduce(partition, Cores()) for partition in range(MEMBERS)]

    def _gradient(self, vector: Tensor):  # type: ignore[no-untyped-def]
        return lambda span: vector[span] - 0.0

    def reduce(self, partition: int, cores: Cores):  # type: ignore[no-untyped-def]
        own = self.cut.segment_span(partition)
        found = cores.each(
            lambda one: admit(one.parts[partition], one.squared_norms[own], self.cut, partition, CODEC), self.made
        )
        vectors = {index: one.vector for index, one in enumerate(found)}
        merged = merge_partition(vectors, self.members, RULE, self.cut, partition, cores)
        return publish(merged, self.cut, partition, CODEC, cores)

    def run(self, cores: Cores) -> bytes:
        """Compute one peer's part; returns the digest of its state, which is the same on any number of cores."""
        encode_contribution(self._gradient(self.draws[0]), self.cut, CODEC, cores=cores)
        self.reduce(0, cores)
        measured = cores.each(lambda at: measure(self.results[at].data, self.cut, at, CODEC), range(MEMBERS))
        held = [AgreedResult(one, tuple(range(MEMBERS))) for one in measured]
        gradients, _ = merged_gradients(self.cut, held, lambda some: [self.members[one] for one in sorted(some)], RULE)
        return apply_merged(self.state, gradients, self.cut, (0.65, 0.0), cores=cores).digest_on(cores)


def timed(work) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    one, several, work = Cores(1), Cores(options.cores), Round(PARAMETERS)
    if work.run(one) != work.run(several):
        raise RuntimeError("the cores do not agree")
    pairs = [(timed(lambda: work.run(one)), timed(lambda: work.run(several))) for _ in range(options.turns)]
    alone, together = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    data = bytes(4 * PARAMETERS)
    print(
        json.dumps(
            {
                "seconds_on_one_core": round(alone, 3),
                f"seconds_on_{options.cores}_cores": round(together, 3),
                "milliseconds_per_million_on_one_core": round(alone / PARAMETERS * 1e9, 1),
                "times_faster": round(statistics.median(first / second for first, second in pairs), 2),
                "hash_seconds": {
                    f"leaves of {size}": round(
                        min(timed(lambda size=size: merkle_tree(data, size)) for _ in range(3)), 3
                    )
                    for size in (STATE_PIECE_BYTES, CODEC.leaf_bytes)
                },
            }
        )
    )


if __name__ == "__main__":
    main()
