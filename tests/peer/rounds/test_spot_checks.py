"""Spot checks with real bytes: honest results pass and forged ones do not, whatever the codecs and the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from coordinator.core.events import Finding
from coordinator.run.manifest import OuterSpec
from coordinator.wire.openings import OPENING_BYTES_MAX
from dht.wire import MESSAGE_BYTES_MAX
from peer.numerics.codec import CODECS, BlockCodec, Buffer
from peer.numerics.fragments import FragmentLayout, TensorSpec
from peer.numerics.leaves import Leaves
from peer.numerics.merge import MERGES, MergeRule
from peer.numerics.merge_plugin import merge_rule
from peer.numerics.reduction import ReducedPartition
from peer.rounds.spot_checks import SpotChecker
from peer.storage.blobs import BlobStore
from tests.extra import extra
from tests.peer.reducing import Reduction, alike, is_caught

LAYOUT = FragmentLayout(
    0, (TensorSpec("embedding", (128, 64), embedding=True), TensorSpec("gain", (64,)), TensorSpec("matrix", (509, 64)))
)
MANY = FragmentLayout(0, tuple(TensorSpec(f"matrix {n}", (16, 256)) for n in range(160)))
HOSTILE = (3, 6)
VOTERS = 8
LOOKERS = [voter for voter in range(VOTERS) if voter not in HOSTILE]
Change = Callable[[list[float]], list[float]]


def attacked(rule: str = "robust_rda", codecs: tuple[str, str] = ("int8", "int8"), seed: int = 1) -> Reduction:
    """Return a reduction of eight members, two of which send −10 times their vector; partition 0 has the embedding."""
    vectors = alike(LAYOUT, VOTERS, 0.5, seed)
    for member in HOSTILE:
        vectors[member] = -10 * vectors[member]
    return Reduction(LAYOUT, vectors, MERGES[rule], codecs, partitions=2, partition=1)


def as_much_as_the_first(own: list[float]) -> list[float]:
    """Return coefficients that give the hostile, which the rule leaves out, as much as the first."""
    return [own[0] if member in HOSTILE else alpha for member, alpha in enumerate(own)]


@pytest.mark.parametrize("codecs", [("fp32", "fp32"), ("bf16", "int4"), ("int8", "int8"), ("int4", "fp32")], ids=str)
@pytest.mark.parametrize("partition", range(4))
def test_honest_results_pass(codecs: tuple[str, str], partition: int) -> None:
    vectors = alike(LAYOUT, VOTERS, 0.5, partition)
    reduction = Reduction(LAYOUT, vectors, codecs=codecs, partitions=4, partition=partition)
    assert set(reduction.findings(reduction.honest(), range(VOTERS))) == {Finding.CONFIRMED}
    fewer = reduction.honest(included=[0, 2, 3, 4, 5, 7])
    assert set(reduction.findings(fewer, range(VOTERS))) == {Finding.CONFIRMED}


def test_opened_leaves_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One decoding serves to recompute the leaves and to run the rule on them."""
    reduction = Reduction(LAYOUT, alike(LAYOUT, VOTERS, 0.5, 1))
    honest, known, decoded = reduction.honest(), BlockCodec.decode, []

    def decode(self: BlockCodec, buffer: Buffer, elements: int) -> torch.Tensor:
        decoded.append(buffer)
        return known(self, buffer, elements)

    monkeypatch.setattr(BlockCodec, "decode", decode)
    assert reduction.look(honest, voter=1).finding is Finding.CONFIRMED
    assert len(decoded) == VOTERS


