"""Words and figures about the owner's machine: what it gives, its credit, and advice."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.views import quantity
from coordinator.views.credit import CreditReport
from coordinator.views.owner_limits import OwnerLimits
from coordinator.views.snapshot import PeerSnapshot
from dashboard.frames.rows import Row
from dashboard.text import plain, short_id
from dht.units import GIGABYTE_BYTES

HELPS: Mapping[str, str] = {
    "My share": "Of all tokens in certified versions, as far back as this machine knows.",
    "Called by others": "A machine that others can call also merges for them. One that they cannot takes part too.",
    "May train": "By the hours that you allow; see Limits.",
}


def headline(mine: PeerSnapshot) -> str:
    """Say which peer this is and what it is doing."""
    note = f": {plain(mine.note)}" if mine.note and mine.state != "training" else ""
    return f"{plain(mine.name)} {short_id(mine.peer_id)}: {plain(mine.state)}{note}".strip()


def advice(mine: PeerSnapshot) -> list[str]:
    """Return advice for its owner."""
    unreachable = (
        "Others cannot call this machine, so it merges for nobody. It takes part all the same. "
        "To change that, forward a port in your router: docs/how-to/routers.md."
    )
    told = [one for one in (mine.advice, mine.late) if one]
    return [one[0].upper() + one[1:] for one in told] + ([] if mine.dialable else [unreachable])


def figures(mine: PeerSnapshot, limits: OwnerLimits, credit: CreditReport | None) -> dict[str, str]:
    """Return the main figures for a volunteer; a host has none about training."""
    quotas = {one.key: one.value for one in limits.limits}
    traffic = {
        "Sent today": quantity.size(mine.day.sent_bytes),
        **_quota("Upload quota", mine.day.sent_bytes, quotas.get("upload_gigabytes_per_day")),
        "Received today": quantity.size(mine.day.received_bytes),
        **_quota("Download quota", mine.day.received_bytes, quotas.get("download_gigabytes_per_day")),
        "Called by others": "yes" if mine.dialable else "no",
    }
    if mine.role != "learner":
        return traffic
    share, place = standing(mine.peer_id, credit)
    warmth = quantity.warmth(mine.celsius, mine.gpu_watts)
    return {
        "My share": share,
        "My place": place,
        "Trained today": hours(mine.day.trained_seconds),
        "May train": _next_hours(mine.day.opens_in_minutes),
        **traffic,
        **({"Heat": warmth} if warmth else {}),
    }


def standing(peer_id: str, credit: CreditReport | None) -> tuple[str, str]:
    """Return a peer's share of all certified tokens, and its place among all contributors."""
    contributors = [] if credit is None else [one.peer_id for one in credit.contributors]
    if credit is None or peer_id not in contributors or not credit.tokens:
        return "none yet", "–"
    at = contributors.index(peer_id)
    return f"{credit.contributors[at].tokens / credit.tokens:.1%}", f"{at + 1} of {len(contributors)}"


def hours(seconds: float) -> str:
    """Format a duration as `45 min` or `2 h 10 min`."""
    whole, minutes = divmod(int(seconds // 60), 60)
    return f"{whole} h {minutes} min" if whole else f"{minutes} min"


def _next_hours(opens_in_minutes: int | None) -> str:
    return "now" if opens_in_minutes is None else f"in {hours(60 * opens_in_minutes)}"


def _quota(name: str, used_bytes: int, gigabytes: object) -> dict[str, str]:
    if not isinstance(gigabytes, float) or not gigabytes:
        return {}
    return {name: f"{used_bytes / (gigabytes * GIGABYTE_BYTES):.0%} used"}


def details(mine: PeerSnapshot) -> dict[str, str]:
    """Return further figures; a host has none about training."""
    trained = {
        "Steps": quantity.count(mine.steps),
        "Steps per second": f"{mine.steps_per_second:.2f}",
        "Loss in training": quantity.loss(mine.loss),
    }
    return {
        **(trained if mine.role == "learner" else {}),
        "Sent since start": quantity.size(mine.bytes_sent),
        "Received since start": quantity.size(mine.bytes_received),
        "Others live": str(mine.peers_live),
    }


def fragment_rows(mine: PeerSnapshot) -> list[Row]:
    """Return a row for each fragment."""
    return [
        {
            "fragment": index,
            "version": one.version,
            "held": one.held_version,
            "phase": one.phase,
            "hindrance": plain(one.hindrance),
            "reason": plain(one.reason),
        }
        for index, one in enumerate(mine.fragments)
    ]
