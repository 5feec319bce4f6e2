"""A merge rule from an installed package: the one in `examples/merge`, put where Python finds packages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.events import Finding
from coordinator.run.manifest import OuterSpec, RunConfig
from coordinator.trust.evidence import UnknownChargeError
from dht.errors import PeerError, UsageError
from peer.model.description import describe, own_model
from peer.numerics.merge import MergeRule
from peer.numerics.merge_plugin import merge_rule, rule_digest, with_rule_digest
from peer.numerics.plugins import MERGES, check_packages
from peer.numerics.robust.plugin_rule import RuleError, apply_rule
from peer.numerics.robust.segments import TensorInputs, merge_segment
from peer.rounds.tensor_proofs import TensorProofChecker
from peer.storage.anchors import layouts_of
from tests.peer.installing import install, set_entry_points
from tests.peer.reducing import alike
from tests.peer.rounds.test_false_results import CULPRIT, INNOCENT, LAYOUT, MEMBERS, cheated, round_of
from tests.peer.rounds.test_tensor_worker import Round, config_of, stepped

PACKAGE = "near-median==0.1.0"
NAMED = {"merge": "mean_near_median", "merge_package": PACKAGE}
RUN = RunConfig(outer=OuterSpec.model_validate(NAMED))
# of the package's version 0.1.0; if it changes, the fixed inputs have, and so the protocol
DIGEST = "c9400b911db93cc3c71083ce55393a78c28d834d1ad07795db9fbd9c2a69106b"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of installed packages that contains the example."""
    install("merge", tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def outer(site: Path) -> OuterSpec:
    """Return the manifest's outer settings, with the example as the merge rule and its digest."""
    return with_rule_digest(RUN).outer


def function_of(outer: OuterSpec) -> Callable[..., Any]:
    function = merge_rule(outer).function
    assert function is not None
    return function


# -- the example


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 20))
def test_the_example_is_the_mean_of_what_is_nearest_to_the_median(data: st.DataObject, members: int, k: int) -> None:
    from examples.merge.near_median import mean_near_median

    draw = st.lists(st.floats(-(2.0**59), 2.0**59, width=32), min_size=k, max_size=k)
    pieces = np.array(data.draw(st.lists(draw, min_size=members, max_size=members)), np.float32)
    weights = np.array(data.draw(st.lists(st.floats(0.1, 1), min_size=members, max_size=members)))
    merged = apply_rule(mean_near_median, pieces, weights / weights.sum())
    for column, found in zip(pieces.T.astype(np.float64), merged, strict=True):
        middle = float(np.median(column))
        kept = sorted(range(members), key=lambda member: abs(column[member] - middle))[: members - (members - 1) // 3]
        expected = sum(weights[member] * column[member] for member in kept) / sum(weights[member] for member in kept)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * float(np.abs(column).max()) + 1e-44)


def test_a_digest_of_its_results_is_in_the_manifest(outer: OuterSpec) -> None:
    assert outer.merge_sha256 == DIGEST
    assert describe(RUN).config.outer == outer
    assert own_model(RUN, torch.nn.Linear(2, 2)).config.outer == outer
    assert with_rule_digest(RunConfig()) == RunConfig()


@pytest.mark.parametrize("cuts", [(0, 1000), (0, 1, 2, 40, 700, 1000)])
def test_a_segment_merges_like_the_whole_and_members_without_weight_are_left_out(
    outer: OuterSpec, cuts: tuple[int, ...]
) -> None:
    rule = merge_rule(outer)
    vectors = list(torch.randn(5, 20_000, generator=torch.Generator().manual_seed(1)))
    weights = (0.5, 0.0, 1.0, 2.0, 0.25)
    vectors[1] *= 1e9
    inputs = TensorInputs((1.0,) * 5, weights, embedding=False, row_elements=100)  # rows are nothing to it
    whole = merge_segment(rule, vectors, inputs)
    assert whole.coefficients is None
    assert float(whole.vector.abs().max()) < 10
    pieces = [merge_segment(rule, [one[a:b] for one in vectors], inputs).vector for a, b in itertools.pairwise(cuts)]
    assert torch.cat(pieces).numpy().tobytes() == whole.vector[: cuts[-1]].numpy().tobytes()


