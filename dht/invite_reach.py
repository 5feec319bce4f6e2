"""From where an invite can be used, judged by its addresses alone, without dialling them."""

from __future__ import annotations

from collections.abc import Sequence

from dht.addresses import PeerAddress, Reach

WIDEST_FIRST = (Reach.PUBLIC, Reach.PRIVATE, Reach.LOOPBACK)
PLACES_SHOWN = 3
EVERYWHERE = ("0.0.0.0", "::")


def widest(addresses: Sequence[PeerAddress]) -> Reach:
    """Return the widest reach among these addresses."""
    found = {address.reach for address in addresses}
    return next((reach for reach in WIDEST_FIRST if reach in found), Reach.LOOPBACK)


def limits_of(addresses: Sequence[PeerAddress], listens_at: str = "") -> str:
    """Say where an invite with these addresses works and what widens that; empty if it may work anywhere.

    `listens_at` is the address that the host was told to listen at, if known.
    """
    reach = widest(addresses)
    if reach is Reach.LOOPBACK:
        advice = "connect the host to a network"
        if listens_at in EVERYWHERE:
            advice += "; a minute later `muster invite` prints one with its address"
        else:
            advice += " and start it with --listen 0.0.0.0"
        return f"this invite works on the host's own machine only; for others, {advice}"
    if reach is Reach.PRIVATE:
        return (
            "this invite works in the host's own network only; for others, forward the host's port in the router, and "
            "start the host with --announce /ip4/PUBLIC.ADDRESS/tcp/PORT"
        )
    return ""


def no_answer_message(addresses: Sequence[PeerAddress]) -> str:
    """Say in a sentence where no peer answers and what to do about it."""
    found = list(dict.fromkeys(map(place, addresses)))
    more = f" and at {len(found) - PLACES_SHOWN} more places" if len(found) > PLACES_SHOWN else ""
    first = "check that the host is running, that its run is not over, and that this machine is online"
    advice = "; ".join(filter(None, (first, limits_of(addresses))))
    return f"nobody answers at {', '.join(found[:PLACES_SHOWN])}{more}; {advice}"


def place(address: PeerAddress) -> str:
    """Return host and port as people write them."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
