"""Discovery of other branches: questions to peers with other heads, and the change to a winning branch (design §8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from coordinator.chain.chain import Chain
from coordinator.chain.lineage import CHAIN_PAGE_MAX, ancestor, continuation, extended_chain, known_digests
from coordinator.core.actions import Action, Send, Tell
from coordinator.engine.branch_rules import changes, followed
from coordinator.engine.fork_probe import Fork, ForkProbe, follows, is_heard_on
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.gossip import is_crowded, spread
from coordinator.wire.messages import AskChainNote, CertificateNote, ChainNote
from dht.identity import PeerId

ASK_AGAIN_SECONDS = 1.0
ASKED_AT_ONCE = 8  # peers that claim to be ahead, per fragment; strangers do not use up known peers' turns
PROBES_MAX = 512  # peers whose questions and answers we remember
SILENT_KNOWN_SECONDS, SILENT_STRANGER_SECONDS = 5.0, 60.0  # until we ask a peer that did not answer again
RIVALS_MAX = 64  # peers among these whose branches we remember


@dataclass(slots=True)
class ForkChoice:
    """Probes of other peers' chains, until they are complete enough to act on; the peer asked most recently is last."""

    machines: Sequence[FragmentMachine]
    probes: dict[PeerId, ForkProbe] = field(default_factory=dict)

    def ask(self, peer: PeerId, fragment: int, now: float) -> list[Action]:
        """Ask a peer for the versions of this fragment after ours, but not too often."""
        probe, chain = self.probes.get(peer, ForkProbe()), self.machines[fragment].chain
        begun = probe.fork_of(chain)
        pause_seconds = ASK_AGAIN_SECONDS if begun is None else SILENT_KNOWN_SECONDS
        if now < probe.asked_at(fragment) + pause_seconds:
            return []
        return self._ask_after(peer, fragment, known_digests(chain) if begun is None else (begun[1].digest,), now)

    def _ask_after(self, peer: PeerId, fragment: int, known: tuple[bytes, ...], now: float) -> list[Action]:
        probe = self.probes.pop(peer, None) or ForkProbe()
        while len(self.probes) >= PROBES_MAX:
            del self.probes[next(iter(self.probes))]
        self.probes[peer] = probe
        probe.awaited.add(fragment)
        probe.asked[fragment] = now
        version = self.machines[fragment].chain.version
        return [Send(peer, AskChainNote(fragment=fragment, version=version, known=known))]

    def ask_within_limit(self, peer: PeerId, fragment: int, now: float) -> list[Action]:
        """Ask a peer whose presence says that it is ahead, if we are not asking enough others already.

        A latecomer to a large swarm finds all others ahead, and needs only one. Presence is cheap, so strangers do not
        use up the turns of active peers. Nor do peers that do not answer use up the turns of others.
        """
        probe = self.probes.get(peer, ForkProbe())
        if probe.answers.get(fragment) is not None:  # asking again would use up its answers to us
            return self._ask_missing(peer, now)
        known = self.machines[fragment].chain.known()
        silent_seconds = SILENT_KNOWN_SECONDS if peer in known else SILENT_STRANGER_SECONDS
        if fragment in probe.awaited and now < probe.asked_at(fragment) + silent_seconds:
            return []
        recent = (one for one, its in self.probes.items() if now < its.asked_at(fragment) + ASK_AGAIN_SECONDS)
        before = sum(one in known or peer not in known for one in recent)
        return [] if before >= ASKED_AT_ONCE else self.ask(peer, fragment, now)

    def answer(self, sender: PeerId, note: AskChainNote, now: float) -> list[Action]:
        """Send the certificates after the newest version that the asker and we share; none if it lies too deep.

        An asker that names a version which we lack is ahead of us, so we ask it as after seeing its presence.
        """
        chain, answering = self.machines[note.fragment].chain, self.machines[note.fragment].core.answering
        news = self.ask_within_limit(sender, note.fragment, now) if note.version > chain.version else []
        if not answering.admits(sender, now):
            return news
        shared = ancestor(chain, note.known)
        if shared is None:
            answer = ChainNote(fragment=note.fragment, certificates=(), oldest=chain.first_version)
        else:
            answer = ChainNote(fragment=note.fragment, certificates=chain.after(shared, CHAIN_PAGE_MAX))
        answering.gave(sender, answer.encoded_bytes, now)
        return [*news, Send(sender, answer)]

    def help_catch_up(self, peer: PeerId, machine: FragmentMachine, version: int, now: float) -> list[Action]:
        """Send a peer that speaks about an old version the certificate after it; in a crowd only a question.

        In a crowd its statement reaches a whole group, and each member would send it 13 KB. From the question it learns
        of the version, and asks back if it lacks it.
        """
        if is_crowded(machine.core, now):
            return self.ask(peer, machine.index, now)
        answering = machine.core.answering
        if not answering.admits(peer, now):
            return []
        notes = [CertificateNote(certificate=newer) for newer in machine.chain.after(version, 1)]
        answering.gave(peer, sum(note.encoded_bytes for note in notes), now)
        return [Send(peer, note) for note in notes]

    def hear(self, sender: PeerId, note: ChainNote, now: float) -> list[Action]:
        """Follow certificates that continue our chain, collect ones that fork from it; ignore unasked ones."""
        probe = self.probes.get(sender)
        if probe is None or note.fragment not in probe.awaited:
            return []
        machine = self.machines[note.fragment]
        begun = probe.fork_of(machine.chain)
        if not follows(note.certificates, machine.chain, begun):
            return []  # the answer to an earlier question, asked twice
        probe.awaited.discard(note.fragment)
        actions = self._note_ahead(probe, sender, machine, note.oldest)
        more = len(note.certificates) == CHAIN_PAGE_MAX
        if begun is None:
            found = continuation(machine.chain, note.certificates)
            if found is not None and found[0] == machine.chain.version:
                return actions + self._follow(sender, machine, found[1], now, more)
        else:
            del probe.begun[note.fragment]
            if note.oldest is not None:  # the peer has changed to another branch meanwhile
                probe.forget()
                return actions
            longer = extended_chain(begun[1], note.certificates)
            found = None if longer is None else (begun[0], longer)
        return actions + self._hear_out(sender, note.fragment, found, more, now)

    def _hear_out(self, sender: PeerId, fragment: int, found: Fork | None, more: bool, now: float) -> list[Action]:
        """Ask for the rest of a branch before we decide: only its end shows which peers signed last."""
        if found is None or not more or not is_heard_on(sender, *found):
            return self._collect(sender, fragment, found, now)
        self.probes[sender].begun[fragment] = found
        self._bound()
        return self._ask_after(sender, fragment, (found[1].digest,), now)

    def _bound(self) -> None:
        """Forget the branches of the peers that we asked longest ago, if there are too many."""
        holding = [probe for probe in self.probes.values() if probe.holds_chains]
        for probe in holding[:-RIVALS_MAX]:
            probe.forget()

    def _follow(self, sender: PeerId, machine: FragmentMachine, rival: Chain, now: float, more: bool) -> list[Action]:
        """Follow the versions after ours that the rules allow, unless nobody serves the last one."""
        for probe in self.probes.values():
            probe.ahead = False
        actions: list[Action] = []
        patient_since, again = machine.tempo.certified_at, False
        taken = followed(self.machines, machine, rival, now)
        if taken.version == machine.chain.version or machine.state_sync.is_unserved(taken.digest, now):
            return self._collect(sender, machine.index, None, now)
        for certificate in taken.after(machine.chain.version, taken.version - machine.chain.version):
            again = again or certificate.digest in machine.state_sync.unserved
            actions += machine.advance(certificate, now)
        self.probes[sender].asked.pop(machine.index, None)
        more = more and machine.chain.version == rival.version
        if more or again:  # a version that nobody served before does not delay minor versions again
            machine.tempo.certified_at = patient_since
        if more:
            machine.fetch_later(now)
            return actions + self.ask(sender, machine.index, now)
        told = spread(machine.core, machine.chain, machine.chain.certificates[-1], now)
        return actions + told + machine.fetch_if_behind(now)

    def _note_ahead(
        self, probe: ForkProbe, sender: PeerId, machine: FragmentMachine, oldest: int | None
    ) -> list[Action]:
        """Tell people if this peer no longer keeps the versions that we need. It may lie, so we only tell."""
        too_far = oldest is not None and oldest > machine.chain.version
        if not too_far or probe.ahead:
            return []
        probe.ahead = True
        details: dict[str, object] = {"peer": sender, "oldest": oldest}
        return [Tell("out_of_reach", machine.index, machine.chain.version, details)]

    @property
    def ahead(self) -> Set[PeerId]:
        """Peers that no longer keep the certificates after the versions that we know, by their word."""
        return {peer for peer, probe in self.probes.items() if probe.ahead}

    def out_of_reach(self, live: Set[PeerId]) -> bool:
        """Whether all live peers say they are too far ahead for us to follow without the heads of a fresh invite."""
        return bool(live) and live <= self.ahead

    def _collect(self, sender: PeerId, fragment: int, found: Fork | None, now: float) -> list[Action]:
        """Keep an answer about one fragment; a fork in it makes us ask about the others, to compare them together.

        When a peer shows its branches a second time, its first answers may be about fragments without a fork.
        """
        probe = self.probes[sender]
        probe.answers[fragment] = found
        if not any(probe.answers.values()) and probe.shown is None:
            probe.answers.clear()
            return []
        self._bound()
        if len(probe.answers) < len(self.machines):
            return self._ask_missing(sender, now)
        answers, probe.answers = probe.answers, {}
        return self._look(sender, answers, now)

    def _ask_missing(self, peer: PeerId, now: float) -> list[Action]:
        missing = [machine.index for machine in self.machines if machine.index not in self.probes[peer].answers]
        return [action for index in missing for action in self.ask(peer, index, now)]

    def _look(self, sender: PeerId, answers: Mapping[int, Fork | None], now: float) -> list[Action]:
        """Decide only if a peer shows the same branches twice: it may have changed to ours between two answers.

        Then some of its branches belong to a lineage that nobody holds any more, and the winner would be a mixture of
        two models.
        """
        probe = self.probes[sender]
        branches = {index: None if fork is None else fork[1].digest_at(fork[0] + 1) for index, fork in answers.items()}
        before, probe.shown = probe.shown, None
        if before is not None:
            return self._change_over(sender, answers, now) if before == branches else []
        probe.shown = branches
        probe.asked.clear()
        return [action for machine in self.machines for action in self.ask(sender, machine.index, now)]

    def _change_over(self, sender: PeerId, answers: Mapping[int, Fork | None], now: float) -> list[Action]:
        actions: list[Action] = []
        for change in changes(self.machines, answers, now):
            machine, theirs = self.machines[change.fragment], change.chain.version
            details: dict[str, object] = {"fork": change.fork, "ours": machine.chain.version, "theirs": theirs}
            actions.append(Tell("lineage_changed", machine.index, theirs, details))
            actions += machine.switch(change.chain, change.fork, now) + machine.fetch_if_behind(now)
            self.probes[sender].asked.pop(machine.index, None)
            actions += self.ask(sender, machine.index, now)
        return actions