@pytest.mark.parametrize("codec", ["fp32", "int4"])
@pytest.mark.parametrize("cosine", [-0.25, -0.15, -0.05])
def test_honest_results_pass_whatever_is_left_of_who_points_away(codec: str, cosine: float) -> None:
    vectors = alike(LAYOUT, VOTERS, 0.5, 2)
    common = sum(vectors)
    for member in HOSTILE:
        own = alike(LAYOUT, 1, 0.0, member)[0]
        vectors[member] = cosine * common / common.norm() + math.sqrt(1 - cosine**2) * own / own.norm()
    reduction = Reduction(LAYOUT, vectors, codecs=(codec, codec), partitions=2, partition=1)
    assert set(reduction.findings(reduction.honest(), range(VOTERS))) == {Finding.CONFIRMED}


@pytest.mark.parametrize("rule", [*MERGES.values(), replace(MERGES["robust_rda"], by_row=True)], ids=str)
def test_every_rule_passes_with_attackers_and_idle_members(rule: MergeRule) -> None:
    vectors = [*alike(LAYOUT, VOTERS - 1, 0.5, 3), torch.zeros(LAYOUT.elements)]
    vectors[2] = -10 * vectors[2]
    weights = [1.0, 2.0, 1.5, 0.0, 1.0, 1.0, 1.2, 1.0]
    reduction = Reduction(LAYOUT, vectors, rule, partitions=3, partition=0, weights=weights)
    assert set(reduction.findings(reduction.honest(), range(VOTERS))) == {Finding.CONFIRMED}


@pytest.mark.parametrize("rule", [*MERGES.values(), replace(MERGES["robust_rda"], by_row=True)], ids=str)
def test_a_contribution_without_weight_changes_no_byte(rule: MergeRule) -> None:
    """A peer on probation may send anything without effect (docs/adr/0017)."""
    vectors = alike(LAYOUT, VOTERS, 0.5, 4)
    vectors[3] = 1e6 * vectors[3]
    reduction = Reduction(LAYOUT, vectors, rule, partitions=2, weights=[1.0, 2.0, 1.5, 0.0, 1.0, 1.0, 1.2, 1.0])
    others = [member for member in range(VOTERS) if member != 3]
    assert reduction.honest().data == reduction.honest(included=others).data


@pytest.mark.parametrize("rule", sorted(set(MERGES) - {"nnm_trimmed_mean"}))
@pytest.mark.parametrize("codecs", [("fp32", "fp32"), ("int4", "int8"), ("bf16", "int4")], ids=str)
def test_a_touched_leaf_is_refuted_and_everybody_can_repeat_it(rule: str, codecs: tuple[str, str]) -> None:
    reduction = attacked(rule, codecs)
    lie = reduction.perturbed(reduction.honest(), 0.2, 1.0, seed=4)
    found = [reduction.look(lie, voter) for voter in LOOKERS]
    assert is_caught([one.finding for one in found], VOTERS)
    for one in found:
        if one.refutation is not None:
            again = reduction.repeat(lie, one)
            assert again.finding is Finding.REFUTED
            assert again.refutation == one.refutation


@pytest.mark.parametrize("name", ["noisy_results", "selfish_results", "garbage_results"])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_a_checker_refutes_forged_bytes_beside_honest_coefficients(name: str, codec: str) -> None:
    """It forges noise, a part of its own ten times as long, or bytes that are not numbers: each leaf is wrong."""
    reduction = attacked(codecs=(codec, codec))
    lie = reduction.forged(reduction.honest(), name, own=0)
    for voter in LOOKERS:
        found = reduction.look(lie, voter)
        assert found.finding is Finding.REFUTED
        assert reduction.repeat(lie, found).refutation == found.refutation
    assert reduction.audit(lie).finding is Finding.REFUTED


