"""Refutations from others: each is judged by its own recomputation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.events import Finding, Inspected
from coordinator.round.exchange import HeldResult
from coordinator.round.refutations import Refutations
from coordinator.wire.messages import Result
from coordinator.wire.openings import OpenedInput, Refutation
from dht.statement import digest_of
from tests.coordinator.rigs import PEERS, chain_of, core, group_of, inputs_of, say

CORE = core(0)
CHAIN = chain_of(CORE)
GROUP = group_of(CHAIN, PEERS[:5])
INPUTS = inputs_of(CHAIN, GROUP)
ACCUSER = PEERS[1]


def held(partition: int) -> HeldResult:
    reducer = GROUP.reducer(partition)
    result = Result(
        partition=partition,
        turn=0,
        root=digest_of(b"root", bytes([partition])),
        included=tuple(range(5)),
        coefficients=(),
        squared_norms=(),
        encoding_error=0.0,
    )
    return HeldResult(reducer, result, say(reducer, "result", CHAIN, INPUTS.digest, result))


def test_the_outcome_of_an_earlier_claim_says_nothing_about_the_next() -> None:
    """A claim that another member has proven meanwhile is forgotten while its recomputation still runs."""
    results = {one.statement.digest: one for one in map(held, range(2))}
    false, honest = results
    exchange: Any = SimpleNamespace(
        inputs=INPUTS, group=GROUP, held=lambda: tuple(results.values()), by_digest=lambda: results
    )

    def claim(result: bytes) -> Refutation:
        opened = (OpenedInput(member=0, pieces=(b"x",), siblings=()),)
        partition = results[result].result.partition
        return Refutation(partition=partition, turn=0, result=result, leaf=0, inputs=opened, piece=b"", siblings=())

    def answer(result: bytes, finding: Finding) -> Inspected:
        return Inspected(GROUP.key, ACCUSER, results[result].result.partition, 0, result, finding)

    known = Refutations(CORE, GROUP, exchange)
    assert known.hear(say(ACCUSER, "refutation", CHAIN, INPUTS.digest, claim(false)))
    known.tell(results[false], claim(false))
    known.examine()
    assert known.hear(say(ACCUSER, "refutation", CHAIN, INPUTS.digest, claim(honest)))
    assert known.on_inspected(answer(false, Finding.REFUTED)) == []
    assert known.proven.keys() == {false}
    known.on_inspected(answer(honest, Finding.CONFIRMED))
    assert known.proven.keys() == {false}
    assert ACCUSER in known.false
