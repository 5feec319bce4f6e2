"""Requests between peers outside of rounds: states, the manifest, where to begin, reachability and status."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.chain.chain import Chain
from coordinator.core.answer_budget import AnswerBudget
from dht.identity import PeerId
from peer.net.frames import (
    HeadsAnswer,
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    ProbeAnswer,
    ProbeAsk,
    StateAsk,
    StatePiece,
    StatusAsk,
    TailAnswer,
    TailAsk,
    Transfer,
)
from peer.net.probe import ProbeResponder
from peer.rounds.public_status import PublicStatus, StatusResponder
from peer.storage.anchors import Anchors
from peer.sync.introduction import answer_heads, answer_tail
from peer.sync.state_client import StateClient
from peer.sync.state_server import StateServer

Post = Callable[[PeerId, Transfer, bytes | memoryview], None]
HearProbe = Callable[[PeerId, ProbeAnswer], None]


class PeerRequests:
    """State transfer in both directions (`states` asks, `server` answers), and the answers to all other requests."""

    def __init__(
        self,
        anchors: Anchors,
        manifest: bytes,
        chains: Callable[[], Sequence[Chain]],
        post: Post,
        answering: AnswerBudget | None = None,
    ) -> None:
        self.states = StateClient(anchors, post)
        self.server = StateServer(anchors, post)
        self._manifest = manifest
        self._chains = chains
        self._post = post
        self._answering = answering or AnswerBudget()
        self._status_responder: StatusResponder | None = None
        self._probes: ProbeResponder | None = None
        self._hear_probe: list[HearProbe] = []
        self.may_have_states: Callable[[PeerId], bool] = lambda _: True

    def answer_probes(self, responder: ProbeResponder) -> None:
        """Answer probes with this responder from now on."""
        self._probes = responder

    def hear_probes(self, hear: HearProbe) -> None:
        """Also pass the answers to our own probes to this callback, from now on."""
        self._hear_probe.append(hear)

    def _tell_of_probe(self, sender: PeerId, answer: ProbeAnswer) -> None:
        for hear in self._hear_probe:
            hear(sender, answer)

    def gone(self, peer: PeerId) -> None:
        """Handle that our streams to this peer broke."""
        self.server.gone(peer)
        self.states.gone(peer)

    async def close(self) -> None:
        """Stop serving and fetching states, and stop answering probes."""
        self.states.close()
        self.server.close()
        if self._probes is not None:
            await self._probes.close()

    def tell_status(self, status: Callable[[], PublicStatus]) -> None:
        """Answer peers that ask for our status from now on."""
        self._status_responder = StatusResponder(status)

    def handle(self, sender: PeerId, message: Transfer, payload: bytes, now: float) -> None:
        """Answer a request, or take an answer; answers to nothing that we asked for are dropped."""
        if self._answering.strangers.is_shut_out(sender):
            return
        if isinstance(message, StateAsk):
            if self.may_have_states(sender):
                self.server.serve(sender, message)
            else:
                piece = StatePiece(fragment=message.fragment, certificate=message.certificate, piece=message.piece)
                self._post(sender, piece, b"")
        elif isinstance(message, StatePiece):
            self.states.receive(sender, message, payload)
        elif isinstance(message, ManifestAsk | HeadsAsk | TailAsk):
            self._introduce(sender, message, now)
        elif isinstance(message, ProbeAsk) and self._probes is not None:
            self._probes.ask(sender, message, now)
        elif isinstance(message, ProbeAnswer):
            self._tell_of_probe(sender, message)
        elif isinstance(message, StatusAsk) and self._status_responder is not None:
            answer = self._status_responder.answer(sender, now)
            if answer is not None:
                self._post(sender, answer, b"")

    def _introduce(self, sender: PeerId, message: ManifestAsk | HeadsAsk | TailAsk, now: float) -> None:
        """Answer a newcomer's request, unless it has exceeded its budget."""
        if not self._answering.admits(sender, now):
            return
        answer: ManifestAnswer | HeadsAnswer | TailAnswer
        if isinstance(message, ManifestAsk):
            answer = ManifestAnswer(manifest=self._manifest)
        elif isinstance(message, HeadsAsk):
            answer = answer_heads(self._chains(), message)
        else:
            answer = answer_tail(self._chains(), message)
        self._answering.gave(sender, len(answer.to_wire()), now)
        self._post(sender, answer, b"")
