"""`muster doctor`: measures this machine and has a run's peers measure it. `peer.cli.diagnosis` judges the results."""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views.quantity import counted
from dht.addresses import tcp_endpoint
from dht.daemon.ports import check_ports_free
from dht.errors import MusterError, PeerError
from dht.identity import PeerId
from dht.invite import Invite
from peer.cli import diagnosis
from peer.cli.consent import this_machine
from peer.cli.diagnosis import DiagnosisLine, Probed
from peer.data.windows import load_tokens
from peer.machine.clock import unix_seconds
from peer.machine.sensors import CommandRunner, MachineSensors
from peer.machine.version import DISTRIBUTION
from peer.net.frames import ProbeAnswer, ProbeAsk, decode_header, encode_header
from peer.net.network import Network
from peer.node.clock_check import ahead_of
from peer.node.options import NodeOptions
from peer.numerics.golden import self_check
from peer.sync.guest import as_guest

PACKAGES = (DISTRIBUTION, "torch", "hivemind", "transformers", "bitsandbytes", "numpy")
ANSWER_SECONDS_MAX = 12.0
UPLOAD_FRAMES = 8
UPLOAD_FRAME_BYTES = 256 << 10


def check_machine(options: NodeOptions, config: RunConfig) -> list[DiagnosisLine]:
    """Check everything that needs no other peer."""
    machine = this_machine(options)
    return [
        _versions(),
        _torch(),
        _arithmetic(),
        diagnosis.memory(config, machine, options.limits),
        *diagnosis.gpu_memory(config, machine),
        *diagnosis.steps(config, machine),
        diagnosis.disk(config, machine, options.limits),
        _gpu(),
        _port(options),
        *diagnosis.pause_lines(options.limits, MachineSensors(options.limits, options.data_directory).read()),
    ]


def check_alone(options: NodeOptions, config: RunConfig) -> list[DiagnosisLine]:
    """Check this machine by itself, with an example run."""
    told = f"no invite given: checked against the example run {config.name}"
    advice = "have a run's peers check this machine for that run: muster doctor INVITE"
    return [DiagnosisLine("note", "run", told, advice), *check_machine(options, config)]


def check_run(options: NodeOptions, invite: Invite, called: Callable[[], None]) -> list[DiagnosisLine]:
    """Check this machine for the run of this invite, with what only the run's peers can measure.

    `called` returns once a peer has answered a first call, and raises MusterError if none does.
    """
    names = {address.host for address in invite.addresses if not _is_number(address.host)}
    found = [_name(name) for name in sorted(names)]
    try:
        called()
        manifest, probed, port = asyncio.run(Probe(options, invite).run())
    except MusterError as error:
        return [*found, _network(error), *check_machine(options, RunConfig())]
    config, machine = manifest.config, this_machine(options)
    found += [
        DiagnosisLine("ok", "network", f"run {config.name}; {counted(probed.peers, 'peer')} of its invite answered"),
        diagnosis.clock(probed),
        diagnosis.reachability(probed, options.listen_host, port),
        diagnosis.upload(config, machine, probed, options.limits),
    ]
    if config.data.source != "stdlib" or config.data.tokenizer_sha256:
        return found + check_machine(options, config)
    try:
        found.append(diagnosis.data(manifest, load_tokens(config.data).digest))
    except MusterError as error:
        found.append(DiagnosisLine("bad", "data", str(error)))
    return found + check_machine(options, config)


