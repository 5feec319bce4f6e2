"""What peers ask each other for outside of rounds: states, the manifest, where to begin, how somebody is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.chain import Chain
from dht.identity import PeerId
from peer.anchors import Anchors
from peer.frames import (
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    ProbeAnswer,
    ProbeAsk,
    StateAsk,
    StatePiece,
    StatusAsk,
    TailAsk,
    Transfer,
)
from peer.introduction import answer_heads, answer_tail
from peer.probe import ProbeDesk
from peer.state_transfer import StateTransfer
from peer.status_answer import PublicStatus, StatusDesk

Post = Callable[[PeerId, Transfer, bytes | memoryview], None]
HearProbe = Callable[[PeerId, ProbeAnswer], None]


class Transfers:
    """Both ends of state transfer, and the answering end of the rest."""

    def __init__(self, anchors: Anchors, manifest: bytes, chains: Callable[[], Sequence[Chain]], post: Post) -> None:
        self.states = StateTransfer(anchors, post)
        self._manifest = manifest
        self._chains = chains
        self._post = post
        self._desk: StatusDesk | None = None
        self._probes: ProbeDesk | None = None
        self._hear_probe: list[HearProbe] = []

    def answer_probes(self, desk: ProbeDesk) -> None:
        """From now on, tell whoever asks how it looks from here."""
        self._probes = desk

    def hear_probes(self, hear: HearProbe) -> None:
        """From now on, tell this, too, what others find who were asked how we look from there."""
        self._hear_probe.append(hear)

    def _tell_of_probe(self, sender: PeerId, answer: ProbeAnswer) -> None:
        for hear in self._hear_probe:
            hear(sender, answer)

    async def close(self) -> None:
        """Give nothing more and call nobody."""
        self.states.close()
        if self._probes is not None:
            await self._probes.close()

    def tell_status(self, status: Callable[[], PublicStatus]) -> None:
        """From now on, tell whoever asks how we are doing."""
        self._desk = StatusDesk(status)

    def handle(self, sender: PeerId, message: Transfer, payload: bytes, now: float) -> None:
        """Answer a question, or take an answer; answers that nobody here has asked for are dropped."""
        if isinstance(message, StateAsk):
            self.states.serve(sender, message)
        elif isinstance(message, StatePiece):
            self.states.receive(sender, message, payload)
        elif isinstance(message, ManifestAsk):
            self._post(sender, ManifestAnswer(manifest=self._manifest), b"")
        elif isinstance(message, ProbeAsk) and self._probes is not None:
            self._probes.ask(sender, message, now)
        elif isinstance(message, ProbeAnswer):
            self._tell_of_probe(sender, message)
        elif isinstance(message, HeadsAsk):
            self._post(sender, answer_heads(self._chains(), message), b"")
        elif isinstance(message, TailAsk):
            self._post(sender, answer_tail(self._chains(), message), b"")
        elif isinstance(message, StatusAsk) and self._desk is not None:
            answer = self._desk.answer(sender, now)
            if answer is not None:
                self._post(sender, answer, b"")
