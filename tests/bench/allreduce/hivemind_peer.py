"""One peer of hivemind's side: `python -m tests.bench.allreduce.hivemind_peer HOST PARAMETERS NUMBER PEERS [PEER …]`.

It is a `DecentralizedAverager` over its own DHT, as users of hivemind run it: averager and DHT are processes, and the
vector is in shared memory. Matchmaking comes first and then waits for a trigger, so that both can be timed.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import (
    BlockwiseQuantization,
    Float16Compression,
    NoCompression,
    Uniform8BitQuantization,
    quantization,
)

from tests.bench.allreduce.commands import Answer, serve
from tests.bench.allreduce.gradients import elements_of, likeness, model_of, outer_gradient, true_mean

COMPRESSIONS = {
    "none": NoCompression,
    "float16": Float16Compression,
    "blockwise": BlockwiseQuantization,
    "uniform8bit": Uniform8BitQuantization,
}
MATCHMAKING_SECONDS = 2.0  # it ends as soon as all are there
REQUEST_SECONDS = 0.5
STEP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.005


class HivemindPeer:
    """Averagers by name, over one DHT."""

    def __init__(self, host: str, elements: int, number: int, peers: int, initial_peers: list[str]) -> None:
        self._gradient = outer_gradient(elements, number)
        self._peers = peers
        self._dht = hivemind.DHT(
            host_maddrs=[f"/ip4/{host}/tcp/0"],
            initial_peers=initial_peers,
            use_relay=False,
            use_auto_relay=False,
            startup_timeout=60,
            start=True,
        )
        self._averagers: dict[str, hivemind.DecentralizedAverager] = {}
        self._step: StepControl | None = None

    async def tell(self) -> Answer:
        return {"address": str(self._dht.get_visible_maddrs()[0])}

    async def add(self, prefix: str, compression: str, part_bytes: int, tensors: int) -> Answer:
        """Add an averager with these settings."""
        self._averagers[prefix] = hivemind.DecentralizedAverager(
            [torch.zeros_like(piece) for piece in self._gradient.tensor_split(tensors)],
            self._dht,
            start=True,
            prefix=prefix,
            target_group_size=self._peers,
            min_group_size=self._peers,
            min_matchmaking_time=MATCHMAKING_SECONDS,
            request_timeout=REQUEST_SECONDS,
            allreduce_timeout=STEP_SECONDS_MAX,
            compression=COMPRESSIONS[compression](),
            part_size_bytes=part_bytes,
        )
        return {}

    async def remove(self, prefix: str) -> Answer:
        self._averagers.pop(prefix).shutdown()
        return {}

    async def prepare(self, prefix: str) -> Answer:
        with self._averagers[prefix].get_tensors() as tensors:
            for tensor, piece in zip(tensors, self._gradient.tensor_split(len(tensors)), strict=True):
                tensor.copy_(piece)
        return {}

    async def match(self, prefix: str) -> Answer:
        """Find the other peers, up to the point where the averager waits for the trigger."""
        asked = time.monotonic()
        self._step = self._averagers[prefix].step(
            wait=False, require_trigger=True, allow_retries=True, timeout=STEP_SECONDS_MAX
        )
        while self._step.stage is not AveragingStage.AWAITING_TRIGGER:
            if self._step.done():
                raise RuntimeError("hivemind found no group")
            await asyncio.sleep(POLL_SECONDS)
        return {"asked": asked, "ended": time.monotonic()}

    async def reduce(self) -> Answer:
        """Average, from the trigger to the mean."""
        assert self._step is not None
        began = time.monotonic()
        self._step.allow_allreduce()
        gathered = self._step.result(STEP_SECONDS_MAX)
        return {"asked": began, "began": began, "ended": time.monotonic(), "group": len(gathered)}

    async def verify(self, prefix: str) -> Answer:
        """Compare the vector that this peer holds now with the plain mean."""
        with self._averagers[prefix].get_tensors() as tensors:
            found = torch.cat([tensor.clone() for tensor in tensors])
        return likeness(found, true_mean(found.numel(), self._peers))

    async def close(self) -> None:
        for averager in self._averagers.values():
            averager.shutdown()
        self._dht.shutdown()


def repair_decoding() -> None:
    """Repair hivemind 1.1.12, which takes `int` of an array with one element; numpy 2.4 no longer allows that."""
    quantization.int = lambda array: array.item()


async def main(host: str, parameters: int, number: int, peers: int, initial_peers: list[str]) -> None:
    repair_decoding()
    peer = HivemindPeer(host, elements_of(model_of(parameters)), number, peers, initial_peers)
    names = ("tell", "add", "remove", "prepare", "match", "reduce", "verify")
    try:
        await serve({name: getattr(peer, name) for name in names})
    finally:
        await peer.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5:]))  # type: ignore[call-arg]
