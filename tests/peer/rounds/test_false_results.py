"""Evidence over real bytes: a cheating reducer is convicted by its own signature, and never an honest one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.chain.weights import contribution_weight, truncated
from coordinator.group.group import read_input_set
from coordinator.run.manifest import OuterSpec
from coordinator.trust.evidence import EVIDENCE_BYTES_MAX, Evidence, UnknownChargeError, false_result, verify
from coordinator.wire.messages import Bundle
from dht.errors import PeerError
from peer.numerics.merge import MERGES
from peer.numerics.reduction import ReducedPartition
from tests.coordinator.builders import forged
from tests.peer.judged import CLUB, GROUP, LAYOUT, MEMBERS, PARTITION, Round, round_of
from tests.peer.reducing import alike

CHAIN = CLUB.chain()
CULPRIT = GROUP.reducer(PARTITION)
RULES = [OuterSpec(merge=rule) for rule in MERGES] + [OuterSpec(merge="robust_rda", norms="row")]
INNOCENT = r"what its inputs come to|no leaf can be recomputed"
CODECS = [("fp32", "fp32"), ("bf16", "int4"), ("int4", "int8")]


@cache
def standard(merge: str = "robust_rda", codecs: tuple[str, str] = ("int8", "int8"), norms: str = "tensor") -> Round:
    outer = OuterSpec.model_validate(
        {"merge": merge, "contribution_codec": codecs[0], "result_codec": codecs[1], "norms": norms}
    )
    return round_of(outer, alike(LAYOUT, MEMBERS, 0.5, 1))


def cheated(of: Round, leaf_share: float = 1.0) -> ReducedPartition:
    return of.reduction.perturbed(of.reduction.honest(), leaf_share, 1.0, seed=4)


@pytest.mark.parametrize("merge", sorted(set(MERGES) - {"nnm_trimmed_mean"}))
@pytest.mark.parametrize("codecs", CODECS, ids=str)
def test_one_touched_leaf_convicts_whoever_signed_it(merge: str, codecs: tuple[str, str]) -> None:
    of = standard(merge, codecs)
    lie = cheated(of)
    assert of.convicted(of.evidence(lie, of.reduction.leaves.count - 1)) == CULPRIT
    assert of.convicted(of.evidence(lie, 0)) == CULPRIT


@pytest.mark.parametrize("name", ["noisy_results", "selfish_results", "garbage_results"])
@pytest.mark.parametrize("codecs", CODECS, ids=str)
def test_a_forger_is_convicted_by_any_leaf_of_what_it_signed(name: str, codecs: tuple[str, str]) -> None:
    """It may forge a longer part, noise, or bytes that are not numbers; its coefficients are those of the rule."""
    of = standard(codecs=codecs)
    lie = of.reduction.forged(of.reduction.honest(), name, own=GROUP.members.index(CULPRIT))
    for leaf in range(of.reduction.leaves.count):
        assert of.convicted(of.evidence(lie, leaf)) == CULPRIT


@pytest.mark.parametrize("outer", RULES, ids=lambda outer: f"{outer.merge}-{outer.norms}")
@pytest.mark.parametrize("codecs", CODECS, ids=str)
@pytest.mark.parametrize("included", [None, (0, 1, 3)], ids=["all", "three"])
def test_no_leaf_of_an_honest_result_convicts(
    outer: OuterSpec, codecs: tuple[str, str], included: tuple[int, ...] | None
) -> None:
    """This holds with attackers and with idle members among its inputs."""
    outer = outer.model_copy(update={"contribution_codec": codecs[0], "result_codec": codecs[1]})
    vectors = alike(LAYOUT, MEMBERS, 0.5, 2)
    vectors[1] = -10 * vectors[1]
    vectors[3] = torch.zeros_like(vectors[3])
    of = round_of(outer, vectors)
    honest = of.reduction.honest(included)
    for leaf in range(of.reduction.leaves.count):
        with pytest.raises(PeerError, match=INNOCENT):
            of.convicted(of.evidence(honest, leaf))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-30, 1e12), st.sampled_from(sorted(MERGES)))
def test_whatever_members_contribute_an_honest_reducer_stays_innocent(seed: int, size: float, merge: str) -> None:
    vectors = alike(LAYOUT, MEMBERS, 0.5, seed)
    vectors[seed % MEMBERS] *= size
    of = round_of(OuterSpec.model_validate({"merge": merge}), vectors)
    honest = of.reduction.honest()
    with pytest.raises(PeerError, match=INNOCENT):
        of.convicted(of.evidence(honest, seed % of.reduction.leaves.count))


@pytest.mark.parametrize("rule", ["mean", "rda"])
def test_coefficients_that_must_be_the_weights_convict_if_they_are_not(rule: str) -> None:
    of = standard(rule)
    lie = of.reduction.with_coefficients(of.reduction.honest(), lambda own: [5 * own[0], *own[1:]])
    assert of.convicted(of.evidence(lie, 0)) == CULPRIT


def test_coefficients_that_an_estimate_doubts_convict_nobody() -> None:
    of = standard()
    lie = of.reduction.with_coefficients(of.reduction.honest(), lambda own: [5 * own[0], *own[1:]])
    with pytest.raises(PeerError, match="what its inputs come to"):
        of.convicted(of.evidence(lie, 0))


@pytest.mark.parametrize("coefficients", [(), (0.5,)])
def test_hiding_the_coefficients_helps_nobody(coefficients: tuple[float, ...]) -> None:
    of = standard()
    assert of.convicted(of.evidence(of.reduction.honest(), 0, coefficients=coefficients)) == CULPRIT


def test_an_input_that_no_honest_reducer_takes_convicts_whoever_took_it() -> None:
    of = standard()
    odd = CLUB.commit(0, GROUP, codec="int8", part_roots=of.inputs.commits[0].part_roots, squared_norms=(1.0,))
    bundle = CLUB.bundle(GROUP, [odd, *of.inputs.signed[1:]])
    other = replace(of, inputs=read_input_set(bundle, GROUP, "int8", CHAIN))
    assert other.convicted(other.evidence(of.reduction.honest(), 0)) == CULPRIT
    without = other.reduction.honest((1, 2, 3))
    with pytest.raises(PeerError, match="what its inputs come to"):
        other.convicted(other.evidence(without, 0))


# -- framing


def test_an_honest_reducer_is_not_framed_by_other_inputs_than_it_had() -> None:
    """Not by a second input set, nor by contributors that opened something else than they had committed."""
    of = standard()
    honest = of.reduction.honest()
    result = of.result(honest)
    shown = of.shown(honest, 0, result)
    other = CLUB.bundle(GROUP, of.inputs.signed[1:])
    two = CLUB.commit(0, GROUP, codec="int8", part_roots=of.inputs.commits[1].part_roots)
    swapped = CLUB.bundle(GROUP, [two, *of.inputs.signed[1:]])
    for bundle in (other, swapped):
        with pytest.raises(PeerError, match="other inputs"):
            of.convicted(false_result(result, bundle, shown))  # type: ignore[arg-type]
    pieces = tuple(bytes(len(piece)) for piece in shown.inputs[0].pieces)
    bent = shown.inputs[0].model_copy(update={"pieces": pieces})
    for inputs in ((bent, *shown.inputs[1:]), shown.inputs[1:], (shown.inputs[1], *shown.inputs[1:])):
        with pytest.raises(PeerError, match="nobody signed for"):
            of.convicted(
                false_result(result, of.inputs.statement, shown.model_copy(update={"inputs": inputs}))  # type: ignore[arg-type]
            )


def test_an_honest_reducer_is_not_framed_by_leaves_that_it_did_not_sign() -> None:
    of = standard()
    honest, lie = of.reduction.honest(), cheated(of)
    result = of.result(honest)
    shown, false = of.shown(honest, 0, result), of.shown(lie, 0, result)
    changes: list[dict[str, object]] = [
        {"piece": false.piece, "siblings": false.siblings},
        {"piece": false.piece},
        {"leaf": 1},
        {"leaf": 10**6},
        {"siblings": ()},
    ]
    for change in changes:
        with pytest.raises(PeerError, match="nobody signed for"):
            of.convicted(false_result(result, of.inputs.statement, shown.model_copy(update=change)))  # type: ignore[arg-type]
    for change in ({"partition": 1}, {"turn": 1}, {"result": bytes(32)}):
        with pytest.raises(PeerError, match="another result"):
            of.convicted(false_result(result, of.inputs.statement, shown.model_copy(update=change)))  # type: ignore[arg-type]


def test_a_peer_cannot_sign_for_another() -> None:
    """A result with other coefficients or of another partition than its reducer signed is not its result."""
    of = standard()
    lie = cheated(of)
    result = of.result(lie)
    shown = of.shown(lie, 0, result)
    with pytest.raises(PeerError, match="did not sign"):
        of.convicted(false_result(forged(result), of.inputs.statement, shown))  # type: ignore[arg-type]
    honest = of.result(of.reduction.honest())
    swapped = result.model_copy(update={"signature": honest.signature})
    with pytest.raises(PeerError, match="did not sign"):
        of.convicted(false_result(swapped, of.inputs.statement, shown))  # type: ignore[arg-type]


def test_results_of_nothing_and_input_sets_in_no_form_convict_nobody() -> None:
    of = standard()
    lie = cheated(of)
    for included in ((0, 1, 2, 9), (0, 1, 2, 2)):
        with pytest.raises(PeerError, match="do not exist"):
            of.convicted(of.evidence(lie, 0, included=included))
    shorter = CLUB.commit(0, GROUP, codec="int8", part_roots=of.inputs.commits[0].part_roots[:1])
    mixed = CLUB.bundle(GROUP, [shorter, *of.inputs.signed[1:]])
    elsewhere = replace(of, inputs=replace(of.inputs, digest=mixed.digest, statement=mixed))
    with pytest.raises(PeerError, match="no honest member accepts"):
        elsewhere.convicted(elsewhere.evidence(lie, 0))
    result = of.result(lie)
    for statements in ((of.inputs.statement, result), (result,), (result, result)):
        exhibit = of.shown(lie, 0, result).to_wire()
        with pytest.raises(PeerError, match="its bundle and one leaf"):
            of.convicted(Evidence(charge="false_result", statements=statements, exhibit=exhibit))


def test_an_honest_result_of_before_bundles_said_their_size_convicts_nobody() -> None:
    """A run continues when its peers are updated, and anybody may have kept a result weighted by an older rule.

    That rule cut the heaviest at 1.5 × the median of the whole input set, even when not all of it was merged.
    """
    outer = OuterSpec(merge="mean")
    of = round_of(outer, alike(LAYOUT, MEMBERS, 0.5, 1), tokens=(100, 110, 120, 200))
    weights = truncated([contribution_weight(one.tokens, one.steps) for one in of.inputs.commits])
    then = replace(of.reduction, weights=weights)
    bundle = CLUB.say(CLUB.number(GROUP.leader), "bundle", Bundle(commits=of.inputs.signed), **CLUB.in_group(GROUP))
    old = replace(of, reduction=then, inputs=replace(of.inputs, digest=bundle.digest, statement=bundle))
    with pytest.raises(PeerError, match="no honest member accepts"):
        old.convicted(old.evidence(then.honest((0, 2, 3)), 0))


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e300, -1e300, 5e-324])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(MERGES)), st.integers(0, 2**53), st.integers(0, 3))
def test_whatever_a_liar_signs_is_judged(data: st.DataObject, merge: str, tokens: int, steps: int) -> None:
    """Its own commitments and results may hold any numbers: there are just two verdicts, and no other outcome."""
    of = standard(merge)
    lie = cheated(of)
    norms = st.lists(st.floats(0, 1e36), min_size=6, max_size=10).map(tuple)
    commits = [
        CLUB.commit(
            member,
            GROUP,
            tokens=tokens * (member != 3),
            steps=steps,
            codec="int8",
            part_roots=one.part_roots,
            squared_norms=data.draw(norms | st.just(one.squared_norms)),
        )
        for member, one in enumerate(of.inputs.commits)
    ]
    bundle = CLUB.bundle(GROUP, commits)
    other = replace(of, inputs=replace(of.inputs, digest=bundle.digest, statement=bundle))
    count = data.draw(st.sampled_from([0, 1, len(lie.coefficients)]))
    coefficients = tuple(data.draw(st.lists(FLOATS, min_size=count, max_size=count)))
    try:
        assert other.convicted(other.evidence(lie, 0, coefficients=coefficients)) == CULPRIT
    except PeerError:
        return


@pytest.mark.parametrize("tokens", [0, 100])
@pytest.mark.parametrize("merge", sorted(MERGES))
def test_a_result_of_nothing_that_counts_ends_nobody_who_judges_it(merge: str, tokens: int) -> None:
    """Anybody can sign such a result alone and send it to everybody."""
    of = standard(merge)
    lie = cheated(of)
    commits = [
        CLUB.commit(
            member,
            GROUP,
            tokens=tokens,
            steps=10,
            codec="int8",
            part_roots=one.part_roots,
            squared_norms=one.squared_norms,
            probation=tokens > 0,
        )
        for member, one in enumerate(of.inputs.commits)
    ]
    bundle = CLUB.bundle(GROUP, commits)
    other = replace(of, inputs=replace(of.inputs, digest=bundle.digest, statement=bundle))
    if merge == "nnm_trimmed_mean":
        with pytest.raises(PeerError, match="no leaf can be recomputed"):
            other.convicted(other.evidence(lie, 0))
    else:
        assert other.convicted(other.evidence(lie, 0)) == CULPRIT


def test_a_peer_without_tensors_cannot_judge() -> None:
    of = standard()
    with pytest.raises(UnknownChargeError):
        verify(of.evidence(cheated(of), 0), CLUB.rules)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_makes_it_void(data: st.DataObject) -> None:
    of = standard()
    whole = of.evidence(cheated(of), 0).to_wire()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError):
        verify(Evidence.parse(bytes(damaged)), CLUB.rules, of.proof_checker)


def test_evidence_fits_into_a_message_or_is_none() -> None:
    of = standard()
    lie = cheated(of)
    evidence = of.evidence(lie, 0)
    assert len(evidence.to_wire()) < 32 << 10
    result = of.result(lie)
    shown = of.shown(lie, 0, result)
    padded = of.inputs.statement.model_copy(update={"body": bytes(EVIDENCE_BYTES_MAX - 4096)})
    assert false_result(result, padded, shown) is None
