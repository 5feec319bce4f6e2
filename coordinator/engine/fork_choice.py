"""Finding out about other branches: what to ask a peer with other heads, and when to change over (design §8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from coordinator.chain.chain import Chain
from coordinator.chain.lineage import (
    CHAIN_PAGE_MAX,
    Branch,
    ancestor,
    branch_after,
    continuation,
    known_digests,
    majority_signed,
    prolonged,
    without_tail,
    won,
)
from coordinator.core.actions import Action, Send, Tell
from coordinator.engine.fork_buffer import Fork, ForkBuffer, follows, is_heard_on, still_forks
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.version_round import bound_until
from coordinator.trust.bans import Bans
from coordinator.wire.messages import AskChainNote, CertificateNote, ChainNote
from dht.identity import PeerId

ASK_AGAIN_SECONDS = 1.0
ASKED_AT_ONCE = 8  # about one fragment, because they say to be ahead; strangers take nobody known its turn
ASKED_MAX = 512  # about one fragment, that are remembered
SILENT_KNOWN_SECONDS, SILENT_STRANGER_SECONDS = 5.0, 60.0  # until whoever did not answer has its turn again
RIVALS_MAX = 64


@dataclass(slots=True)
class ForkChoice:
    """What we have asked peers about their chains, and their answers, until these are complete enough to act on."""

    machines: Sequence[FragmentMachine]
    bans: Bans
    asked: dict[tuple[PeerId, int], float] = field(default_factory=dict)
    awaited: set[tuple[PeerId, int]] = field(default_factory=set)
    answers: dict[PeerId, dict[int, Fork | None]] = field(default_factory=dict)
    looks: dict[PeerId, dict[int, bytes | None]] = field(default_factory=dict)  # branches, by their first versions
    heard: ForkBuffer = field(default_factory=ForkBuffer)
    ahead: set[PeerId] = field(default_factory=set)  # who no longer keeps what follows the versions that we know

    def ask(self, peer: PeerId, fragment: int, now: float) -> list[Action]:
        """Ask a peer what follows the versions of this fragment that we know; not too often."""
        begun = self.heard.begun(peer, self.machines[fragment].chain)
        pause_seconds = ASK_AGAIN_SECONDS if begun is None else SILENT_KNOWN_SECONDS
        if now < self.asked.get((peer, fragment), -inf) + pause_seconds:
            return []
        self.asked.pop((peer, fragment), None)  # so that the oldest question is the first
        while len(self.asked) >= ASKED_MAX * len(self.machines):
            oldest = next(iter(self.asked))
            del self.asked[oldest]
            self.awaited.discard(oldest)
            self.heard.forget(*oldest)
        known = known_digests(self.machines[fragment].chain) if begun is None else (begun[1].digest,)
        return self._ask_after(peer, fragment, known, now)

    def _ask_after(self, peer: PeerId, fragment: int, known: tuple[bytes, ...], now: float) -> list[Action]:
        self.awaited.add((peer, fragment))
        self.asked.pop((peer, fragment), None)
        self.asked[peer, fragment] = now
        version = self.machines[fragment].chain.version
        return [Send(peer, AskChainNote(fragment=fragment, version=version, known=known))]

    def ask_few(self, peer: PeerId, fragment: int, now: float) -> list[Action]:
        """`ask`, because of its presence: whoever comes late to a large swarm finds all others ahead, and needs one.

        Presence is cheap, so strangers take no turn of those who were active, and who does not answer none of the rest.
        """
        answers = self.answers.get(peer, {})
        if answers.get(fragment) is not None:  # what it has answered already takes nothing of what it gives us a minute
            return self._ask_missing(peer, now)
        known = self.machines[fragment].chain.known()
        silent_seconds = SILENT_KNOWN_SECONDS if peer in known else SILENT_STRANGER_SECONDS
        if (peer, fragment) in self.awaited and now < self.asked.get((peer, fragment), -inf) + silent_seconds:
            return []
        recent = takewhile(lambda one: now < one[1] + ASK_AGAIN_SECONDS, reversed(self.asked.items()))
        before = sum(index == fragment and (one in known or peer not in known) for (one, index), _ in recent)
        return [] if before >= ASKED_AT_ONCE else self.ask(peer, fragment, now)

    def answer(self, sender: PeerId, note: AskChainNote, now: float) -> list[Action]:
        """Certificates after the newest version that the asker and we share; none if that lies too deep."""
        chain, answering = self.machines[note.fragment].chain, self.machines[note.fragment].core.answering
        if not answering.admits(sender, now):
            return []
        shared = ancestor(chain, note.known)
        if shared is None:
            answer = ChainNote(fragment=note.fragment, certificates=(), oldest=chain.first_version)
        else:
            answer = ChainNote(fragment=note.fragment, certificates=chain.after(shared, CHAIN_PAGE_MAX))
        answering.gave(sender, len(answer.to_wire()), now)
        return [Send(sender, answer)]

    def teach(self, peer: PeerId, machine: FragmentMachine, version: int, now: float) -> list[Action]:
        """Whoever speaks about an old version is shown the certificate that ended it."""
        answering = machine.core.answering
        if not answering.admits(peer, now):
            return []
        notes = [CertificateNote(certificate=newer) for newer in machine.chain.after(version, 1)]
        answering.gave(peer, sum(len(note.to_wire()) for note in notes), now)
        return [Send(peer, note) for note in notes]

    def hear(self, sender: PeerId, note: ChainNote, now: float) -> list[Action]:
        """Follow what continues our chain; collect what forks from it. What nobody asked for counts for nothing."""
        if (sender, note.fragment) not in self.awaited:
            return []
        machine = self.machines[note.fragment]
        begun = self.heard.begun(sender, machine.chain)
        if not follows(note.certificates, machine.chain, begun):
            return []  # the answer to an earlier question, asked twice
        self.awaited.discard((sender, note.fragment))
        actions = self._note_ahead(sender, machine, note.oldest)
        more = len(note.certificates) == CHAIN_PAGE_MAX
        if begun is None:
            found = continuation(machine.chain, note.certificates)
            if found is not None and found[0] == machine.chain.version:
                return actions + self._follow(sender, machine, found[1], now, more)
        else:
            self.heard.forget(sender, note.fragment)
            if note.oldest is not None:  # it has changed over meanwhile
                self.answers.pop(sender, None)
                self.looks.pop(sender, None)
                return actions
            longer = prolonged(begun[1], note.certificates)
            found = None if longer is None else (begun[0], longer)
        return actions + self._hear_out(sender, note.fragment, found, more, now)

    def _hear_out(self, sender: PeerId, fragment: int, found: Fork | None, more: bool, now: float) -> list[Action]:
        """Decide nothing before a branch is heard to its end, since who signed last can tell only who knows that."""
        if found is None or not more or not is_heard_on(sender, *found):
            return self._collect(sender, fragment, found, now)
        if not self.heard.keep(sender, fragment, found, RIVALS_MAX * len(self.machines)):
            return []
        return self._ask_after(sender, fragment, (found[1].digest,), now)

    def _follow(self, sender: PeerId, machine: FragmentMachine, rival: Chain, now: float, more: bool) -> list[Action]:
        """Take over versions after ours, as far as may be, if the last of these is not one that nobody serves."""
        self.ahead.clear()
        actions: list[Action] = []
        patient_since, again = machine.tempo.certified_at, False
        taken = self._taken(machine, rival, now)
        if taken.version == machine.chain.version or machine.custody.is_unserved(taken.digest, now):
            return self._collect(sender, machine.index, None, now)
        for certificate in taken.after(machine.chain.version, taken.version - machine.chain.version):
            again = again or certificate.digest in machine.custody.unserved
            actions += machine.advance(certificate, now)
        self.asked.pop((sender, machine.index), None)
        more = more and machine.chain.version == rival.version
        if more or again:  # a version that nobody gave us before is no news that minor ones would have to wait for
            machine.tempo.certified_at = patient_since
        if more:
            machine.fetch_later(now)
            return actions + self.ask(sender, machine.index, now)
        return actions + machine.fetch_if_behind(now)

    def _taken(self, machine: FragmentMachine, rival: Chain, now: float) -> Chain:
        """How far we follow. Minor versions only by the lineage rule: a few peers alone cannot lead us away.

        The rule is about the whole branch: its first minor version decides for all that follow, on later pages, too.
        After a full one there was no time yet in which others could have made another.
        """
        ours = machine.chain.version
        news = rival.after(ours, rival.version - ours)
        first = next((one.version for one in news if one.outcome.minor), None)
        if first is None:
            return rival
        may = majority_signed(rival, first - 1) if first > ours + 1 else self._takes_minor(machine, rival, now)
        return rival if may else rival.truncated(first - 1)

    def _note_ahead(self, sender: PeerId, machine: FragmentMachine, oldest: int | None) -> list[Action]:
        """Whether this peer cannot help us on. It may lie, so all that follows is what we tell people."""
        too_far = oldest is not None and oldest > machine.chain.version
        if not too_far or sender in self.ahead or len(self.ahead) >= RIVALS_MAX:
            return []
        self.ahead.add(sender)
        details: dict[str, object] = {"peer": sender, "oldest": oldest}
        return [Tell("out_of_reach", machine.index, machine.chain.version, details)]

    def out_of_reach(self, live: Set[PeerId]) -> bool:
        """Whether everybody live says to have gone on too far for us to follow without the heads of a fresh invite."""
        return bool(live) and live <= self.ahead

    def _takes_minor(self, machine: FragmentMachine, rival: Chain, now: float) -> bool:
        """A branch that most of the active set signed; after three intervals, one that must have an honest signer.

        Later, when the active set has made nothing of its own either, one that any of it signed (docs/adr/0037).
        Else a single key could make a minor version by itself, and lead away whoever has been cut off. So nothing but
        the first is taken by whom a vote binds, nor before it has heard of whoever is there. What an earlier life of
        ours signed is no news: it is that which the vote binds us to.
        """
        version, tempo = machine.chain.version, machine.tempo
        branch = branch_after(rival, version)
        if machine.core.me in branch.certificates[0].voters:
            return True
        if branch.signers - self.bans.held.keys() and majority_signed(rival, version):
            return True
        if machine.bound(now) or not machine.core.presence.is_complete(branch.active, now):
            return False
        if any(self._has_honest_signer(branch, one, now) for one in self.machines):
            return tempo.minor_allowed(machine.chain, now)
        few = self._few_are_left(branch, machine, now)
        return few and tempo.few_allowed(machine.chain, bound_until(machine.rounds), now)

    def _few_are_left(self, branch: Branch, machine: FragmentMachine, now: float) -> bool:
        """Whether any of the active set signed, and those of it who are here and train without are not most of it.

        These can make a full version, which would win; unless they have had the time for it, and did not.
        """
        core, active = machine.core, branch.active - self.bans.held.keys()
        signers, trainers = branch.signers & active, core.presence.trainers(now)
        others = (active - signers) & (trainers | ({core.me} if core.contributes else set()))
        since = max(bound_until(machine.rounds), core.presence.met_at(others, now))
        few = 2 * len(others) <= len(branch.active)
        return bool(signers) and (few or machine.tempo.most_failed(machine.chain, since, now))

    def _has_honest_signer(self, branch: Branch, machine: FragmentMachine, now: float) -> bool:
        """Whether more than a third signed of those of a fragment's active set that are here.

        Any fragment's: who is left of one's own may have been away while the others went on. Never of several together,
        since hostile keys that are few in each may be many in all.
        """
        core, active = machine.core, machine.chain.active_set() - self.bans.held.keys()
        signers = replace(branch, active=active).signers
        here = {peer for peer in active if peer == core.me or core.presence.is_live(peer, now)}
        return 3 * len(signers) > len(here | signers)

    def _collect(self, sender: PeerId, fragment: int, found: Fork | None, now: float) -> list[Action]:
        """Lineages are compared once for all fragments: a fork in one makes us ask about the others.

        Who shows its branches a second time says first what it has said of the first fragments: perhaps of no fork.
        """
        answers = self.answers.setdefault(sender, {})
        answers[fragment] = found
        while len(self.answers) > RIVALS_MAX:
            del self.answers[next(iter(self.answers))]
        if not any(answers.values()) and sender not in self.looks:
            self.answers.pop(sender, None)
            return []
        if len(answers) < len(self.machines):
            return self._ask_missing(sender, now)
        return self._look(sender, self.answers.pop(sender), now)

    def _ask_missing(self, peer: PeerId, now: float) -> list[Action]:
        missing = (machine.index for machine in self.machines if machine.index not in self.answers[peer])
        return [action for index in missing for action in self.ask(peer, index, now)]

    def _look(self, sender: PeerId, answers: Mapping[int, Fork | None], now: float) -> list[Action]:
        """Decide if a peer shows the same branches twice: it may have changed over to ours between two answers.

        Then some of them are of a lineage that nobody holds any more, and what wins there would be a model of two.
        """
        branches = {index: None if fork is None else fork[1].digest_at(fork[0] + 1) for index, fork in answers.items()}
        before = self.looks.pop(sender, None)
        if before is not None:
            return self._decide(sender, answers, now) if before == branches else []
        while len(self.looks) >= RIVALS_MAX:
            del self.looks[next(iter(self.looks))]
        self.looks[sender] = branches
        for machine in self.machines:
            self.asked.pop((sender, machine.index), None)
        return [action for machine in self.machines for action in self.ask(sender, machine.index, now)]

    def _decide(self, sender: PeerId, answers: Mapping[int, Fork | None], now: float) -> list[Action]:
        forks = {
            index: fork
            for index, fork in answers.items()
            if fork is not None and still_forks(self.machines[index].chain, *fork)
        }
        taken = {index: without_tail(rival, fork) for index, (fork, rival) in forks.items()}
        lost = {index for index, one in taken.items() if self.machines[index].custody.is_unserved(one.digest, now)}
        rivals = {index: fork for index, fork in forks.items() if index not in lost}
        actions: list[Action] = []
        for index in sorted(won({one.index: one.chain for one in self.machines}, rivals, self.bans)):
            (fork, _), machine, branch = forks[index], self.machines[index], taken[index]
            details: dict[str, object] = {"fork": fork, "ours": machine.chain.version, "theirs": branch.version}
            actions.append(Tell("lineage_changed", index, branch.version, details))
            actions += machine.switch(branch, fork, now) + machine.fetch_if_behind(now)
            self.asked.pop((sender, index), None)
            actions += self.ask(sender, index, now)
        return actions
