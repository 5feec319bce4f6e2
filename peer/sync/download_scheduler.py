"""All states that are on their way to one peer, each from several holders at once (design §8). Sans-IO.

No holder is believed and none is needed whole: what one that stalls, lies or does not hold a state owes is asked of
others. Holders are judged by what they give of all states together, and states come one after the other, so that they
do not take each other's place on the line. What has arrived stays when all holders fail, for the next try.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from dht.identity import PeerId
from peer.numerics.outer_optimizer import OuterState
from peer.sync.download import Download, Ended, Piece, StateDownload, Wanted
from peer.sync.source import ANSWER_SECONDS, STALL_SECONDS, Request, StateSource

HOLDERS_ASKED_MAX = 4  # at once; the others are in reserve
HOLDERS_KNOWN_MAX = 64  # with those that are asked for nothing at the moment
TURN_SECONDS = 10.0  # after so long it is the turn of somebody in reserve: a slow holder keeps no place for good
TAKE_OVER = 2.0  # so much sooner must a holder be expected to answer to be asked for what another one owes

Owing = dict[Request, list[tuple[StateSource, int]]]
"""Who owes a piece, and at which place of its line."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this holder for that piece of the state of this name."""

    holder: PeerId
    fragment: int
    name: bytes
    piece: Piece


