"""Views for tests of pages: the demo, no network, one peer, strangers whose words are markup."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import FragmentView, HistoryPoint, NetworkView, PeerPoint, PeerView, RunFacts
from dashboard.demo.swarm import DemoSwarm

EPOCH = 1_700_000_000.0
DEMO_SECONDS = 120.0  # virtual: a peer has crashed, a partition has healed, a peer is banned
CROWD_SECONDS = 30.0

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](https://example.org/x.png)",
    ":red[x] :material/home: :smile:",
    "$$\\frac{1}{0}$$",
    "**bold** _it_ `code` ~~no~~",
    "# heading\n- list\n> quote",
    "https://example.org www.example.org a@example.org",
    "|a|b|\n|-|-|",
    "\u202egnp.exe \x1b[31m \u200b&lt;b&gt;",
)
UNTRUSTED = frozenset(
    {
        *("name", "note", "device", "software", "state", "addresses", "team", "reason", "detail", "event", "merge"),
        *("contribution_codec", "sample", "exports"),
    }
)


def demo_view(peers: int, seconds: float) -> NetworkView:
    """Return the demo's view at a virtual time."""
    demo = DemoSwarm(seed=3, count=peers, epoch=EPOCH)
    demo.advance(seconds)
    return demo.view()


def one_peer_view() -> NetworkView:
    """Return a view of a run of one peer that has just begun."""
    points = tuple(PeerPoint(unix_seconds=EPOCH + 5 * n, live=True, steps=n, steps_per_second=0.2) for n in range(4))
    peer = PeerView(peer_id="12D3KooWOnly", name="only me", state="training", steps=3, versions=(0,), history=points)
    return NetworkView(
        run_id="ab" * 32,
        name="alone",
        taken_unix_seconds=EPOCH + 20,
        network_seen_unix_seconds=EPOCH + 20,
        run=RunFacts(versions_target=4, tokens_per_step=8, parameters=100),
        peers=(peer,),
        fragments=(FragmentView(),),
        history=(HistoryPoint(unix_seconds=EPOCH + 20, trained_tokens_per_second=1.6, peers_live=1, bytes_sent=0),),
        evaluations=(Evaluation(versions=0, tokens_certified=0, wall_seconds=0.0, loss=5.5),),
    )


def hostile(view: NetworkView) -> NetworkView:
    """Return the view with markup in place of every word that a stranger can choose, and of one peer's id."""
    count = 0

    def bad(_: str) -> str:
        nonlocal count
        count += 1
        return HOSTILE[count % len(HOSTILE)]

    data = _replaced(view.model_dump(mode="json"), bad)
    victim = view.peers[1].peer_id
    text = NetworkView.model_validate(data).model_dump_json().replace(victim, "<b>12D3KooW")
    return NetworkView.model_validate_json(text)


def _replaced(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, dict):
        if key == "events":
            return {change(name): count for name, count in value.items()}
        kept = ("phases", "certificates")  # nothing in them is free text
        return {name: one if name in kept else _replaced(one, change, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, change, key) for one in value]
    return change(value) if isinstance(value, str) and key in UNTRUSTED else value


@cache
def view_named(name: str) -> NetworkView:
    """Make the view of this name in `MAKERS`; all are a moment old, except the one whose network is gone."""
    return MAKERS[name]()


MAKERS: dict[str, Callable[[], NetworkView]] = {
    "empty": NetworkView,
    "one peer": one_peer_view,
    "demo": lambda: demo_view(12, DEMO_SECONDS),
    "a thousand": lambda: demo_view(1000, CROWD_SECONDS),
    "hostile": lambda: hostile(view_named("demo")),
    "gone": lambda: view_named("demo").model_copy(update={"network_seen_unix_seconds": EPOCH + 80.0, "demo": False}),
}
