"""A short walk through every reader; `make fuzz` goes a million steps."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from coordinator.wire.messages import STATEMENT_BODIES, Message
from dht.guard import REQUESTS
from dht.statement import Statement
from peer.net.frames import ProbeAnswer, StatePiece, Transfer, decode_header
from tests.fuzz.mutate import mutated
from tests.fuzz.record_store import CALLS
from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS

INPUTS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_our_own_errors(name: str) -> None:
    _, refused = fuzz(name, INPUTS, seed=1)
    assert refused > 0


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "learner"])
def test_the_seeds_of_the_walk_are_accepted(name: str) -> None:
    target = TARGETS[name]
    assert [target.try_input(seed) for seed in target.seeds] == [True] * len(target.seeds)


def test_headers_of_every_kind_are_tried() -> None:
    found = [decode_header(header) for header in TARGETS["header"].seeds]
    assert {type(message) for message in found} == {*get_args(Message), *get_args(Transfer)}
    assert {message.context.kind for message in found if isinstance(message, Statement)} == {*STATEMENT_BODIES, "vote"}


def test_every_question_and_every_answer_has_a_handler_that_is_tried() -> None:
    tried = {type(decode_header(seed)) for name in ("donor", "newcomer", "observer") for seed in TARGETS[name].seeds}
    elsewhere = {StatePiece, ProbeAnswer}  # the target `download`; a number compared with the one that was asked
    assert {*get_args(Transfer)} - tried == elsewhere


def test_every_call_that_the_record_store_answers_is_tried() -> None:
    assert CALLS.keys() == REQUESTS.keys()
    assert all(CALLS.values())


def test_inputs_come_from_the_seed() -> None:
    seed = TARGETS["certificate"].seeds[0]
    first, second = (mutated(seed, random.Random(7)) for _ in range(2))
    assert first == second != seed


def test_a_reader_that_breaks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> int:
        return data[10_000]

    monkeypatch.setitem(TARGETS, "broken", type(TARGETS["vote"])(broken, (b"abc",)))
    with pytest.raises(AssertionError, match="IndexError"):
        fuzz("broken", 10, seed=0)
