"""All downloads of states to one peer, each from several holders at once (design §8). Sans-IO.

No holder is trusted and none is indispensable: if one stalls, lies or lacks a state, its pieces are requested from
others. Holders are judged by their answers for all states together. States come one after the other, so that they do
not compete for the line. If all holders fail, the pieces that have arrived are kept for the next try.
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
HOLDERS_KNOWN_MAX = 64  # including those without requests at the moment
TURN_SECONDS = 10.0  # after this, a holder in reserve gets its turn, so that a slow holder keeps no place for ever
TAKE_OVER = 2.0  # a holder is asked for another's piece only if it should answer this many times sooner

Owing = dict[Request, list[tuple[StateSource, int]]]
"""The holders that owe a piece, each with the piece's position in its queue."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to a holder for a piece of the state with this name."""

    holder: PeerId
    fragment: int
    name: bytes
    piece: Piece


class DownloadScheduler:
    """The downloads, at most one per fragment, in order of their start; `halves` per state as in `StateDownload`."""

    def __init__(self, halves: int = 2) -> None:
        self._halves = halves
        self._downloads: dict[int, Download] = {}  # including those that wait for another try
        self._taken: dict[int, int] = {}  # bytes of the states that arrived while others were under way
        self._holders: OrderedDict[PeerId, StateSource] = OrderedDict()  # those in reserve are last
        self.false: dict[PeerId, Piece] = {}  # by peer that gave a false piece, the last such piece

    # -- downloads and their holders

    def begin(self, wanted: Wanted, elements: int, holders: Sequence[PeerId], ended: Ended = lambda: None) -> None:
        """Download this state in place of any other of the fragment; pieces of an earlier try count.

        `ended` is called, perhaps more than once, when the state is here or no holder is left to ask.
        """
        download = self._downloads.get(wanted.fragment)
        if download is None or download.name != wanted.name:
            download = StateDownload(wanted, elements, self._halves)
        self.begin_with(wanted.fragment, download, holders, ended)

    def begin_with(self, fragment: int, download: Download, holders: Sequence[PeerId], ended: Ended) -> None:
        """Begin with an existing download; one that is not a state takes the place of an unused fragment."""
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
        """Add holders of the state; those that failed before get another chance."""
        for peer in holders:
            self._holders.setdefault(peer, StateSource()).serves.add(self._downloads[fragment].name)
        idle = [peer for peer, holder in self._holders.items() if not holder.serves and not holder.owed]
        for peer in idle[: max(0, len(self._holders) - HOLDERS_KNOWN_MAX)]:
            del self._holders[peer]

    def is_awaited(self, fragment: int) -> bool:
        """Whether a caller waits for a state of this fragment."""
        return fragment in self._downloads and self._downloads[fragment].ended is not None

    def end(self, fragment: int) -> None:
        """Tell the caller that waits for a state of this fragment that it does not come; received pieces stay."""
        download = self._downloads.get(fragment)
        if download is not None and download.ended is not None:
            download.ended()

    def settle(self) -> None:
        """Tell the callers of downloads that are over."""
        for fragment in self._downloads:
            if self.is_over(fragment):
                self.end(fragment)

    def pause(self, fragment: int, ended: Ended) -> bool:
        """Stop waiting for the download that began with `ended`; pieces that still arrive count.

        Returns False if another caller waits now.
        """
        download = self._downloads.get(fragment)
        if download is None or download.ended is not ended:
            return False
        download.ended = None
        self._forgive_all(download)
        return True

    def forget(self, fragment: int) -> None:
        """Drop a state that no caller waits for."""
        if fragment in self._downloads and not self.is_awaited(fragment):
            del self._downloads[fragment]

    def is_over(self, fragment: int) -> bool:
        """Whether the state is here, or no holder is left to ask."""
        download = self._downloads[fragment]
        return download.done or not any(download.name in holder.serves for holder in self._holders.values())

    def take(self, fragment: int) -> OuterState | None:
        """Return and forget the state; None if it is not here."""
        download = self._downloads[fragment]
        if not download.done or not isinstance(download, StateDownload):
            return None
        del self._downloads[fragment]
        self._taken[fragment] = download.bytes_total
        for holder in self._holders.values():
            holder.serves.discard(download.name)
        return download.state()

    def has_begun(self, fragment: int) -> bool:
        """Whether some of an incomplete state is here or under way."""
        return fragment in self._downloads and self._downloads[fragment].begun

    def seconds_owed(self) -> float:
        """Return the estimated time until all requested pieces have arrived."""
        return max((len(one.owed) * one.answer_seconds for one in self._holders.values()), default=0.0)

    def answer_seconds(self) -> float:
        """Return the median time per piece of holders that have answered validly; at least the default."""
        known = [holder.answer_seconds for holder in self._holders.values() if holder.proven]
        return max(median_low(known or [ANSWER_SECONDS]), ANSWER_SECONDS)

    def progress(self, lacking: Collection[int]) -> tuple[int, int, int]:
        """Return the received bytes, the total bytes, and the number of holders with open requests.

        Counts these fragments, and others whose states arrived since one of these was begun, so that the share only
        grows.
        """
        states = [one for fragment, one in self._downloads.items() if fragment in lacking]
        sources = sum(bool(holder.owed) for holder in self._holders.values())
        taken = sum(self._taken.values()) if states else 0
        return taken + sum(one.bytes_done for one in states), taken + sum(one.bytes_total for one in states), sources

    # -- choice of holders

    def asks(self, now: float) -> list[Ask]:
        """Return the requests to make now; first drops holders that stall."""
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
        """Return the time at which the next holder will have stalled."""
        times = [time for one in self._holders.values() for time in (one.overdue_at(), one.leave_at()) if time > now]
        return min(times, default=math.inf)

    def _running(self) -> Iterator[Download]:
        return (one for one in self._downloads.values() if one.running)

    def _take_turns(self, able: dict[PeerId, StateSource], now: float) -> None:
        """Move holders whose turn is over behind those in reserve; they still owe what was requested."""
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
        """Choose requests for this holder until its window is full."""
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
        """Return the next piece for this holder.

        Goes state by state: first pieces not requested, then pieces that are long overdue; after all states, pieces
        that it can deliver sooner.
        """
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

    # -- answers

    def receive(self, peer: PeerId, fragment: int, request: Request, payload: bytes, now: float) -> int:
        """Take an answer; return the number of new bytes.

        A valid piece counts even if no caller waits for it any more, but only from a known holder. After one false
        answer, requested or not, a holder is no longer known.
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
            holder.serves.discard(download.name)  # it does not hold this state (any more)
            self._forgive(holder, [request, *(one for one in holder.owed if one[0] == download.name)])
        elif not download.take(request[1], payload):
            self._leave(holder, request)
            del self._holders[peer]
            self.false[peer] = request[1]
        elif (owed and request[1] is None) or download.bytes_done > before:
            holder.proven, holder.since = True, now
        return download.bytes_done - before

    def gone(self, peer: PeerId) -> None:
        """Handle that its streams broke: pieces requested from it will not come."""
        holder = self._holders.pop(peer, None)
        if holder is not None:
            self._leave(holder)

    def _leave(self, holder: StateSource, *more: Request) -> None:
        """Stop asking this holder, and release its open requests and these."""
        holder.serves.clear()
        self._forgive(holder, [*holder.owed, *more])

    def _forgive_all(self, download: Download) -> None:
        """Cancel all requests for this state."""
        for holder in self._holders.values():
            holder.serves.discard(download.name)
            self._forgive(holder, [request for request in holder.owed if request[0] == download.name])

    def _forgive(self, holder: StateSource, requests: Sequence[Request]) -> None:
        """Cancel these requests to a holder; requests for the same pieces to others stay."""
        for request in requests:
            holder.owed.pop(request, None)
        others = {request for other in self._holders.values() for request in other.owed} if requests else set()
        for download in self._downloads.values():
            for name, piece in requests:
                if name == download.name and (name, piece) not in others:
                    download.give_back(piece)


def _owed_longer(download: Download, holder: StateSource, owing: Owing, seconds: float, now: float) -> int | None:
    """Return a piece of this state that all its debtors will probably not deliver within this time."""
    for (name, piece), debtors in owing.items():
        if name != download.name or piece is None or piece not in download.missing:
            continue
        if all(one is not holder and one.seconds_until(place, now) >= seconds for one, place in debtors):
            return piece
    return None