class DownloadScheduler:
    """At most one per fragment, the first that began first; `halves` of each state as `Download` takes them."""

    def __init__(self, halves: int = 2) -> None:
        self._halves = halves
        self._downloads: dict[int, Download] = {}  # with those that wait for another try
        self._taken: dict[int, int] = {}  # bytes of the states that came while others did not yet
        self._holders: OrderedDict[PeerId, StateSource] = OrderedDict()  # those in reserve last
        self.false: dict[PeerId, Piece] = {}  # who has given something false, and the last of that

    # -- what to get, and from whom

    def begin(self, wanted: Wanted, elements: int, holders: Sequence[PeerId], ended: Ended = lambda: None) -> None:
        """Get this state instead of another one of the fragment; what an earlier try has left of it counts.

        `ended` is called, perhaps more than once, when the state is here, or nobody is left to ask for it.
        """
        download = self._downloads.get(wanted.fragment)
        if download is None or download.name != wanted.name:
            download = StateDownload(wanted, elements, self._halves)
        self.begin_with(wanted.fragment, download, holders, ended)

    def begin_with(self, fragment: int, download: Download, holders: Sequence[PeerId], ended: Ended) -> None:
        """The same with a download that is there; what is no state has the place of a fragment that has none."""
        self.end(fragment)
        if not self._downloads:
            self._taken.clear()
        self._taken.pop(fragment, None)
        before = self._downloads.get(fragment)
        if before is not None and before is not download:
            self._forgive_all(before)
        self._downloads[fragment] = download
        download.ended = ended
        self.offer(fragment, holders)

    def offer(self, fragment: int, holders: Sequence[PeerId]) -> None:
        """These are said to hold the state; those that failed before get another chance."""
        for peer in holders:
            self._holders.setdefault(peer, StateSource()).serves.add(self._downloads[fragment].name)
        idle = [peer for peer, holder in self._holders.items() if not holder.serves and not holder.owed]
        for peer in idle[: max(0, len(self._holders) - HOLDERS_KNOWN_MAX)]:
            del self._holders[peer]

    def is_awaited(self, fragment: int) -> bool:
        """Whether somebody waits for a state of this fragment."""
        return fragment in self._downloads and self._downloads[fragment].ended is not None

    def end(self, fragment: int) -> None:
        """Tell who waits for a state of this fragment that it does not come; what has come stays."""
        download = self._downloads.get(fragment)
        if download is not None and download.ended is not None:
            download.ended()

    def settle(self) -> None:
        """Tell those who wait what is over."""
        for fragment in self._downloads:
            if self.is_over(fragment):
                self.end(fragment)

    def pause(self, fragment: int, ended: Ended) -> bool:
        """Who began with `ended` does not wait any more; what still comes counts. False if somebody else waits now."""
        download = self._downloads.get(fragment)
        if download is None or download.ended is not ended:
            return False
        download.ended = None
        self._forgive_all(download)
        return True

    def forget(self, fragment: int) -> None:
        """Nothing is left of a state that nobody waits for."""
        if fragment in self._downloads and not self.is_awaited(fragment):
            del self._downloads[fragment]

    def is_over(self, fragment: int) -> bool:
        """Whether the state is here, or nobody is left to ask for it."""
        download = self._downloads[fragment]
        return download.done or not any(download.name in holder.serves for holder in self._holders.values())

    def take(self, fragment: int) -> OuterState | None:
        """The state, once; None if it is not here."""
        download = self._downloads[fragment]
        if not download.done or not isinstance(download, StateDownload):
            return None
        del self._downloads[fragment]
        self._taken[fragment] = download.bytes_total
        for holder in self._holders.values():
            holder.serves.discard(download.name)
        return download.state()

    def has_begun(self, fragment: int) -> bool:
        """Whether some of a state that is not whole yet is here or under way."""
        return fragment in self._downloads and self._downloads[fragment].begun

    def seconds_owed(self) -> float:
        """How long what holders owe still takes, as far as we can tell."""
        return max((len(one.owed) * one.answer_seconds for one in self._holders.values()), default=0.0)

    def answer_seconds(self) -> float:
        """How long those that have given something take for a piece, in the middle; at least the usual time."""
        known = [holder.answer_seconds for holder in self._holders.values() if holder.proven]
        return max(median_low(known or [ANSWER_SECONDS]), ANSWER_SECONDS)

    def progress(self, lacking: Collection[int]) -> tuple[int, int, int]:
        """Bytes that have arrived and bytes in all; and from how many holders more are to come.

        For these fragments, and for others whose states came since one of these was begun: a share of both only grows.
        """
        states = [one for fragment, one in self._downloads.items() if fragment in lacking]
        sources = sum(bool(holder.owed) for holder in self._holders.values())
        taken = sum(self._taken.values()) if states else 0
        return taken + sum(one.bytes_done for one in states), taken + sum(one.bytes_total for one in states), sources

    # -- whom to ask

    def asks(self, now: float) -> list[Ask]:
        """What to ask for now; holders that stall are left first."""
        for holder in self._holders.values():
            if now >= holder.leave_at():
                self._leave(holder)
        names = {one.name for one in self._running()}
        able = {peer: one for peer, one in self._holders.items() if one.serves & names and now < one.overdue_at()}
        self._take_turns(able, now)
        owing, found = self._owing(), list[Ask]()
        for peer in islice([one for one in self._holders if one in able], HOLDERS_ASKED_MAX):
            holder = able[peer]
            holder.turn_ends_at = min(holder.turn_ends_at, now + TURN_SECONDS)
            found += [Ask(peer, *chosen) for chosen in self._choose(holder, owing, now)]
        return found

    def next_deadline(self, now: float) -> float:
        """When somebody will have stalled."""
        times = [time for one in self._holders.values() for time in (one.overdue_at(), one.leave_at()) if time > now]
        return min(times, default=math.inf)

    def _running(self) -> Iterator[Download]:
        return (one for one in self._downloads.values() if one.running)

    def _take_turns(self, able: dict[PeerId, StateSource], now: float) -> None:
        """Whose turn is over goes behind those in reserve; it still owes what it was asked for."""
        if len(able) > HOLDERS_ASKED_MAX:
            for peer in [peer for peer, holder in able.items() if now >= holder.turn_ends_at]:
                self._holders.move_to_end(peer)
                able[peer].turn_ends_at = math.inf

    def _owing(self) -> Owing:
        owing: Owing = {}
        for holder in self._holders.values():
            for place, request in enumerate(holder.owed):
                owing.setdefault(request, []).append((holder, place))
        return owing

    def _choose(self, holder: StateSource, owing: Owing, now: float) -> Iterator[tuple[int, bytes, Piece]]:
        """What this holder has room for."""
        served = {
            fragment: one for fragment, one in self._downloads.items() if one.running and one.name in holder.serves
        }
        while holder.room:
            chosen = self._next(holder, served, owing, now)
            if chosen is None:
                return
            request = served[chosen[0]].name, chosen[1]
            owing.setdefault(request, []).append((holder, len(holder.owed)))
            holder.ask(request, now)
            yield chosen[0], *request

    def _next(
        self, holder: StateSource, served: dict[int, Download], owing: Owing, now: float
    ) -> tuple[int, Piece] | None:
        """State by state what nobody was asked for, then what is long in coming; after all of them what is a little."""
        soon = TAKE_OVER * holder.seconds_until(len(holder.owed), now)
        for fragment, download in served.items():
            if not download.proves:
                if (download.name, None) not in holder.owed:
                    return fragment, None
                continue
            piece = download.next_unasked()
            if piece is None:
                piece = _owed_longer(download, holder, owing, max(soon, STALL_SECONDS), now)
            if piece is not None:
                return fragment, piece
        for fragment, download in served.items():
            piece = _owed_longer(download, holder, owing, soon, now)
            if piece is not None:
                return fragment, piece
        return None

    # -- what comes

    def receive(self, peer: PeerId, fragment: int, request: Request, payload: bytes, now: float) -> int:
        """An answer; returns how many bytes more are here.

        A piece that proves itself counts although nobody waits for it any more, but only from whom we know as a holder:
        one false answer, asked for or not, and it is known no longer.
        """
        holder, download = self._holders.get(peer), self._downloads.get(fragment)
        if holder is None:
            return 0
        owed = request in holder.owed
        if owed:
            self._forgive(holder, holder.answer(request, now))
        if download is None or download.name != request[0] or not (owed or payload):
            return 0
        before = download.bytes_done
        if not payload:
            holder.serves.discard(download.name)  # it does not hold this state, or not any more
            self._forgive(holder, [request, *(one for one in holder.owed if one[0] == download.name)])
        elif not download.take(request[1], payload):
            self._leave(holder, request)
            del self._holders[peer]
            self.false[peer] = request[1]
        elif (owed and request[1] is None) or download.bytes_done > before:
            holder.proven, holder.since = True, now
        return download.bytes_done - before

    def gone(self, peer: PeerId) -> None:
        """Its streams have broken: what it owes does not come any more."""
        holder = self._holders.pop(peer, None)
        if holder is not None:
            self._leave(holder)

    def _leave(self, holder: StateSource, *more: Request) -> None:
        """Ask this holder for nothing more, and others for what it owes us, and for these."""
        holder.serves.clear()
        self._forgive(holder, [*holder.owed, *more])

    def _forgive_all(self, download: Download) -> None:
        """Nobody is asked for this state any more."""
        for holder in self._holders.values():
            holder.serves.discard(download.name)
            self._forgive(holder, [request for request in holder.owed if request[0] == download.name])

    def _forgive(self, holder: StateSource, requests: Sequence[Request]) -> None:
        """It does not owe us these any more; others that do still do."""
        for request in requests:
            holder.owed.pop(request, None)
        others = {request for other in self._holders.values() for request in other.owed} if requests else set()
        for download in self._downloads.values():
            for name, piece in requests:
                if name == download.name and (name, piece) not in others:
                    download.give_back(piece)


def _owed_longer(download: Download, holder: StateSource, owing: Owing, seconds: float, now: float) -> int | None:
    """A piece of this state that all who owe it will, as far as we can tell, not give for so long."""
    for (name, piece), debtors in owing.items():
        if name != download.name or piece is None or piece not in download.missing:
            continue
        if all(one is not holder and one.seconds_until(place, now) >= seconds for one, place in debtors):
            return piece
    return None
