"""Measures speed and CPU time of frames between two processes on loopback, beside hivemind's unary calls.

Run `python tests/bench/bench_transport.py`; prints one JSON object. CPU times are summed over both processes and both
libp2p daemons. Linux only, for the CPU times.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto.runtime_pb2 import ExpertRequest

from dht.identity import Identity, PeerId
from peer.net.hivemind_transport import HivemindTransport
from peer.net.transport import TransportConfig
from tests.bench.soak import memory

RUN_ID = bytes(32)
UNARY = "bench.unary"
CONTROL_BYTES = 200
UNARY_IN_FLIGHT = 8
UNARY_BYTES_MAX = 2 << 20  # hivemind's own limit for unary payloads
SETTLE_SECONDS = 3.0  # new daemons are busy at first
TIMEOUT_SECONDS = 300.0


async def start(identity_path: Path) -> P2P:
    Identity(os.urandom(32)).save(identity_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return await P2P.create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            identity_path=str(identity_path),
            check_if_identity_free=False,
            use_relay=False,
            nat_port_map=False,
            auto_nat=False,
            startup_timeout=60,
        )


async def serve(identity_path: Path) -> None:
    """Serve as the other process: return pings, count bulk frames and report the last, answer unary calls."""
    daemon = await start(identity_path)
    transport = HivemindTransport(daemon, RUN_ID, lambda peer: [])

    def on_frame(sender: PeerId, header: bytes, payload: bytes) -> None:
        if not header.startswith(b"more"):
            transport.post(sender, header)

    async def unary(request: ExpertRequest, context: P2PContext) -> ExpertRequest:
        return ExpertRequest(metadata=request.metadata if len(request.metadata) <= CONTROL_BYTES else b"")

    await transport.start(on_frame, lambda peer: None)
    await daemon.add_protobuf_handler(UNARY, unary, ExpertRequest)
    (address,) = await daemon.get_visible_maddrs()
    print(json.dumps({"peer": daemon.peer_id.to_base58(), "address": str(address), "daemon": daemon._child.pid}))
    sys.stdout.flush()
    await asyncio.Event().wait()


def cpu_seconds(pids: list[int]) -> float:
    return sum(memory.cpu_seconds(Path(f"/proc/{pid}/stat").read_text()) for pid in pids)


class Bench:
    """The measurements, made one after the other from the first process."""

    def __init__(self, daemon: P2P, other: dict, pids: list[int]) -> None:
        self.daemon = daemon
        self.other = PeerId(other["peer"])
        self.remote_id = PeerID.from_base58(other["peer"])
        self.pids = pids
        self.transport = HivemindTransport(
            daemon, RUN_ID, lambda peer: [other["address"]], TransportConfig(queue_bytes_max=1 << 32)
        )
        self.answer = asyncio.get_running_loop().create_future()
        self.gone_at = 0.0

    def on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self.answer.set_result(header)

    def on_gone(self, peer: PeerId) -> None:
        self.gone_at = self.gone_at or time.perf_counter()
        if not self.answer.done():
            self.answer.set_result(b"gone")

    async def next_answer(self) -> bytes:
        header = await self.answer
        self.answer = asyncio.get_running_loop().create_future()
        return header

    async def frame_ping(self, header: bytes) -> None:
        self.transport.post(self.other, header)
        if await self.next_answer() != header:
            raise RuntimeError("the ping did not come back")

    async def unary_ping(self, header: bytes) -> None:
        await self.unary(header)

    async def unary(self, data: bytes) -> None:
        request = ExpertRequest(metadata=data)
        await self.daemon.call_protobuf_handler(self.remote_id, UNARY, request, ExpertRequest)

    async def latency(self, ping: Callable[[bytes], Awaitable[None]], rounds: int, pause_seconds: float) -> dict:
        header = os.urandom(CONTROL_BYTES)
        for _ in range(20):
            await ping(header)
        seconds = []
        cpu_before = cpu_seconds(self.pids)
        for _ in range(rounds):
            before = time.perf_counter()
            await ping(header)
            seconds.append(time.perf_counter() - before)
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
        cpu_ms = 1000 * (cpu_seconds(self.pids) - cpu_before)
        return {
            "round_trip_ms_median": round(1000 * statistics.median(seconds), 3),
            "round_trip_ms_p95": round(1000 * statistics.quantiles(seconds, n=20)[-1], 3),
            "cpu_ms_per_message": round(cpu_ms / rounds / 2, 3),
        }

    async def frame_bulk(self, payload_bytes: int, total_bytes: int) -> None:
        payload = os.urandom(payload_bytes)
        count = total_bytes // payload_bytes
        for index in range(count):
            self.transport.post(self.other, b"more" if index < count - 1 else b"last", payload)
        await self.next_answer()

    async def unary_bulk(self, payload_bytes: int, total_bytes: int) -> None:
        payload = os.urandom(payload_bytes)
        calls = iter(range(total_bytes // payload_bytes))

        async def worker() -> None:
            for _ in calls:
                await self.unary(payload)

        await asyncio.gather(*(worker() for _ in range(UNARY_IN_FLIGHT)))

    async def throughput(self, bulk: Callable[[int, int], Awaitable[None]], payload_bytes: int, total: int) -> dict:
        await bulk(payload_bytes, max(total // 8, payload_bytes))
        cpu_before, before = cpu_seconds(self.pids), time.perf_counter()
        await bulk(payload_bytes, total)
        wall = time.perf_counter() - before
        cpu = cpu_seconds(self.pids) - cpu_before
        megabytes = total // payload_bytes * payload_bytes / 1e6
        return {"mb_per_second": round(megabytes / wall, 1), "cpu_ms_per_mb": round(1000 * cpu / megabytes, 2)}


async def measure(directory: Path, rounds: int, megabytes: int) -> dict:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await measure_untimed(directory, rounds, megabytes)


async def measure_untimed(directory: Path, rounds: int, megabytes: int) -> dict:
    command = [sys.executable, __file__, "--serve", str(directory / "other.key")]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    other = json.loads(await child.stdout.readline())
    daemon = await start(directory / "own.key")
    bench = Bench(daemon, other, [os.getpid(), child.pid, daemon._child.pid, other["daemon"]])
    total = megabytes << 20
    try:
        await bench.transport.start(bench.on_frame, bench.on_gone)
        await bench.frame_ping(b"connect")
        await asyncio.sleep(SETTLE_SECONDS)
        result = {
            "frames": {
                "control_back_to_back": await bench.latency(bench.frame_ping, rounds, 0.0),
                "control_paced_50ms": await bench.latency(bench.frame_ping, rounds // 20, 0.05),
                "bulk_256KiB": await bench.throughput(bench.frame_bulk, 256 << 10, total),
                "bulk_4MiB": await bench.throughput(bench.frame_bulk, 4 << 20, total),
            },
            "hivemind_unary": {
                "control_back_to_back": await bench.latency(bench.unary_ping, rounds, 0.0),
                "control_paced_50ms": await bench.latency(bench.unary_ping, rounds // 20, 0.05),
                "bulk_256KiB": await bench.throughput(bench.unary_bulk, 256 << 10, total),
                "bulk_2MiB": await bench.throughput(bench.unary_bulk, UNARY_BYTES_MAX - 1024, total),
            },
        }
        killed_at = time.perf_counter()
        os.kill(child.pid, signal.SIGKILL)
        await bench.next_answer()
        result["gone_after_kill_ms"] = round(1000 * (bench.gone_at - killed_at), 1)
    finally:
        for pid in (other["daemon"], *([] if child.returncode is not None else [child.pid])):
            with suppress(ProcessLookupError):  # an orphaned daemon may have ended by itself
                os.kill(pid, signal.SIGKILL)
        await child.wait()
        await bench.transport.close()
        await daemon.shutdown()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="control round trips")
    parser.add_argument("--megabytes", type=int, default=128, help="bulk bytes per measurement")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(measure(Path(directory), arguments.rounds, arguments.megabytes)), indent=2))


if __name__ == "__main__":
    main()