# -- what is refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"merge_package": "far-median==0.1.0"},
            "needs the package far-median, which is not installed; see what it is",
        ),
        ({"merge_package": "near-median==0.2.0"}, "needs the package near-median 0.2.0, and 0.1.0 of it is installed"),
        ({"merge": "far"}, "0.1.0 has no entry point far in muster.merges"),
    ],
)
def test_a_package_that_is_not_here_is_named(site: Path, changes: dict[str, str], said: str) -> None:
    config = RunConfig(outer=OuterSpec.model_validate({**NAMED, "merge_sha256": DIGEST, **changes}))
    for refused in (check_packages, describe, partial(own_model, module=torch.nn.Linear(2, 2))):
        with pytest.raises(UsageError, match=said):
            refused(config)
    for refused in (merge_rule, partial(TensorProofChecker, layouts_of(config))):
        with pytest.raises(UsageError, match=said):
            refused(config.outer)


@pytest.mark.parametrize(
    ("named", "text", "said"),
    [
        ("rules_broken:merge", "raise RuntimeError('half a file')", "cannot be imported here: RuntimeError: half a"),
        ("rules_empty:merge", "", "cannot be imported here: AttributeError"),
        ("rules_number:merge", "merge = 3", "brings no usable merge rule: mean_near_median raises TypeError: 'int'"),
    ],
)
def test_a_package_that_brings_no_function_is_named(site: Path, named: str, text: str, said: str) -> None:
    set_entry_points(next(site.glob("*.dist-info")), MERGES, {"mean_near_median": named})
    (site / f"{named.partition(':')[0]}.py").write_text(text)
    with pytest.raises(UsageError, match=f"the package {PACKAGE} {said}"):
        describe(RUN)


def test_a_peer_that_computes_other_bytes_takes_no_part(site: Path, outer: OuterSpec) -> None:
    """The package and its version are the same, but somebody has changed it, or what it imports."""
    set_entry_points(next(site.glob("*.dist-info")), MERGES, {"mean_near_median": "rules_changed:merge"})
    (site / "rules_changed.py").write_text("def merge(pieces, weights):\n    return pieces[0]\n")
    for refused in (merge_rule, partial(TensorProofChecker, [LAYOUT])):
        with pytest.raises(UsageError, match="computes other bytes here than at the run's host"):
            refused(outer)


