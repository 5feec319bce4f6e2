"""A lab whose sides part and meet again: the states of each side, the work carried in, and agreement afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.cli.lab import Reunion as ReunionOption
from peer.lab.data import side_texts
from peer.lab.options import LabOptions, Partition, Reunion, Scavenge
from peer.lab.replay import replay_tape
from tests.extra import extra
from tests.peer.lab import small

CUT = (8, 40)  # of 4 steps a period; smaller than a full certificate takes, a side waits for three of them


def parted(learners: int, second: int, reunion: Reunion = "carry", **given: object) -> LabOptions:
    cut = Partition(second, *CUT, reunion, own_text=bool(given.pop("own_text", False)))
    return small.options(learners, 56, partition=cut, **given)  # type: ignore[arg-type]


def test_both_sides_go_on_apart_and_are_one_afterwards() -> None:
    _, report = small.run(parted(4, 2))
    assert [(point.step, point.side) for point in report.sides] == [
        (0, "both"),
        (40, "first"),
        (40, "second"),
        (56, "both"),
    ]
    first, second = report.sides[1:3]
    assert first.versions > 2 * CUT[0] / 4, "versions that this side alone has certified"
    assert second.versions > 2 * CUT[0] / 4
    assert first.eval_loss != second.eval_loss
    assert report.minor_certificates > 0
    assert report.agreement


@pytest.mark.parametrize("second", [2, *extra([1])], ids=["2:2", "3:1"])
def test_work_that_the_losing_side_certified_is_brought_again(second: int) -> None:
    """Every learner of the losing side carries both fragments."""
    dropped, carried = (small.run(parted(4, second, what))[1] for what in ("drop", "carry"))
    assert (dropped.events.get("branch_carried"), carried.events["branch_carried"]) == (None, 2 * second)
    assert carried.agreement
    assert carried.sides[:3] == dropped.sides[:3], "until they meet nothing differs"
    assert carried.eval_loss_last != dropped.eval_loss_last
    for report in (dropped, carried):
        assert 0 < report.tokens_certified <= report.tokens, "work that is brought again counts once"
    assert dropped.tokens_certified < carried.tokens_certified


def test_a_side_that_certified_nothing_brings_nothing() -> None:
    _, report = small.run(small.options(4, 32, partition=Partition(1, 8, 14)))
    assert "branch_carried" not in report.events
    assert report.agreement


@pytest.mark.slow
def test_uncut_is_the_run_without_a_partition() -> None:
    whole, uncut = small.run(small.options(2, 56))[0], small.run(parted(2, 1, "uncut"))[0]
    assert small.final_parameters(whole) == small.final_parameters(uncut)


@pytest.mark.slow
def test_a_replay_brings_the_same_again(tmp_path: Path) -> None:
    report = small.run_taped(parted(4, 2, own_text=True), tmp_path / "tape.jsonl")
    assert report.events["branch_carried"] == 4
    assert all(len(point.text_losses) == 2 for point in report.sides)
    left = replay_tape(tmp_path / "tape.jsonl", small.text()).versions - report.versions_certified
    assert left > 2 * CUT[0] / 4, "the tape has the branch that was left, too"


def test_the_sides_texts_have_nothing_in_common_and_are_about_equally_long() -> None:
    first, second = side_texts(DataSpec(context_tokens=16))
    total = len(first.train) + len(second.train)
    assert total > 1_000_000
    assert 0.4 < len(first.train) / total < 0.6
    pieces = [{bytes(text[at : at + 200].numpy()) for at in range(0, len(text) - 200, 200)} for text in (first.train,)]
    assert not any(bytes(second.train[at : at + 200].numpy()) in pieces[0] for at in range(0, 10**6, 200))
    with pytest.raises(UsageError, match="stdlib"):
        side_texts(DataSpec(source="text", path="*.txt"))


@pytest.mark.parametrize("text", ["2", "0:8:16", "2:16:8", "2:8:8", "1.5:8:16", "2:0:8", "two:8:16"])
def test_a_partition_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--partition"):
        Partition.parse(text, "carry", own_text=False)


@pytest.mark.parametrize(
    "given",
    [
        {"partition": Partition(3, 4, 8)},
        {"partition": Partition(1, 4, 80)},
        {"partition": Partition(1, 4, 8, own_text=True), "dirichlet_alpha": 1.0},
        {"partition": Partition(1, 4, 8), "scavenge": Scavenge(1, 2, 4)},
    ],
)
def test_a_partition_that_does_not_fit_the_run_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"--partition|--own-text"):
        small.options(3, 20, **given)


def test_the_command_line_has_the_same_choices() -> None:
    assert [one.value for one in ReunionOption] == list(get_args(Reunion))
