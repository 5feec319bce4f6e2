"""Measures a round's checks: bytes beside a plain butterfly, cheats caught, honest results passed.

`python tests/bench/bench_checks.py [--trials N] [--honest N] [--seed S] [--codec NAME]` prints one JSON object. Traffic
counts the bytes of real encoded messages. A trial is one partition of one round: openings are made, proofs verified and
leaves recomputed, as in `peer.rounds.spot_checks`. Inputs are Gaussian rows of unequal sizes around a common direction,
with a cosine of 0.3 to 0.9. A quarter of the members send minus ten times their own. In every other draw they send
vectors that point away so little that the rule leaves them a part of their share (docs/adr/0031). The fragment has
`--matrices` equal matrices, so a partition has that many segments over the members; or it is a small Llama
(`--matrices 0`). Inputs and results are redrawn every `--repeats` trials; in between only the leaves are.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor

from coordinator.core.actions import Open
from coordinator.core.events import Finding
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.messages import Abstain, Proposal
from coordinator.wire.openings import OpenNote, seed_of
from peer.model.build import parameter_specs
from peer.net.frames import encode_header
from peer.net.transport import frame_bytes
from peer.numerics.codec import CODECS
from peer.numerics.fragments import FragmentLayout, Partitioning, TensorSpec, split_fragments
from peer.numerics.merge import MERGES
from peer.numerics.reduction import ReducedPartition
from peer.rounds.spot_checks import SpotChecker
from peer.storage.blobs import BlobStore
from tests.bench.allreduce.gradients import model_of
from tests.coordinator.builders import Club
from tests.peer.merging import Made
from tests.peer.reducing import KEY, OTHERS, Reduction, alike, is_caught

ENCODED_BYTES = 5_000_000
MATRICES = 8
COLUMNS = 256
CODEC_NAMES = ("fp32", "bf16", "int8", "int4")

Change = Callable[[list[float]], list[float]]
Cheat = Callable[[Reduction, ReducedPartition, int], ReducedPartition]


def layout_of(elements: int, matrices: int = MATRICES) -> FragmentLayout:
    """Return a layout of equal matrices; for 0 matrices, of the tensors of a Llama of about that size."""
    if not matrices:
        return split_fragments(parameter_specs(model_of(elements)), 1)[0]
    rows = max(elements // (matrices * COLUMNS), 1)
    return FragmentLayout(0, tuple(TensorSpec(f"matrix {n}", (rows, COLUMNS)) for n in range(matrices)))


# -- traffic


def traffic(members: int, codec_name: str, encoded_bytes: int = ENCODED_BYTES) -> dict[str, float]:
    """Return the mean bytes that one member sends in a round; every message of the round core counts."""
    codec = CODECS[codec_name]
    elements = int(encoded_bytes * codec.leaf_elements / codec.leaf_bytes)
    layout = layout_of(elements)
    cut, blobs = Partitioning.of(layout, members), BlobStore(1 << 32)
    inspector = SpotChecker(lambda *_: cut, (codec, codec), MERGES["robust_rda"], blobs)
    made = Made.of(torch.randn(layout.elements), cut, codec)
    plain = openings = 0.0
    for partition, (root, part) in enumerate(zip(made.part_roots, made.parts, strict=True)):
        blobs.add(part, codec.leaf_bytes)
        inputs = tuple(ReduceInput(member, root, 1.0, made.squared_norms) for member in range(members - 1))
        seed = seed_of(bytes(16), partition, 0)
        note = inspector.open(Open(KEY, OTHERS, partition, members, 0, seed, members, members, inputs)).note
        assert note is not None
        ask = OpenNote(group=KEY.roster_id, partition=partition, turn=0, seed=seed, own=False)
        openings += (members - 1) / members * (_frame(note) + _frame(ask))  # a member does not ask itself
        plain += 2 * (members - 1) / members * len(part)
    statements = _statement_bytes(members, made.squared_norms, MATRICES)
    share = (openings + statements) / plain
    return {
        "members": members,
        "encoded_megabytes": round(sum(map(len, made.parts)) / 1e6, 2),
        "plain_megabytes": round(plain / 1e6, 3),
        "openings_share": round(openings / plain, 4),
        "statements_share": round(statements / plain, 4),
        "checks_share": round(share, 4),
        "leaves_per_voter": len(note.inputs[0].pieces),
    }


def _frame(message: object) -> int:
    return frame_bytes(encode_header(message), b"")  # type: ignore[arg-type]


def _statement_bytes(members: int, squared_norms: Sequence[float], tensors: int) -> float:
    """Return a member's mean bytes of commitment, bundle, results without payload, check, proposal and vote."""
    club = Club.of(members, real_keys=True)
    chain = club.chain()
    group = club.group(chain, range(members))
    norms = tuple(squared_norms)
    inputs = club.inputs(chain, group)
    segments = max(len(norms) // members, 1)
    commits = [club.commit(club.number(peer), group, squared_norms=norms) for peer in group.members]
    coefficients = (0.1,) * (members * segments)
    results = [
        club.result(group, inputs, part, coefficients=coefficients, squared_norms=norms[:segments])
        for part in range(members)
    ]
    digests = [result.digest for result in results]
    checks = tuple(club.check_statement(number, group, inputs, digests) for number in range(members))
    proposal = club.say(0, "proposal", Proposal(results=tuple(digests), checks=checks), **club.in_group(group))
    vote = club.say(0, "vote", Abstain(attempt=0), **club.in_group(group))
    once = _frame(commits[0]) + _frame(checks[0])
    to_all = _frame(results[0]) + _frame(vote) + 64  # a vote names two digests
    of_leader = _frame(club.bundle(group, commits)) + _frame(proposal)
    return once + (members - 1) * to_all + (members - 1) / members * of_leader


# -- what is found


def hostile_of(members: int) -> list[int]:
    return list(range(1, members, 4))


def raised(hostile: Sequence[int]) -> Change:
    """Give hostile members, of whose work the rule leaves nothing, as much weight as the first member."""
    return lambda own: [own[0] if member in hostile else alpha for member, alpha in enumerate(own)]


def in_largest(reduction: Reduction, change: Change) -> Change:
    """Apply the change only in the partition's largest segment; `with_coefficients` asks for them in order."""
    segments = reduction.cut.segments[reduction.cut.segment_span(reduction.partition)]
    sizes = [segment.stop - segment.start for segment in segments]
    at = count()
    return lambda own: change(own) if next(at) == sizes.index(max(sizes)) else own


def cheats(hostile: Sequence[int]) -> dict[str, Cheat]:
    def change(of: Change) -> Cheat:
        return lambda reduction, honest, _: reduction.with_coefficients(honest, of)

    return {
        "noise of 10 % in 5 % of the leaves": lambda one, honest, seed: one.perturbed(honest, 0.05, 0.1, seed),
        "noise of 100 % in 5 % of the leaves": lambda one, honest, seed: one.perturbed(honest, 0.05, 1.0, seed),
        "noise of 10 % in 10 % of the leaves": lambda one, honest, seed: one.perturbed(honest, 0.1, 0.1, seed),
        "noise of 100 % in 1 % of the leaves": lambda one, honest, seed: one.perturbed(honest, 0.01, 1.0, seed),
        "noise of 100 % in one leaf": lambda one, honest, seed: one.perturbed(honest, 1e-9, 1.0, seed),
        "plain mean": change(lambda own: [1.0] * len(own)),
        "an honest input without weight": change(lambda own: [0.0, *own[1:]]),
        "attackers' coefficients raised": change(raised(hostile)),
        "the same in one segment": lambda one, honest, _: one.with_coefficients(
            honest, in_largest(one, raised(hostile))
        ),
    }


@dataclass(frozen=True)
class Place:
    """The setting in which cheats hide."""

    members: int
    codec: str
    encoded_bytes: int
    matrices: int

    @property
    def layout(self) -> FragmentLayout:
        codec = CODECS[self.codec]
        return layout_of(int(self.encoded_bytes * codec.leaf_elements / codec.leaf_bytes), self.matrices)


def draws(place: Place, numbers: Iterable[int]) -> Iterator[Reduction]:
    """Yield reductions in which a quarter is hostile: for even numbers backwards, for odd ones askew."""
    layout, members, codec = place.layout, place.members, place.codec
    for number in numbers:
        vectors = alike(layout, members, 0.3 + 0.6 * (number * 0.618 % 1), number)
        for member in hostile_of(members):
            vectors[member] = askew(vectors, layout, number) if number % 2 else -10 * vectors[member]
        turn = number // 2 if number % 2 else number // 2 + 1  # so that every partition has its turn
        yield Reduction(layout, vectors, codecs=(codec, codec), partition=turn % members)


def askew(vectors: Sequence[Tensor], layout: FragmentLayout, seed: int) -> Tensor:
    """Return a vector with a cosine of −0.3 to 0 to the common direction of all members."""
    wanted = sum(vector / vector.norm() for vector in vectors)
    [own] = alike(layout, 1, 0.0, seed + 1_000_000)
    away = 0.3 * (seed * 0.414 % 1)
    return math.sqrt(1 - away**2) * own / own.norm() - away * wanted / wanted.norm()


def found(place: Place, trials: int, repeats: int, seed: int) -> dict[str, float]:
    """Return the shares of rounds in which honest members find a cheat before anything is applied.

    Beside each is the share if the leader colludes and leaves out as many doubts as it can (docs/adr/0038).
    """
    members, hostile = place.members, hostile_of(place.members)
    voters = [member for member in range(members) if member not in hostile]
    left_out = members - (2 * members // 3 + 1)
    caught: dict[str, int] = {}
    source = draws(place, count(2 * seed, 2))
    for trial in range(trials):
        if trial % repeats == 0:
            reduction = next(source)
            honest = reduction.honest()
            lies = {name: cheat(reduction, honest, trial) for name, cheat in cheats(hostile).items()}
        for name, lie in lies.items():
            findings: list[Finding] = []
            for voter in voters:
                findings.append(reduction.look(lie, voter, trial).finding)
                if is_caught(findings, members, left_out):
                    break
            caught[name] = caught.get(name, 0) + is_caught(findings, members)
            by_leader = f"{name}, leader in league"
            caught[by_leader] = caught.get(by_leader, 0) + is_caught(findings, members, left_out)
    return {name: round(count / trials, 4) for name, count in caught.items()}


def honest_rounds(place: Place, trials: int, repeats: int, seed: int) -> dict[str, int]:
    """Count the honest results that any member refuted or doubted, and those that enough doubted to be void."""
    members = place.members
    counted = {"rounds": trials, "results": -(-trials // repeats), "refuted": 0, "voided": 0, "single_doubts": 0}
    source = draws(place, count(seed))
    for trial in range(trials):
        if trial % repeats == 0:
            reduction = next(source)
            honest = reduction.honest()
        findings = reduction.findings(honest, range(members), trial)
        counted["refuted"] += Finding.REFUTED in findings
        counted["single_doubts"] += findings.count(Finding.DOUBTFUL)
        counted["voided"] += is_caught(findings, members)
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40, help="rounds per cheat, codec, layout and group size")
    parser.add_argument("--honest", type=int, default=100, help="honest rounds per codec, layout and group size")
    parser.add_argument("--seed", type=int, default=0, help="first seed; another one continues where this one ended")
    parser.add_argument("--codec", choices=CODEC_NAMES, action="append", help="only these")
    parser.add_argument("--encoded-bytes", type=int, default=1_000_000, help="of the fragment in which cheats hide")
    parser.add_argument("--members", type=int, action="append", help="only these group sizes")
    parser.add_argument("--matrices", type=int, action="append", help="only such fragments; 0: a Llama")
    parser.add_argument("--repeats", type=int, default=1, help="trials per draw of inputs and result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    report: dict[str, object] = {
        "traffic": [traffic(members, codec) for members in (8, 16) for codec in ("int8", "int4", "fp32")],
    }
    places = [
        Place(members, codec, options.encoded_bytes, matrices)
        for members in options.members or (8, 16)
        for matrices in options.matrices or (MATRICES, 20 * members)
        for codec in options.codec or CODEC_NAMES
    ]
    for place in places:
        segments = len(Partitioning.of(place.layout, place.members).segments) / place.members
        name = f"{place.members} members, {place.codec}, {segments:.1f} segments"
        report[f"found: {name}"] = found(place, options.trials, options.repeats, options.seed)
        report[f"honest: {name}"] = honest_rounds(place, options.honest, options.repeats, options.seed)
        sys.stderr.write(f"{name}: {report[f'found: {name}']} {report[f'honest: {name}']}\n")
    report["seconds"] = round(time.process_time() - started, 1)
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
