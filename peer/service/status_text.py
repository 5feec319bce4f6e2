"""A peer's status in words."""

from __future__ import annotations

from coordinator.views import quantity
from coordinator.views.evaluation import Evaluation
from coordinator.views.snapshot import OwnerDay, PeerSnapshot
from peer.machine.text import printable


def status_line(snapshot: PeerSnapshot) -> str:
    """Return one line for a scrolling terminal: `2:31 training, step 480, loss 2.310, …`."""
    begins = f"{quantity.duration(snapshot.wall_seconds)} {snapshot.state}"
    begins += f" ({snapshot.note})" if snapshot.note else ""
    return _line([begins, f"step {snapshot.steps}"] if snapshot.role == "learner" else [begins], snapshot)


def left_line(snapshot: PeerSnapshot) -> str:
    """Return the last line of a peer whose run continues without it."""
    begins = f"this peer has left the run after {quantity.duration(snapshot.wall_seconds)}"
    return _line([begins, f"at step {snapshot.steps}"] if snapshot.role == "learner" else [begins], snapshot)


def _line(parts: list[str], snapshot: PeerSnapshot) -> str:
    if snapshot.role == "learner":
        parts += [f"loss {_losses(snapshot)}", f"{_own(snapshot)} yours"]
    elif snapshot.evaluations:
        parts.append(f"held-out loss {_heldout(snapshot.evaluations[-1])}")
    parts += [
        f"versions {quantity.versions(fragment.version for fragment in snapshot.fragments)}",
        _live(snapshot),
        f"sent {quantity.size(snapshot.bytes_sent)}",
        f"received {quantity.size(snapshot.bytes_received)}",
    ]
    parts += ["its steps are too long for the run's rounds: muster status"] if snapshot.late else []
    parts += [warmth] if (warmth := quantity.warmth(snapshot.celsius, snapshot.gpu_watts)) else []
    return printable(", ".join(parts) + (f"; {snapshot.advice}" if snapshot.advice else ""))


def _live(snapshot: PeerSnapshot) -> str:
    return f"{quantity.counted(snapshot.peers_live, 'other')} live"


def _losses(snapshot: PeerSnapshot) -> str:
    return f"{quantity.loss(snapshot.loss)} (swarm {quantity.loss(snapshot.swarm_loss)})"


def _heldout(found: Evaluation) -> str:
    return quantity.loss(found.loss, found.error)


def _own(snapshot: PeerSnapshot) -> str:
    return f"{quantity.count(snapshot.own_tokens)} tokens ({snapshot.own_share:.0%})"


def _today(day: OwnerDay) -> str:
    traffic = f"sent {quantity.size(day.sent_bytes)}, received {quantity.size(day.received_bytes)}"
    opens = "" if day.opens_in_minutes is None else f"; its hours begin in {quantity.rough(60 * day.opens_in_minutes)}"
    return f"trained for {quantity.rough(day.trained_seconds)}, {traffic}{opens}"


def _hindrances(snapshot: PeerSnapshot) -> dict[str, list[str]]:
    """Return the reasons that keep the peer from asking into a group, each with its fragments."""
    found: dict[str, list[str]] = {}
    for index, one in enumerate(snapshot.fragments):
        if one.hindrance:
            found.setdefault(one.hindrance, []).append(str(index))
    return found


def status_page(snapshot: PeerSnapshot) -> str:
    """Return the lines of `muster status`."""
    certified = snapshot.certified
    lines = [
        f"{snapshot.name or snapshot.role} {snapshot.peer_id}",
        f"run       {snapshot.run_id}",
        f"state     {snapshot.state}" + (f": {snapshot.note}" if snapshot.note else ""),
        *([f"to do     {snapshot.advice}"] if snapshot.advice else []),
        f"running   for {quantity.duration(snapshot.wall_seconds)}, process {snapshot.pid}",
    ]
    if snapshot.device:
        warmth = quantity.warmth(snapshot.celsius, snapshot.gpu_watts)
        lines.append(f"device    {snapshot.device}" + (f"; {warmth}" if warmth else ""))
    if snapshot.role == "learner":
        rate = f"{snapshot.steps_per_second:.2f} steps/s"
        lines.append(f"training  step {snapshot.steps}, loss {_losses(snapshot)}, {rate}")
        lines += [f"pace      {snapshot.late}"] if snapshot.late else []
        lines.append(f"yours     {_own(snapshot)} of what is certified since it started")
        lines.append(f"today     {_today(snapshot.day)}")
    if snapshot.evaluations:
        lines.append(f"held out  loss {_heldout(snapshot.evaluations[-1])} nats per token")
    lines += [
        f"fragments {quantity.versions(fragment.version for fragment in snapshot.fragments)} (certified versions)",
        *(f"waits     it {why}: {quantity.listed('fragment', which)}" for why, which in _hindrances(snapshot).items()),
        f"certified {quantity.counted(certified.versions, 'version')} seen, {quantity.count(certified.tokens)} tokens",
        f"network   {_live(snapshot)}, {quantity.counted(snapshot.rounds_in_flight, 'round')} in flight, "
        f"sent {quantity.size(snapshot.bytes_sent)}, received {quantity.size(snapshot.bytes_received)}",
    ]
    if not snapshot.dialable:
        lines.append("reach     nobody gets through to it, so it calls the others and reduces nothing: muster doctor")
    return "\n".join(map(printable, lines))  # a note may quote a stranger