CALLS = itertools.count()
OTHER_BYTES = "merges a slice to other bytes than the whole"
LIARS: dict[str, tuple[Callable[..., Any], str]] = {
    "by the length of the whole": (lambda p, w: p[0] / np.float32(np.linalg.norm(p[0]) + 1), OTHER_BYTES),
    "with its neighbours": (lambda p, w: (p[0] + np.roll(p[0], 1)) / np.float32(2), OTHER_BYTES),
    "by place": (lambda p, w: p[0] * np.arange(p.shape[1], dtype=np.float32) / np.float32(1e6), OTHER_BYTES),
    "by lot": (lambda p, w: p[0] * np.float32(np.random.default_rng().random()), OTHER_BYTES),
    "with a memory": (lambda p, w: p[0] * np.float32(next(CALLS) % 7), OTHER_BYTES),
    "in an order that the library chooses": (lambda p, w: p.mean(axis=0), OTHER_BYTES),
    "in place": (lambda p, w: p.sort(axis=0), "raises ValueError: .*read-only"),
    "weights in place": (lambda p, w: np.multiply(w, 2, out=w), "raises ValueError: .*read-only"),
    "nothing": (lambda p, w: None, "does not return one float32 number per column"),
    "in float64": (lambda p, w: p[0].astype(np.float64), "does not return one float32 number per column"),
    "one number": (lambda p, w: p[0][:1], "does not return one float32 number per column"),
    "as a row": (lambda p, w: p[:1], "does not return one float32 number per column"),
    "as torch does": (lambda p, w: torch.tensor(p[0]), "does not return one float32 number per column"),
    "beyond what float32 holds": (lambda p, w: p[0] * p[-1] * p[0], "returns numbers that are not finite"),
    "only some": (lambda p, w: p[0] if len(p) < 32 else 1 / 0, "raises ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_rule_that_is_none_is_refused(liar: str) -> None:
    function, said = LIARS[liar]
    with pytest.raises(RuleError, match=f"^{said}"):
        rule_digest(function)


def test_rules_have_digests_of_their_own_and_the_same_one_each_time() -> None:
    rules: list[Callable[..., Any]] = [lambda p, w: p[0], lambda p, w: p[-1], lambda p, w: np.float32(w[0]) * p[0]]
    digests = [rule_digest(rule) for rule in rules]
    assert len(set(digests)) == len(rules)
    assert [rule_digest(rule) for rule in rules] == digests


# -- in a round


def test_a_false_result_convicts_and_an_honest_one_never(outer: OuterSpec) -> None:
    for codecs in (("fp32", "fp32"), ("int4", "int8")):
        of = round_of(
            outer.model_copy(update={"contribution_codec": codecs[0], "result_codec": codecs[1]}),
            alike(LAYOUT, MEMBERS, 0.5, 1),
        )
        honest, lie, leaves = of.reduction.honest(), cheated(of), of.reduction.leaves.count
        assert honest.coefficients == ()
        assert of.reduction.audit(honest).finding is Finding.CONFIRMED
        assert of.reduction.look(lie, voter=3).finding is Finding.REFUTED
        assert of.convicted(of.evidence(lie, leaves - 1)) == CULPRIT
        for leaf in range(leaves):
            with pytest.raises(PeerError, match=INNOCENT):
                of.convicted(of.evidence(honest, leaf))
        assert of.convicted(of.evidence(honest, 0, coefficients=(0.5,))) == CULPRIT


def fails(pieces: Any, weights: Any) -> Any:
    raise MemoryError("no room")


def test_a_package_that_fails_convicts_nobody(outer: OuterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would have computed is unknown here, and whoever sent the evidence is not to blame either."""
    of = round_of(outer, alike(LAYOUT, MEMBERS, 0.5, 1))
    lie = cheated(of)
    evidence, refuted = of.evidence(lie, 0), of.reduction.look(lie, voter=3)
    broken = MergeRule(outer.merge, directional=False, function=fails)
    monkeypatch.setattr("peer.rounds.tensor_proofs.merge_rule", lambda _: broken)
    of.reduction.inspector._rule = broken
    with pytest.raises(UnknownChargeError, match="merge rule raises MemoryError: no room, on this machine"):
        of.convicted(evidence)
    assert of.reduction.look(lie, voter=3).finding is Finding.DOUBTFUL
    assert of.reduction.repeat(lie, refuted).finding is Finding.DOUBTFUL
    assert of.reduction.audit(lie).finding is Finding.UNOPENED


@pytest.mark.parametrize(
    "function",
    [fails, lambda p, w: np.full_like(p[0], np.inf), lambda p, w: np.full_like(p[0], 1e30)],
    ids=["it raises", "it is not finite", "it is longer than members take"],
)
def test_a_rule_that_fails_at_some_input_freezes_its_partition(outer: OuterSpec, function: Callable[..., Any]) -> None:
    config = config_of(**outer.model_dump(include={"merge", "merge_package", "merge_sha256"}))
    world = Round(config, stepped(config, 3)[1], 2)
    kept = world.reduce(0)
    assert kept.root is not None
    for member in world.members:
        member.rule = MergeRule(outer.merge, directional=False, function=function)
    void = world.reduce(1)
    assert (void.root, void.included, void.garbage) == (None, (), ())
    assert len({world.apply(member, [kept, None]).state for member in range(3)}) == 1