class Probe:
    """One visit to the peers of an invite, under a throwaway key."""

    def __init__(self, options: NodeOptions, invite: Invite) -> None:
        self._options = options
        self._invite = invite
        self._answers: dict[tuple[PeerId, int], tuple[ProbeAnswer, float]] = {}
        self._news = asyncio.Event()

    async def run(self) -> tuple[Manifest, Probed, int]:
        """Return the manifest, what the peers say, and the port that they called; raises NetworkError."""
        async with as_guest(self._invite, self._options.identity_path, _endpoint(self._options)) as (network, manifest):
            await network.start(self._on_frame, lambda _: None)
            port = (await network.dht.daemon.visible_addresses())[0].port
            return manifest, await self._probe(network, port), port

    async def _probe(self, network: Network, port: int) -> Probed:
        loop = asyncio.get_running_loop()
        peers = sorted({address.peer_id for address in self._invite.addresses})
        asked_at, asked_unix = loop.time(), unix_seconds()
        for peer in peers:
            network.post(peer, encode_header(ProbeAsk(ticket=0)))
            network.post(peer, encode_header(ProbeAsk(ticket=1, port=port)))
        await self._wait_for([(peer, ticket) for peer in peers for ticket in (0, 1)])
        clocks, hosts, reachable = [], [], []
        for (_, ticket), (answer, at) in self._answers.items():
            if ticket == 0:
                clocks.append(ahead_of(answer, asked_unix, asked_unix + at - asked_at))
            hosts += [answer.seen_host] if answer.seen_host else []
            reachable += [] if answer.reachable is None else [answer.reachable]
        answering = sorted({peer for peer, _ in self._answers})
        probed = Probed(len(answering), tuple(clocks), tuple(hosts), tuple(reachable))
        rate = await self._upload(network, answering[0]) if answering else None
        return replace(probed, upload_bytes_per_second=rate)

    async def _upload(self, network: Network, peer: PeerId) -> float | None:
        """Measure the bytes per second that this peer receives, from the first frame's answer to the last one's."""
        tickets = range(2, 2 + UPLOAD_FRAMES)
        for ticket in tickets:
            network.post(peer, encode_header(ProbeAsk(ticket=ticket)), bytes(UPLOAD_FRAME_BYTES))
        await self._wait_for([(peer, ticket) for ticket in tickets])
        times = sorted(at for (_, ticket), (_, at) in self._answers.items() if ticket in tickets)
        return (len(times) - 1) * UPLOAD_FRAME_BYTES / (times[-1] - times[0]) if len(times) > 1 else None

    async def _wait_for(self, expected: Sequence[tuple[PeerId, int]]) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while not all(one in self._answers for one in expected):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    def _on_frame(self, sender: PeerId, header: bytes, _: bytes) -> None:
        try:
            message = decode_header(header)
        except PeerError:
            return
        if isinstance(message, ProbeAnswer):
            self._answers[sender, message.ticket] = (message, asyncio.get_running_loop().time())
            self._news.set()


def _versions() -> DiagnosisLine:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    missing = [text for text in found if text.endswith("not installed") and not text.startswith(DISTRIBUTION)]
    text = f"Python {platform.python_version()}, {', '.join(found)}"
    return DiagnosisLine("bad" if missing else "ok", "versions", text, "make install" if missing else "")


def _network(error: MusterError) -> DiagnosisLine:
    """Say why no peer of the run could be asked, and what to do about it."""
    text, _, advice = str(error).partition("; ")
    return DiagnosisLine("bad", "network", text, advice or "ask for a fresh invite")


def _arithmetic() -> DiagnosisLine:
    difference = self_check()
    if difference is None:
        return DiagnosisLine("ok", "arithmetic", "the same bits as everywhere")
    return DiagnosisLine("bad", "arithmetic", difference, "install the versions of constraints.txt")


def _torch() -> DiagnosisLine:
    release, cuda, hip = torch.__version__, torch.version.cuda, torch.version.hip
    device = f"{torch.cuda.get_device_name(0)} (cuda:0)" if torch.cuda.is_available() else None
    built_for = f"CUDA {cuda}" if cuda is not None else None if hip is None else f"ROCm {hip}"
    return diagnosis.torch_build(str(release), built_for, device, CommandRunner()(["nvidia-smi", "-L"]) is not None)


def _gpu() -> DiagnosisLine:
    if not torch.cuda.is_available():
        advice = "with an NVIDIA GPU: install its driver, and the build of torch for CUDA"
        return DiagnosisLine("note", "GPU", "none that torch can use; it trains on the processor", advice)
    gpu = torch.cuda.get_device_properties(0)
    bfloat = "with" if torch.cuda.is_bf16_supported(False) else "without"
    return DiagnosisLine(
        "ok", "GPU", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, {bfloat} bf16"
    )


def _port(options: NodeOptions) -> DiagnosisLine:
    try:
        check_ports_free((_endpoint(options),))
    except MusterError as error:
        return DiagnosisLine("bad", "port", str(error), "stop the peer here first, or choose another --port")
    return DiagnosisLine("ok", "port", f"{options.port or 'any free one'} on {options.listen_host}")


def _endpoint(options: NodeOptions) -> str:
    return tcp_endpoint(options.listen_host, options.port or 0)


def _name(name: str) -> DiagnosisLine:
    try:
        places = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as error:
        return DiagnosisLine(
            "bad", "DNS", f"{name} of the invite is not known here: {error.strerror}", "check the name server"
        )
    return DiagnosisLine("ok", "DNS", f"{name} is {', '.join(sorted(places))}")


def _is_number(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()
