from __future__ import annotations

import os
import subprocess
import sys
from threading import Barrier

import pytest
import torch

from peer.numerics.codec import CODECS
from peer.numerics.core_pool import ONE_CORE, Cores
from peer.numerics.fragments import Partitioning, TensorSpec, split_fragments
from peer.numerics.merge import MERGES
from peer.numerics.outer_optimizer import OuterState, SpentMomentum
from peer.numerics.outer_step import AgreedResult, apply_merged, merged_gradients
from peer.numerics.reduction import admit, encode_contribution, measure, merge_partition, publish
from tests.peer.merging import Committed

SPECS = [TensorSpec(f"t{index}", (50, 41 + index), embedding=index == 0) for index in range(6)]
(LAYOUT,) = split_fragments(SPECS, 1)
CUT = Partitioning.of(LAYOUT, 3)
INT8, RULE = CODECS["int8"], MERGES["robust_rda"]


def whole_round(momentum: float, cores: Cores) -> tuple[object, ...]:
    """Return everything that members send each other in a round of three."""
    draws = [torch.randn(LAYOUT.elements, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    left = torch.empty(LAYOUT.elements)
    made = [encode_contribution(vector.__getitem__, CUT, INT8, left, cores) for vector in draws]
    members = {index: Committed(1.0, one.squared_norms) for index, one in enumerate(made)}
    results, held = [], []
    for partition in range(3):
        own = CUT.segment_span(partition)
        admitted = {
            index: admit(one.parts[partition], one.squared_norms[own], CUT, partition, INT8)
            for index, one in enumerate(made)
        }
        vectors = {index: one.vector for index, one in admitted.items() if not isinstance(one, str)}
        merged = merge_partition(vectors, members, RULE, CUT, partition, cores)
        results.append(publish(merged, CUT, partition, INT8, cores))
        found = measure(results[-1].data, CUT, partition, INT8)
        assert not isinstance(found, str)
        held.append(AgreedResult(found, results[-1].included))
    gradients, _ = merged_gradients(CUT, held, lambda some: [members[one] for one in sorted(some)], RULE)
    gradients[1] = None if momentum else gradients[1]  # a void partition, too
    state = OuterState.begin(draws[0], momentum)
    new = apply_merged(state, gradients, CUT, (0.65, momentum), cores=cores)
    roots = [one.part_roots for one in made], [one.root for one in results]
    return *roots, left.tolist(), new.anchor.tolist(), new.digest_on(cores), new.digest


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_a_round_comes_to_the_same_bits_on_any_number_of_cores(momentum: float) -> None:
    expected = whole_round(momentum, ONE_CORE)
    for threads in (2, 5):
        cores = Cores(threads)
        assert whole_round(momentum, cores) == expected
        cores.close()
    assert expected[-1] == expected[-2]


@pytest.mark.parametrize("sizes", [[], [0], [65536], [65535, 3, 0, 131072], [1, 200_000]])
def test_a_spent_momentum_is_hashed_alike_in_any_parts(sizes: list[int]) -> None:
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(size)) for size in sizes]
    joined = torch.cat(parts) if parts else torch.empty(0)
    cores = Cores(3)
    assert SpentMomentum.of(parts, cores) == SpentMomentum.of([joined]) == SpentMomentum.of(iter(parts))
    cores.close()


def test_work_goes_on_side_by_side_and_its_answers_stay_in_order() -> None:
    cores, together = Cores(2), Barrier(2, timeout=20)

    def meet(number: int) -> int:
        together.wait()  # would time out if one came after the other
        return number

    assert cores.each(meet, range(4)) == [0, 1, 2, 3]
    cores.close()


def test_a_failure_on_another_core_is_raised() -> None:
    cores = Cores(2)
    for one in (cores, ONE_CORE):
        with pytest.raises(ZeroDivisionError):
            one.each(lambda number: 1 // number, (1, 0, 2))
    cores.close()


MULTIPLIES = """
import os, torch
from peer.numerics.core_pool import one_core_each
torch.set_num_threads(1)  # as a peer does
pool, some = one_core_each(1, "test"), torch.ones(8, 8192)
pool.submit(len, ()).result()
before = len(os.listdir("/proc/self/task"))
pool.submit(torch.mm, some, some.T).result()
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_thread_multiplies_matrices_without_the_help_of_others() -> None:
    """Checked in its own process, whose environment does not set the number of threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
    told = subprocess.run([sys.executable, "-c", MULTIPLIES], env=kept, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "0"