def test_a_refutation_of_an_honest_result_is_not_believed() -> None:
    reduction = attacked()
    honest = reduction.honest()
    lie = reduction.perturbed(honest, 1.0, 1.0, seed=4)
    found = reduction.look(lie, 0)
    assert found.refutation is not None
    assert reduction.repeat(honest, found).finding is Finding.CONFIRMED
    [first, *rest] = found.refutation.inputs
    forged = replace(found, refutation=found.refutation.model_copy(update={"inputs": (*rest, first)}))
    assert reduction.repeat(lie, forged).finding is Finding.REFUTED, "their order on the wire says nothing"
    bent = first.model_copy(update={"pieces": tuple(bytes(len(piece)) for piece in first.pieces)})
    forged = replace(found, refutation=found.refutation.model_copy(update={"inputs": (bent, *rest)}))
    assert reduction.repeat(honest, forged).finding is Finding.UNOPENED


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain mean", lambda own: [1.0] * len(own)),
        ("an honest input without weight", lambda own: [0.0, *own[1:]]),
        ("attackers raised", as_much_as_the_first),
    ],
)
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_coefficients_that_are_not_the_rules_are_doubted(name: str, change: Change, codec: str) -> None:
    reduction = attacked(codecs=(codec, codec))
    lie = reduction.with_coefficients(reduction.honest(), change)
    findings = reduction.findings(lie, LOOKERS)
    assert is_caught(findings, VOTERS), name
    assert Finding.REFUTED not in findings, "estimates never convict"


def split_up(codec: str, members: int, askew: bool = False) -> Reduction:
    """Return a reduction with so many small segments that a voter sees a few hundred elements of each.

    A quarter of the members is hostile.
    """
    vectors, own = alike(MANY, members, 0.5, 1), alike(MANY, members, 0.0, 2)
    for member in hostile_of(members):
        vectors[member] = own[member] if askew else -10 * vectors[member]
    return Reduction(MANY, vectors, codecs=(codec, codec))


def hostile_of(members: int) -> list[int]:
    return list(range(1, members, 4))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain mean", lambda own: [1.0] * len(own)),
        ("an honest input without weight", lambda own: [0.0, *own[1:]]),
        ("attackers raised", lambda own: [own[0] if at in hostile_of(len(own)) else a for at, a in enumerate(own)]),
    ],
)
@pytest.mark.parametrize(("members", "codec"), [(8, "fp32"), *extra([(16, "fp32"), (16, "int8")])])
def test_coefficients_of_many_small_segments_are_judged_together(
    name: str, change: Change, members: int, codec: str
) -> None:
    reduction = split_up(codec, members)
    lie = reduction.with_coefficients(reduction.honest(), change)
    lookers = [voter for voter in range(members) if voter not in hostile_of(members)]
    assert is_caught(reduction.findings(lie, lookers), members), name


@pytest.mark.parametrize(("members", "codec"), [(8, "fp32"), *extra([(16, "fp32"), (16, "int8")])])
@pytest.mark.parametrize("askew", [False, True])
def test_honest_results_of_many_small_segments_pass(members: int, codec: str, askew: bool) -> None:
    reduction = split_up(codec, members, askew)
    assert set(reduction.findings(reduction.honest(), range(members))) == {Finding.CONFIRMED}


@pytest.mark.parametrize("rule", ["mean", "rda", "krum", "multi_krum"])
def test_coefficients_that_follow_from_weights_are_exact(rule: str) -> None:
    reduction = attacked(rule)
    lie = reduction.with_coefficients(reduction.honest(), lambda own: [alpha + 0.01 for alpha in own])
    assert set(reduction.findings(lie, LOOKERS)) == {Finding.REFUTED}


def test_a_result_without_the_coefficients_that_it_must_have_is_refuted() -> None:
    reduction = attacked()
    honest = reduction.honest()
    for coefficients in ((), honest.coefficients[:-1], (math.nan,) * len(honest.coefficients), (9e37,) * 16):
        found = reduction.look(replace(honest, coefficients=coefficients), 0)
        assert found.finding is Finding.REFUTED


