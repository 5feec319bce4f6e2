"""Retrying when a peer is back before its network is."""

from __future__ import annotations

import asyncio

import pytest

from dht.errors import LocalError, NetworkError
from peer.service.retry import PAUSES_SECONDS, retry_join
from tests.peer.virtual_loop import run_virtual


class Network:
    """A network in which nobody answers the first `silent` times."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked_at: list[float] = []

    async def join(self) -> str:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) <= self.silent:
            raise NetworkError("nobody is there")
        return "joined"


def test_a_peer_that_comes_back_asks_until_another_answers() -> None:
    network, said = Network(silent=6), list[str]()
    assert run_virtual(retry_join(network.join, said.append)) == "joined"
    assert network.asked_at == [0.0, 1.0, 3.0, 8.0, 18.0, 28.0, 38.0]
    assert said[0] == "nobody is there; trying again in 1 s"
    assert len(said) == 6
    assert said[-1] == f"nobody is there; trying again in {PAUSES_SECONDS[-1]:g} s"


def test_an_error_other_than_silence_is_raised_at_once() -> None:
    async def broken() -> None:
        raise LocalError("the disk is full")

    with pytest.raises(LocalError, match="the disk is full"):
        run_virtual(retry_join(broken, lambda line: None))


def test_a_peer_that_is_told_to_leave_stops_asking() -> None:
    network = Network(silent=10**6)

    async def leave_soon() -> None:
        asking = asyncio.ensure_future(retry_join(network.join, lambda line: None))
        await asyncio.sleep(30)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    run_virtual(leave_soon())
    assert len(network.asked_at) == 6
