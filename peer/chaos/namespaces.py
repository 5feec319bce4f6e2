"""Peers in network namespaces of their own, on a switch that can be divided: partitions, bad links (needs root).

Bridges and the far ends of all cables lie in one more namespace. So the machine's own network does not change, its
firewall does not interfere, and removing the namespaces removes everything. Their names contain the process id of
their creator: the next run removes those of a killed one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dht.errors import LocalError, UsageError
from peer.chaos.executor import NETWORK_KINDS, LinkFault, Loopback
from peer.chaos.plan import Event
from peer.chaos.user_link import UserLink
from peer.swarm.processes import PeerProcess

PREFIX = "muster-"
PACKAGES = {"ip": "iproute2", "tc": "iproute2"}  # Debian's
COMMAND_SECONDS_MAX = 10.0
NETWORK = "10.77.0.0/16"  # of the switch, which is connected to nothing else
TRIALS = frozenset({"--attack", "--skew-file"})
UPLINK = "uplink"  # a peer's end of its cable
QUEUE_SECONDS = 0.2  # how long a packet may wait for a narrow line
BURST_BYTES_MIN = 16_384  # one large segment of the sender's kernel
BURST_SECONDS = 0.01
PACKETS_KEPT = 10_000  # on a slow line, before netem drops
_OWNED = re.compile(PREFIX + r"(\d+)-\S+")


class Namespaces(Loopback):
    """Processes as on loopback, but to the network every peer is a machine of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._ports: dict[str, str] = {}  # the switch's end of each peer's cable
        self._addresses: dict[str, str] = {}
        self._bridges = 0
        self._user_links: dict[str, UserLink] = {}
        self._disciplines: set[str] = set()  # those this kernel has

    def open(self, names: Sequence[str]) -> None:
        """Create a namespace for each name, all on one switch."""
        if os.geteuid() != 0:
            raise UsageError("network namespaces are for root; use sudo, or leave --netns out")
        for command, package in PACKAGES.items():
            if shutil.which(command) is None:
                raise UsageError(f"the command {command} is missing; install it with: apt install {package}")
        sweep()
        _run("ip", "netns", "add", self._space("switch"))
        self._add_bridge()
        for number, name in enumerate(names):
            self._plug_in(number, name)
        self._disciplines = {kind for kind, probe in _PROBES.items() if self._knows(probe)}

    def close(self) -> None:
        super().close()
        for link in self._user_links.values():
            link.end()
        self._user_links.clear()
        _remove(f"{PREFIX}{os.getpid()}-{name}" for name in (*self._ports, "switch"))
        self._ports.clear()

    def refusal(self, event: Event) -> str | None:
        return None if event.do in NETWORK_KINDS else super().refusal(event)

    def start(self, name: str, data_directory: Path, arguments: Sequence[str], temporary: bool) -> PeerProcess:
        placed = (*arguments, "--listen", self.address(name))
        if not TRIALS.isdisjoint(arguments):
            placed = (*placed, "--trial-network", NETWORK)
        return PeerProcess.start(name, data_directory, placed, temporary, self.inside(name))

    def inside(self, name: str, *command: str) -> list[str]:
        """Return the command that runs `command` inside this machine."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def address(self, name: str) -> str:
        """Return the address where others reach this machine."""
        return self._addresses[name]

    def partition(self, sides: Sequence[Collection[str]]) -> None:
        while self._bridges < len(sides):
            self._add_bridge()
        for name, port in self._ports.items():
            side = next((index for index, side in enumerate(sides) if name in side), 0)
            plugged = self._tap(name) if name in self._user_links else port
            self._switch("ip", "link", "set", plugged, "master", f"side{side}")

    def shape(self, name: str, link: LinkFault) -> None:
        """Shape the link in the kernel if that has the parts, else with a process that passes on every frame."""
        words = discipline(link)
        in_kernel = not words or words[0] in self._disciplines
        if in_kernel and name in self._user_links:
            self._user_links.pop(name).end()
        for tc, interface in (
            (("tc", "-n", self._space(name)), UPLINK),
            (("tc", "-n", self._space("switch")), self._ports[name]),
        ):
            with suppress(LocalError):  # there may be none yet
                _run(*tc, "qdisc", "del", "dev", interface, "root")
            if words and in_kernel:
                _run(*tc, "qdisc", "add", "dev", interface, "root", *words)
        if not in_kernel:
            self._shape_here(name, link)

    def _shape_here(self, name: str, link: LinkFault) -> None:
        process = self._user_links.pop(name, None)
        if process is None:
            link_here = self.inside("switch", sys.executable, "-m", "peer.chaos.link")
            process = UserLink.start((*link_here, self._ports[name], self._tap(name)))
        process.shape(link)
        self._user_links[name] = process

    def _tap(self, name: str) -> str:
        return f"bad-{self._ports[name]}"

    def _space(self, name: str) -> str:
        return f"{PREFIX}{os.getpid()}-{name}"

    def _switch(self, command: str, *arguments: str) -> None:
        _run(command, "-n", self._space("switch"), *arguments)

    def _add_bridge(self) -> None:
        bridge = f"side{self._bridges}"
        self._switch("ip", "link", "add", bridge, "type", "bridge")
        self._switch("ip", "link", "set", bridge, "up")
        self._bridges += 1

    def _plug_in(self, number: int, name: str) -> None:
        space, port, address = self._space(name), f"port{number}", f"10.77.{number // 250}.{number % 250 + 1}"
        self._ports[name], self._addresses[name] = port, address
        _run("ip", "netns", "add", space)
        self._switch("ip", "link", "add", port, "type", "veth", "peer", "name", UPLINK, "netns", space)
        self._switch("ip", "link", "set", port, "master", "side0", "up")
        _run("ip", "-n", space, "address", "add", f"{address}/16", "dev", UPLINK)
        for interface in ("lo", UPLINK):
            _run("ip", "-n", space, "link", "set", interface, "up")

    def _knows(self, link: LinkFault) -> bool:
        """Whether this kernel has the discipline for such a link, tried where it does no harm."""
        try:
            self._switch("tc", "qdisc", "add", "dev", "lo", "root", *discipline(link))
            self._switch("tc", "qdisc", "del", "dev", "lo", "root")
        except LocalError:
            return False
        return True


_PROBES = {"netem": LinkFault(delay_seconds=0.001), "tbf": LinkFault(bits_per_second=1e6)}


def discipline(link: LinkFault) -> tuple[str, ...]:
    """Return the arguments of tc(8) that make an interface send as badly as this; empty for a good link."""
    words: list[str] = []
    if link.delay_seconds:
        words += ["delay", f"{link.delay_seconds * 1e6:.0f}us"]
    if link.loss_share:
        words += ["loss", f"{link.loss_share:.4%}"]
    rate = f"{link.bits_per_second:.0f}bit"
    if words:
        return ("netem", "limit", str(PACKETS_KEPT), *words, *(("rate", rate) if link.bits_per_second else ()))
    if not link.bits_per_second:
        return ()
    burst = max(BURST_BYTES_MIN, int(link.bits_per_second / 8 * BURST_SECONDS))
    return ("tbf", "rate", rate, "burst", str(burst), "latency", f"{QUEUE_SECONDS * 1e3:.0f}ms")


def sweep() -> None:
    """Remove the namespaces of runs whose process is gone, and the processes still in them."""
    names = (line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line)
    owned = ((name, match) for name in names if (match := _OWNED.fullmatch(name)))
    _remove(name for name, match in owned if not Path(f"/proc/{match[1]}").exists())


def _remove(spaces: Iterable[str]) -> None:
    for space in spaces:
        with suppress(LocalError):  # it may never have been made
            for pid in _run("ip", "netns", "pids", space).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _run("ip", "netns", "delete", space)


def _run(*words: str) -> str:
    """Return the output of a command; raises LocalError with its message."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=True)
    except subprocess.CalledProcessError as error:
        raise LocalError(f"{' '.join(words)}: {error.stderr.strip() or error.stdout.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalError(f"{' '.join(words)}: {type(error).__name__}") from None
    return done.stdout