def test_openings_that_are_not_what_was_committed_count_as_none() -> None:
    reduction = attacked()
    honest = reduction.honest()
    other = Reduction(LAYOUT, reduction.vectors, codecs=("int8", "int8"), partitions=2, partition=0)
    root, wrong = reduction.inputs[0].root, other.inputs[0].root
    reduction.blobs._blobs[root] = other.blobs._blobs[wrong]
    reduction.blobs._trees[root] = other.blobs._trees[wrong]
    assert reduction.look(honest, 5).finding is Finding.UNOPENED


@pytest.mark.parametrize(("members", "partitions"), [(16, 8), *extra([(16, 1), (32, 32)])])
def test_the_only_voter_of_a_cell_is_shown_no_more_than_fits_into_a_message(members: int, partitions: int) -> None:
    """The inputs of all others are opened for it, as for a voter of a group."""
    large = FragmentLayout(0, (TensorSpec("matrix", (1000, 1000)),))
    made = Reduction(large, alike(large, members, 0.5, 1), partitions=partitions, voters=1)
    honest = made.honest()
    opened = made.opening(honest, 0, bytes(32))
    assert len(opened.inputs) == members - 1
    assert len(opened.to_wire()) < 1.1 * OPENING_BYTES_MAX < MESSAGE_BYTES_MAX
    assert made.look(honest, 0).finding is Finding.CONFIRMED


def test_an_input_with_another_number_of_norms_is_never_part_of_an_honest_result() -> None:
    reduction = attacked()
    honest = reduction.honest()
    odd = replace(reduction.inputs[3], squared_norms=())
    reduction.inputs = tuple(odd if one.member == 3 else one for one in reduction.inputs)
    found = reduction.look(honest, 0)
    assert found.finding is Finding.REFUTED
    assert reduction.repeat(honest, found).finding is Finding.REFUTED


def test_an_input_far_longer_than_committed_is_doubted_and_breaks_nothing() -> None:
    reduction = attacked(codecs=("fp32", "fp32"))
    honest = reduction.honest()
    reduction.decoded[3] = torch.full_like(reduction.decoded[3], 1e30)
    part = reduction.contribution.encode(reduction.decoded[3])
    root = reduction.blobs.add(part, reduction.contribution.leaf_bytes)
    huge = replace(reduction.inputs[3], root=root)
    reduction.inputs = tuple(huge if one.member == 3 else one for one in reduction.inputs)
    lie = reduction.with_coefficients(honest, lambda own: own)
    assert reduction.look(lie, 0).finding is Finding.DOUBTFUL


