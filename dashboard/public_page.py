"""The public page about a run: one HTML file without scripts, safe to put on any web server.

It holds the run's description, progress, loss and contributors, and how to join. It has no addresses or notes of
peers. All text by strangers is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from coordinator.views import quantity
from coordinator.views.network_view import CreditView, NetworkView
from dashboard.frames import run
from dashboard.text import plain, short_id

CONTRIBUTORS_SHOWN = 50
REFRESH_SECONDS = 60
WIDTH, HEIGHT, MARGIN = 640, 260, 56
SOURCE = "https://github.com/musterml/muster"
STYLE = """
:root { color-scheme: light dark; --line: #2f9e6e; --dim: #808080; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2rem; font-size: 1.15rem; }
.headline { font-size: 1.2rem; } .alert { border-left: 4px solid #d08020; padding-left: .7rem; }
.dim { color: var(--dim); font-size: .9rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .5rem .25rem 0; }
.id { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
@media (max-width: 500px) { svg text { font-size: 20px; } }
pre { overflow-x: auto; padding: .7rem; border: 1px solid var(--dim); border-radius: 6px; }
"""


def page(view: NetworkView) -> str:
    """Return the whole page as HTML."""
    title = next((text for label, text in view.run.about if label == "about"), view.name)
    name = _text(title) or "A run"
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="headline">{_text(run.headline(view), 300)}</p>' if view.run_id else "<p>Nothing is known yet.</p>",
        f'<p class="alert">{_text(run.alert(view), 300)}</p>' if run.alert(view) else "",
        *(f"<p>{escape(line)}</p>" for line in run.about(view, titled=False)),
        f'<p class="dim">{quantity.count(view.run.parameters)} parameters</p>' if view.run.parameters else "",
        "<h2>Loss on text that nobody trains on</h2>",
        '<p class="dim">In nats per token, against tokens trained and certified; lower is better. '
        f"{run.HOW_TESTED}</p>",
        loss_chart([(one.tokens_certified, one.loss) for one in view.evaluations]),
        "<h2>Contributors</h2>",
        _contributors(view.credit, view),
        "<h2>Take part</h2>",
        _joining(view),
        f'<p class="dim">As of {_moment(view.taken_unix_seconds)}. Trained with <a href="{SOURCE}">Muster</a>.</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
        f"<title>{name}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def loss_chart(points: Sequence[tuple[int, float]]) -> str:
    """Return a chart of loss against certified tokens as SVG."""
    if len(points) < 2:
        return '<p class="dim">Nobody has evaluated the model twice yet.</p>'
    tokens, losses = [one for one, _ in points], [one for _, one in points]
    most, low, high = max(tokens) or 1, min(losses), max(losses)
    span = (high - low) or 1.0

    def place(token: float, loss: float) -> tuple[float, float]:
        across = MARGIN + token / most * (WIDTH - MARGIN - 8)
        return across, 8 + (high - loss) / span * (HEIGHT - MARGIN)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*one) for one in points))
    left, bottom = MARGIN, 8 + HEIGHT - MARGIN
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="held-out loss over certified tokens">'
        f'<path d="M{left} 8V{bottom}H{WIDTH - 8}" fill="none" stroke="var(--dim)"/>'
        f'<polyline points="{line}" fill="none" stroke="var(--line)" stroke-width="2"/>'
        f'<text x="{left - 6}" y="16" text-anchor="end">{high:.2f}</text>'
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{low:.2f}</text>'
        f'<text x="{left}" y="{bottom + 18}">0</text>'
        f'<text x="{WIDTH - 8}" y="{bottom + 18}" text-anchor="end">{quantity.count(most)} tokens</text></svg>'
    )


def _contributors(credit: Sequence[CreditView], view: NetworkView) -> str:
    total = sum(one.tokens for one in credit)
    if not total:
        return '<p class="dim">No work is certified yet.</p>'
    names = {peer.peer_id: peer.name for peer in view.peers}
    rows = [
        f"<tr><td>{_text(one.name or names.get(one.peer_id, ''), 40)} "
        f'<span class="id">{escape(short_id(one.peer_id))}</span></td>'
        f"<td>{_text(one.team, 40)}</td>"
        f'<td class="number">{quantity.count(one.tokens)}</td><td class="number">{one.tokens / total:.1%}</td></tr>'
        for one in credit[:CONTRIBUTORS_SHOWN]
    ]
    more = len(credit) - CONTRIBUTORS_SHOWN
    head = '<tr><th>Who</th><th>Team</th><th class="number">Tokens</th><th class="number">Share</th></tr>'
    rest = f'<p class="dim">and {more} others</p>' if more > 0 else ""
    return f"<table>{head}{''.join(rows)}</table>{rest}"


def _joining(view: NetworkView) -> str:
    told = f"<p>{_text(run.joining(view), 300)}</p>"
    if view.finished:
        return told
    steps = "<pre>muster doctor INVITE\nmuster join INVITE</pre>"
    return f"{told}{steps}<p>How to get the command muster: <a href='{SOURCE}'>Muster</a>.</p>"


def _moment(unix_seconds: float) -> str:
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _text(text: str, characters_max: int = 120) -> str:
    return escape(plain(text, characters_max))
