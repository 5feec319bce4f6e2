"""Finding out about other branches: what to ask a peer whose heads are not ours, and when to change over (design §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.actions import Action, Send, Tell
from coordinator.chain import Chain
from coordinator.fragment import FragmentMachine
from coordinator.lineage import ancestor, better, continuation
from coordinator.messages import CHAIN_PAGE_MAX, LINEAGE_DEPTH_MAX, AskChainNote, ChainNote
from dht.identity import PeerId

ASK_AGAIN_SECONDS = 1.0
RIVALS_MAX = 64


@dataclass(slots=True)
class Rivals:
    """Answers of peers about their chains, until there are enough to act on."""

    machines: Sequence[FragmentMachine]
    asked: dict[tuple[PeerId, int], float] = field(default_factory=dict)
    forks: dict[PeerId, dict[int, tuple[int, Chain]]] = field(default_factory=dict)
    answered: dict[PeerId, set[int]] = field(default_factory=dict)

    def ask(self, peer: PeerId, fragment: int, now: float) -> list[Action]:
        """Ask a peer what follows the versions of this fragment that we know; not too often."""
        if now < self.asked.get((peer, fragment), -1.0) + ASK_AGAIN_SECONDS:
            return []
        if len(self.asked) >= RIVALS_MAX * len(self.machines):
            self.asked.clear()
        self.asked[peer, fragment] = now
        chain = self.machines[fragment].chain
        oldest = max(chain.first_version, chain.version - LINEAGE_DEPTH_MAX)
        known = (chain.digest_at(version) for version in range(chain.version, oldest - 1, -1))
        return [Send(peer, AskChainNote(fragment=fragment, version=chain.version, known=tuple(d for d in known if d)))]

    def ask_all(self, peer: PeerId, now: float) -> list[Action]:
        """Lineages are compared once for all fragments: ask about every one of them."""
        return [action for machine in self.machines for action in self.ask(peer, machine.index, now)]

    def answer(self, sender: PeerId, note: AskChainNote) -> list[Action]:
        """Certificates after the newest version that the asker and we share."""
        chain = self.machines[note.fragment].chain
        shared = ancestor(chain, note.known)
        if shared is None:
            return []
        return [Send(sender, ChainNote(fragment=note.fragment, certificates=chain.after(shared, CHAIN_PAGE_MAX)))]

    def hear(self, sender: PeerId, note: ChainNote, now: float) -> list[Action]:
        """Follow what simply continues our chain; collect what forks from it."""
        machine = self.machines[note.fragment]
        before = machine.chain.version
        actions: list[Action] = []
        for certificate in note.certificates:
            if certificate.version <= machine.chain.version:
                continue
            if machine.chain.refusal(certificate) is not None:
                break
            actions += machine.advance(certificate, now)
        if machine.chain.version > before:
            page_full = len(note.certificates) == CHAIN_PAGE_MAX
            self.asked.pop((sender, note.fragment), None)
            return actions + (self.ask(sender, note.fragment, now) if page_full else [])
        return actions + self._collect(sender, note, now)

    def _collect(self, sender: PeerId, note: ChainNote, now: float) -> list[Action]:
        chain = self.machines[note.fragment].chain
        forked = continuation(chain, note.certificates)
        forks = self.forks.setdefault(sender, {})
        forks.pop(note.fragment, None)
        first_news = not self.answered.get(sender)
        if forked is not None and forked[0] < chain.version and forked[1].digest != chain.digest:
            forks[note.fragment] = forked
        answered = self.answered.setdefault(sender, set())
        answered.add(note.fragment)
        if not forks:
            self._forget(sender)
            return []
        if first_news:
            return self.ask_all(sender, now) if len(self.machines) > 1 else self._decide(sender, now)
        return self._decide(sender, now)

    def _decide(self, sender: PeerId, now: float) -> list[Action]:
        if len(self.answered[sender]) < len(self.machines):
            return []
        forks = self.forks[sender]
        chains = {machine.index: machine.chain for machine in self.machines}
        wins = better(chains, forks)
        self._forget(sender)
        if not wins:
            return []
        actions: list[Action] = []
        for fragment, (fork, rival) in sorted(forks.items()):
            details: dict[str, object] = {"fork": fork, "ours": chains[fragment].version, "theirs": rival.version}
            actions.append(Tell("lineage_changed", fragment, rival.version, details))
            actions += self.machines[fragment].switch(rival, now)
        return actions

    def _forget(self, peer: PeerId) -> None:
        self.forks.pop(peer, None)
        self.answered.pop(peer, None)
        if len(self.forks) > RIVALS_MAX:
            self.forks.clear()
            self.answered.clear()