@pytest.mark.parametrize(
    ("outer", "finding"),
    [
        (OuterSpec(), Finding.REFUTED),
        (OuterSpec(norms="row"), Finding.DOUBTFUL),
        (OuterSpec(merge="rda", norms="row"), Finding.DOUBTFUL),
        (OuterSpec(merge="nnm_trimmed_mean"), Finding.DOUBTFUL),
    ],
    ids=lambda one: one.merge + " by " + one.norms if isinstance(one, OuterSpec) else "",
)
def test_garbage_that_its_own_reducer_takes_in_ends_no_voter(outer: OuterSpec, finding: Finding) -> None:
    reduction = Reduction(LAYOUT, alike(LAYOUT, VOTERS, 0.5, 1), merge_rule(outer), ("int8", "int8"), 2, 1)
    honest = reduction.honest()
    data = bytearray(reduction.blobs.get(reduction.inputs[0].root) or b"")
    for start in range(0, len(data), reduction.contribution.block_bytes):  # type: ignore[attr-defined]
        data[start : start + 4] = b"\xff\xff\xff\x7f"  # not a number, as every block's scale
    root = reduction.blobs.add(bytes(data), reduction.contribution.leaf_bytes)
    reduction.inputs = (replace(reduction.inputs[0], root=root), *reduction.inputs[1:])
    assert {reduction.look(honest, voter).finding for voter in range(1, VOTERS)} == {finding}


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_an_accomplice_that_takes_in_more_than_was_committed_is_doubted(codec: str) -> None:
    """A contributor claims a hundredth of its length, so its vector counts a hundredfold; its reducer colludes."""
    vectors = alike(LAYOUT, VOTERS, 0.6, 0)
    [other] = alike(LAYOUT, 1, 0.0, 777)
    vectors[3] = 100 * other
    reduction = Reduction(LAYOUT, vectors, codecs=(codec, codec), partitions=2, partition=1)
    short = tuple(norm / 100**2 for norm in reduction.inputs[3].squared_norms)
    reduction.inputs = tuple(replace(one, squared_norms=short) if one.member == 3 else one for one in reduction.inputs)
    taken = reduction.honest()
    assert set(reduction.findings(taken, LOOKERS)) == {Finding.DOUBTFUL}
    assert reduction.audit(taken).finding is Finding.DOUBTFUL


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["mean", "robust_rda"])
def test_rounding_of_sums_makes_no_honest_result_doubtful(rule: str, weight: float) -> None:
    """Squares of tiny numbers round up in float32, and a claimed length may be wrong as far as it is admitted."""
    for value, claimed in ((3.3e-23, 1.0), (1.0, 1 - 0.9e-4)):
        vectors = alike(LAYOUT, VOTERS, 0.6, 0)
        vectors[3] = torch.zeros(LAYOUT.elements)
        vectors[3][::64] = value
        reduction = Reduction(
            LAYOUT, vectors, MERGES[rule], ("fp32", "fp32"), 2, 1, [1.0, 1.0, 1.0, weight, 1.0, 1.0, 1.0, 1.0]
        )
        norms = tuple(norm * claimed for norm in reduction.inputs[3].squared_norms)
        reduction.inputs = tuple(
            replace(one, squared_norms=norms) if one.member == 3 else one for one in reduction.inputs
        )
        assert set(reduction.findings(reduction.honest(), LOOKERS)) == {Finding.CONFIRMED}


def test_a_result_that_does_not_decode_where_nobody_looked_is_doubted() -> None:
    """Otherwise nobody could apply it, round after round, and nobody would know why."""
    vectors = alike(MANY, VOTERS, 0.5, 0)
    reduction = Reduction(MANY, vectors, codecs=("fp32", "fp32"), partitions=2, partition=0)
    honest = reduction.honest()
    findings = set()
    for leaf in (1, 100, 200, 300):
        at = leaf * reduction.result.leaf_bytes
        data = bytearray(honest.data)
        data[at : at + 4] = b"\xff\xff\xff\x7f"
        findings.update(reduction.findings(reduction.kept(replace(honest, data=bytes(data))), LOOKERS))
    assert Finding.CONFIRMED not in findings
    assert Finding.DOUBTFUL in findings


