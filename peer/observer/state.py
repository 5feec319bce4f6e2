"""An observer's knowledge of a run, and the view of it for people. Sans-IO: records and frames in, questions out.

Credit, versions, rosters and agreement are recomputed from certificates verified here. Peers' claims about themselves
(presence, status) are shown as claims and decide nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median_low

from coordinator.chain.certificate import Conviction
from coordinator.run.manifest import Manifest
from coordinator.views.network_view import TAPE_MAX, HistoryPoint, NetworkView, PeerView, RunFacts, TapeEvent
from coordinator.wire.messages import AskChainNote, AskEvidenceNote, ChainNote, ConvictionsNote, EvidenceNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import DIGEST_BYTES
from peer.machine.text import plain
from peer.net.frames import StatusAnswer, StatusAsk
from peer.observer.certified_rate import CertifiedRate
from peer.observer.chains import Chains
from peer.observer.history import HostEvaluations, ThinnedSeries
from peer.observer.peers import HeardPresence, KnownPeers, bounded
from peer.observer.rounds import ReportedRounds, activities
from peer.observer.view import ban_views, certificate_views, fragment_views, seen_credit, told_audits
from peer.rounds.public_status import PublicStatus, decode_status
from peer.sync.introduction import ADVICE_OUT_OF_REACH

GUIDES = 4  # peers whose versions we use after each read: one of them tells as much as all
ASKED_AT_ONCE = 8
ASK_SECONDS = 2.0  # at least this long between two questions to one peer for its status
READ_SECONDS_MAX = 2.0  # a read of the record store may last this long before peers count as silent
POINTS_MAX = 1000
LACKING_MAX = 2  # certificates per fragment that may always be on their way to us
POINT_SECONDS = 2.0

Question = tuple[PeerId, AskChainNote | AskEvidenceNote | StatusAsk]


class Observation:
    """Everything that one observer has seen. `now` is of one monotonic clock in all calls.

    Its dates follow the clock that `chains` was given last (`Chains.set_clock`).
    """

    def __init__(self, manifest: Manifest, facts: RunFacts, chains: Chains) -> None:
        config = manifest.config
        self.manifest = manifest
        self._facts = facts
        self._tokens_per_step = config.tokens_per_step
        self.chains = chains
        self.known = KnownPeers(config.pace.presence_lifetime_seconds)
        self._rounds = ReportedRounds(self.chains)
        self._held_out = HostEvaluations(PeerId(manifest.organiser), manifest.created_unix_seconds)
        self._history: ThinnedSeries[HistoryPoint] = ThinnedSeries(POINTS_MAX, POINT_SECONDS)
        self._rate = CertifiedRate(config.pace.fragments)
        self._tape: deque[TapeEvent] = deque(maxlen=TAPE_MAX)
        self._events: Counter[str] = Counter()
        self._seen_unix_seconds: float | None = None
        self._reads = 0
        self._read_at = -math.inf

    # -- in

    def read(self, records: Sequence[HeardPresence], now: float) -> None:
        """Take in the newest presence of all peers, from the record store."""
        news = [one for one in records if self.known.see(one, now, self._unix(now))]
        if records:
            self._read_at = now
        if news:
            self._seen_unix_seconds = self._unix(now)
        self.notice(now)
        guides = self._guides([one.peer for one in records])
        for one in records:
            silent = {} if one.peer in guides else {"versions": (), "heads": ()}
            self.chains.see(one.peer, one.presence.model_copy(update=silent), now)

    def hear(self, sender: PeerId, message: object, now: float) -> None:
        """Take in a frame's message; ignores a status that we did not ask for, and messages for others."""
        if isinstance(message, ChainNote):
            self._hear_chain(sender, message, now)
        elif isinstance(message, EvidenceNote):
            self.chains.take(sender, message, now)
        elif isinstance(message, StatusAnswer) and sender in self.known.peers and self.known.peers[sender].asked:
            self.known.peers[sender].asked = False
            self._hear_status(sender, message, now)

    def notice(self, now: float) -> None:
        """Let time pass: note who came or went, and what the chains' core told."""
        self.chains.tick(now)
        for peer, came in self.known.notice(max(self._read_at, now - READ_SECONDS_MAX)):
            self._put(now, "live" if came else "gone", peer)
        for tell in self.chains.told:
            if tell.event == "lineage_changed":
                self._put(now, tell.event, "", tell.fragment, tell.version)
            elif tell.event == "peer_banned":
                culprit, reason = str(tell.details["peer"]), str(tell.details["reason"])
                self._put(now, tell.event, culprit, tell.fragment, tell.version, plain(reason))
        self.chains.told.clear()
        self._rate.look(self._lacking(), self._lacking_max, now)

    def questions(self, now: float) -> list[Question]:
        """Return the questions to ask now: for certificates that we lack, and for the status of a few live peers."""
        questions: list[Question] = list(self.chains.take_questions())
        peers = self.known.peers
        waiting = [peer for peer in self.known.live() if now >= peers[peer].asked_at + ASK_SECONDS]
        organiser = self.manifest.organiser
        for peer in sorted(waiting, key=lambda one: (one != organiser, peers[one].asked_at))[:ASKED_AT_ONCE]:
            peers[peer].asked, peers[peer].asked_at = True, now
            questions.append((peer, StatusAsk()))
        return questions

    def _guides(self, peers: list[PeerId]) -> set[PeerId]:
        """Choose other peers each time, so that no peer misleads us for long; the organiser is always included."""
        self._reads += 1
        start = self._reads * GUIDES % max(1, len(peers))
        return {PeerId(self.manifest.organiser), *(peers[start:] + peers[:start])[:GUIDES]}

    def _hear_chain(self, sender: PeerId, note: ChainNote, now: float) -> None:
        if note.fragment >= self.manifest.config.pace.fragments:
            return
        for one in self.chains.hear(sender, note, now):
            self._seen_unix_seconds = self._unix(now)
            if one.fresh:
                outcome = one.certificate.outcome
                self._rate.add(outcome.tokens, now)
                detail = f"members={len(outcome.roster)} tokens={outcome.tokens}"
                self._put(now, "certified", one.leader or "", outcome.fragment, outcome.version, detail)

    def _hear_status(self, sender: PeerId, answer: StatusAnswer, now: float) -> None:
        try:
            status = decode_status(answer)
        except PeerError:
            return
        unix_seconds = self._unix(now)
        self._seen_unix_seconds = unix_seconds
        self.known.peers[sender].status = status.model_copy(update={"rounds": (), "evaluations": (), "bans": ()})
        if told := tuple(_convictions(status)):
            self.chains.take(sender, ConvictionsNote(convictions=told), now)
        if status.role == "host":
            self._held_out.hear(sender, status, unix_seconds)
        for one in self._rounds.hear(sender, status.rounds, unix_seconds):
            self._put(now, "round_void", sender, one.fragment, one.version, plain(one.reason))

    def _put(
        self,
        now: float,
        event: str,
        peer: str,
        fragment: int | None = None,
        version: int | None = None,
        detail: str = "",
    ) -> None:
        """Put an event on the tape."""
        self._events[event] += 1
        self._tape.append(
            TapeEvent(
                unix_seconds=self._unix(now),
                event=event,
                peer_id=peer,
                fragment=fragment,
                version=version,
                detail=detail,
            )
        )

    def _unix(self, now: float) -> float:
        return self.chains.unix_seconds(now)

    # -- out

    def view(self, now: float, note: str = "") -> NetworkView:
        """Return the view of the whole run for people."""
        self.notice(now)
        unix_seconds = self._unix(now)
        credit = self.chains.credit
        rounds = self._rounds.newest(unix_seconds)
        point = self._point(now)
        self._history.add(point, now)
        for known in self.known.peers.values():
            known.history.add(known.point(unix_seconds), now)
        history = self._history.items
        return NetworkView(
            run_id=self.manifest.run_id.hex(),
            name=self.manifest.config.name,
            note=note or self._lag(),
            taken_unix_seconds=unix_seconds,
            network_seen_unix_seconds=self._seen_unix_seconds,
            run=self._facts,
            peers=self._peers(activities(rounds), now),
            fragments=fragment_views(self.manifest, self.chains),
            evaluations=self._held_out.evaluations(credit.levels if self.chains.whole else (), credit.fragments),
            evaluator=self._held_out.evaluator or "",
            sample=self._held_out.sample,
            exports=self._held_out.exports,
            history=tuple(history if history[-1] is point else [*history, point]),
            certificates=certificate_views(self.chains),
            rounds=rounds,
            bans=ban_views(self.chains.bans.values()),
            audits=told_audits(self.known),
            credit=seen_credit(credit, self.known),
            events=dict(self._events),
            tape=tuple(self._tape),
        )

    def _peers(self, doing: dict[str, str], now: float) -> tuple[PeerView, ...]:
        found = []
        over = sum(self.chains.versions) >= self._facts.versions_target
        for peer, view in self.known.views(self.chains.versions).items():
            known = self.known.peers[peer]
            state = doing.get(peer, view.state) if view.live and view.state == "training" else view.state
            gone_with_all = not view.live and view.versions_behind == 0  # its last presence may be lost
            if over and (state == "draining" or gone_with_all):  # it did not leave early
                state = "finished"
            ban = self.chains.bans.get(peer)
            update = {
                "state": state,
                "trust": "banned" if ban is not None else self._standing(peer, view),
                "note": view.note if ban is None else ban.guilt.reason,  # not its own words
                "last_seen_seconds": max(0.0, now - known.seen_at),
                "credited_tokens": self.chains.credit.tokens_of(peer),
            }
            found.append(view.model_copy(update=update))
        return tuple(found)

    def _standing(self, peer: PeerId, view: PeerView) -> str:
        new = view.role == "learner" and self.chains.on_probation(peer)
        return "probation" if new else "in good standing"

    def _lag(self) -> str:
        """Say whether most peers hold certificates that we have yet to get, or cannot get; empty if not."""
        if self.chains.out_of_reach:
            return f"the run has gone on too far since this invite was made; {ADVICE_OUT_OF_REACH}"
        lacking = self._lacking()
        return f"getting {lacking} certificates" if lacking is not None and lacking > self._lacking_max else ""

    def _lacking(self) -> int | None:
        """Return how many certificates most live peers hold that we do not; None if nobody is live."""
        said = [sum(known.versions) for known in self.known.peers.values() if known.live]
        return median_low(said) - sum(self.chains.versions) if said else None

    @property
    def _lacking_max(self) -> int:
        return LACKING_MAX * len(self.chains.versions)

    def _point(self, now: float) -> HistoryPoint:
        peers = self.known.peers.values()
        live = [known for known in peers if known.live]
        credit, per_step = self.chains.credit, self._tokens_per_step
        telling = [one.presence for one in peers if one.presence.bytes_sent or one.presence.bytes_received]
        return HistoryPoint(
            unix_seconds=self._unix(now),
            versions=sum(self.chains.versions),
            tokens_certified=credit.tokens,
            tokens_per_second=self._rate.tokens_per_second(now),
            trained_tokens_per_second=sum(one.presence.steps_per_second for one in live) * per_step,
            capacity_tokens_per_second=sum(one.steps_per_second for one in peers) * per_step,
            peers_live=len(live),
            peers_known=len(self.known.peers),
            bytes_sent=sum(bounded(one.bytes_sent) for one in telling) if telling else None,
            bytes_received=sum(bounded(one.bytes_received) for one in telling) if telling else None,
            learners_live=sum(one.role == "learner" for one in live),
        )


def _convictions(status: PublicStatus) -> Iterator[Conviction]:
    """Yield the bans in a peer's status for which there may be evidence."""
    for one in status.bans:
        if len(one.digest) == 2 * DIGEST_BYTES:
            with suppress(PeerError):  # skips a name that is no peer id
                yield Conviction.from_plain((one.peer_id, bytes.fromhex(one.digest)))