@pytest.mark.parametrize("result", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("contribution", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("elements", [0, 1, 895, 896, 5000])
def test_windows_are_covered(contribution: str, result: str, elements: int) -> None:
    leaves = Leaves(elements, CODECS[contribution], CODECS[result])
    windows = [leaves.window(leaf) for leaf in range(leaves.count)]
    assert windows[0].start == 0
    assert windows[-1].stop == elements
    for leaf, window in enumerate(windows):
        covering, size = leaves.covering(leaf), CODECS[contribution].leaf_elements
        assert covering.start * size <= window.start
        assert window.stop <= covering.stop * size
        assert set(covering) <= set(range(leaves.input_count))


@pytest.mark.parametrize("contribution", ["bf16", "int8", "int4"])
def test_leaves_side_by_side_are_one_window(contribution: str) -> None:
    leaves = Leaves(5000, CODECS[contribution], CODECS["int8"])
    chosen = [0, 1, 3, leaves.count - 2, leaves.count - 1]
    whole, single, last = leaves.windows(range(leaves.count)), leaves.windows([2]), leaves.windows(chosen)
    assert (whole, single) == ([slice(0, 5000)], [leaves.window(2)])
    assert last == [slice(0, leaves.window(1).stop), slice(leaves.window(3).start, 5000)]
    assert leaves.covering_all(chosen) == sorted({index for leaf in chosen for index in leaves.covering(leaf)})


def test_a_reduction_of_nothing_passes() -> None:
    """A partition is empty if the fragment has fewer rows than partitions."""
    layout = FragmentLayout(0, (TensorSpec("gain", (2, 4)),))
    vectors = alike(layout, 3, 0.5, 0)
    reduction = Reduction(layout, vectors, partitions=3, partition=1)
    honest: ReducedPartition = reduction.honest()
    assert {one.value for one in reduction.findings(honest, range(3))} == {"confirmed"}


# -- audits


@pytest.mark.parametrize("rule", [*MERGES.values(), replace(MERGES["robust_rda"], by_row=True)], ids=str)
def test_an_audit_passes_what_is_honest_or_says_that_it_cannot_tell(rule: MergeRule) -> None:
    vectors = alike(LAYOUT, VOTERS, 0.5, 3)
    reduction = Reduction(LAYOUT, vectors, rule, partitions=2, partition=1)
    blind = rule.by_row or rule.name == "nnm_trimmed_mean"
    assert reduction.audit(reduction.honest()).finding is (Finding.UNOPENED if blind else Finding.CONFIRMED)


@pytest.mark.parametrize("codecs", [("fp32", "int4"), ("int8", "int8"), ("int4", "fp32")], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_an_audit_finds_a_single_touched_leaf(codecs: tuple[str, str], seed: int) -> None:
    reduction = Reduction(LAYOUT, alike(LAYOUT, VOTERS, 0.5, seed), codecs=codecs, partitions=2, partition=1)
    touched = reduction.perturbed(reduction.honest(), share=1e-6, size=1.0, seed=seed)
    found = reduction.audit(touched)
    assert (found.finding, found.whole) == (Finding.REFUTED, True)
    assert reduction.repeat(touched, found).finding is Finding.REFUTED


@pytest.mark.parametrize("rule", ["robust_rda", "centered_clip", "geometric_median", "krum"])
@pytest.mark.parametrize("index", range(2))
def test_an_audit_doubts_coefficients_that_are_wrong_in_one_segment_alone(rule: str, index: int) -> None:
    layout = FragmentLayout(0, (TensorSpec("gain", (64,)), TensorSpec("matrix", (509, 64))))
    vectors = alike(layout, VOTERS, 0.5, 3)
    for member in HOSTILE:
        vectors[member] = -10 * vectors[member]
    reduction = Reduction(layout, vectors, MERGES[rule], partitions=1)
    honest = reduction.honest()
    assert reduction.audit(honest).finding is Finding.CONFIRMED
    own = honest.coefficients[index * VOTERS : (index + 1) * VOTERS]
    segments = iter(range(2))
    lie = reduction.with_coefficients(
        honest,
        lambda due: [*own[1:], own[0]] if next(segments) == index else due,  # in turns: of the rule's form
    )
    found = reduction.audit(lie)
    assert (found.finding, found.refutation) == (Finding.DOUBTFUL, None)


def test_an_audit_without_an_input_cannot_tell() -> None:
    reduction = Reduction(LAYOUT, alike(LAYOUT, VOTERS, 0.5, 1), partitions=2)
    honest = reduction.honest()
    own, codecs = BlobStore(1 << 30), (reduction.contribution, reduction.result)
    for one in reduction.inputs[1:]:
        own.add(reduction.blobs.get(one.root) or b"", reduction.contribution.leaf_bytes)
    own.put(honest.data, honest.tree)
    reduction.inspector = SpotChecker(lambda *_: reduction.cut, codecs, reduction.rule, own)
    assert reduction.audit(honest).finding is Finding.UNOPENED
    own.add(reduction.blobs.get(reduction.inputs[0].root) or b"", reduction.contribution.leaf_bytes)
    assert reduction.audit(honest).finding is Finding.CONFIRMED
