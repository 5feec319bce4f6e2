"""The charts, as Vega-Lite specifications without data.

While a specification stays the same, the browser keeps the chart and only exchanges its data, so nothing flickers. Vega
draws text on a canvas and escapes tooltips, so peers' words stay text. Colours are legible on light and dark.
"""

from __future__ import annotations

from typing import Any

from coordinator.views.network_view import PHASES
from dashboard.frames.network import BANNED, FINISHED, GONE, IN_ROUND, KINDS, LEAVING

Spec = dict[str, Any]

KIND_COLOURS = {
    "training": "#2f9e6e",
    IN_ROUND: "#f0a020",
    "catching up": "#4a90e2",
    "paused": "#9aa0a8",
    "hosting": "#8f6bd8",
    FINISHED: "#86c98e",
    LEAVING: "#6f7680",
    GONE: "#c3c7cd",
    BANNED: "#d64545",
    "unknown": "#77706a",
}
PHASE_COLOURS = ("#9aa0a8", "#c3c7cd", "#4a90e2", "#6db3f2", "#2f9e6e", "#86c98e", "#f0a020", "#d9663d", "#8f6bd8")
FIRST, SECOND = "#4a90e2", "#2f9e6e"
PEER_COLOURS = ("#4a90e2", "#2f9e6e", "#f0a020", "#8f6bd8", "#d9663d", "#6db3f2", "#86c98e", "#9aa0a8")
EDGE_COLOURS = {"running": "#f0a020", "certified": "#2f9e6e", "void": "#d64545"}
TIME_FORMATS = {  # by the smallest unit that a label needs
    **dict.fromkeys(("milliseconds", "seconds"), "%H:%M:%S"),
    **dict.fromkeys(("minutes", "hours"), "%H:%M"),
    **dict.fromkeys(("day", "date", "week", "month", "quarter"), "%d %b"),
    "year": "%Y",
}
LABEL = "abs(datum.value) < 1 ? format(datum.value, '~r') : datum.label"  # 0 and 0.25, not 0k and 250m
HEIGHT = 260
LOSS_HEIGHT = 340
GRAPH_HEIGHT = 460
LABELS = (  # a node's place, then the alignment and offset of its name
    ("datum.x > 0.6", "left", 12, 0),
    ("datum.x < -0.6", "right", -12, 0),
    ("abs(datum.x) <= 0.6 && datum.y >= 0", "center", 0, -16),
    ("abs(datum.x) <= 0.6 && datum.y < 0", "center", 0, 18),
)
GANTT_ROW = 20
AXIS_SPACE = 60
LEGEND_SPACE = 70
PEERS_SPACE = 150  # a legend of eight, one below the other


def line(x: Spec, y: Spec, colour: Spec | None = None, step: bool = False) -> Spec:
    """Return a chart of one curve, or of several with a legend above if `colour` names a field."""
    mark: Spec = {"type": "line", "interpolate": "step-after" if step else "linear", "tooltip": True}
    encoding: Spec = {"x": x, "y": y, "color": colour or {"value": FIRST}}
    return {"height": HEIGHT, "mark": mark, "encoding": encoding}


def quantity(field: str, title: str, log: bool = False, zero: bool = True) -> Spec:
    """Return an axis of numbers; `title` says the unit."""
    scale: Spec = {"type": "log"} if log else {"zero": zero}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": "~s", "tickCount": 6, "labelExpr": LABEL},
    }


def positive(*fields: str) -> Spec:
    """Leave out rows without a place on a log axis: a single 0 spoils the whole scale."""
    return {"transform": [{"filter": " && ".join(f"datum.{field} > 0" for field in fields)}]}


def clock(field: str = "time") -> Spec:
    """Return an axis of local time, whose labels are complete by themselves."""
    axis = {"format": TIME_FORMATS, "tickCount": 5, "labelOverlap": True, "labelBound": True}
    return {"field": field, "type": "temporal", "title": "local time", "axis": axis}


def series(names: tuple[str, ...], colours: tuple[str, ...]) -> Spec:
    """Return colours by name, with a legend above the chart."""
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(colours)},
        "legend": {"orient": "top", "title": None, "labelLimit": 0, "columns": 1},
    }


def loss(by: str, log: bool) -> Spec:
    """Return a chart of held-out loss against tokens or time."""
    titles = {"tokens": "tokens trained and certified", "minutes": "minutes since the run began"}
    x, y = quantity(by, titles[by], log), quantity("loss", "loss (nats per token)", log, zero=False)
    y["axis"] = {"format": ".2f"}
    spec = line(x, y) | {"height": LOSS_HEIGHT, **(positive(by, "loss") if log else {})}
    spec["mark"] |= {"point": {"filled": True, "size": 20}}
    return spec


def rates() -> Spec:
    """Return a chart of tokens per second over time."""
    y = quantity("tokens_per_second", "tokens per second")
    return line(clock(), y, series(("trained", "certified"), (FIRST, SECOND))) | {"height": HEIGHT + LEGEND_SPACE}


def traffic(names: tuple[str, ...]) -> Spec:
    """Return a chart of bytes sent over time; its series differ by orders of magnitude, so the axis is logarithmic."""
    y = quantity("bytes", "bytes sent (log)", log=True) | {"axis": {"format": "~s", "tickCount": 5}}
    spec = line(clock(), y, series(names, ("#9aa0a8", SECOND)))
    return spec | positive("bytes") | {"height": HEIGHT + LEGEND_SPACE}


def peers_over_time() -> Spec:
    """Return a chart of the number of live peers over time."""
    y = quantity("peers", "live machines") | {"axis": {"format": "d", "tickMinStep": 1}}
    return line(clock(), y, step=True)


def versions() -> Spec:
    """Return a chart of the newest version of each fragment."""
    return {
        "height": HEIGHT,
        "mark": {"type": "bar", "color": FIRST, "cornerRadiusEnd": 2},
        "encoding": {
            "x": {"field": "fragment", "type": "ordinal", "title": "fragment", "axis": {"labelAngle": 0}},
            "y": quantity("version", "certified version") | {"axis": {"format": "d", "tickMinStep": 1}},
            "tooltip": [
                {"field": "fragment"},
                {"field": "version"},
                {"field": "age_seconds", "title": "age (seconds)", "format": ".0f", "type": "quantitative"},
            ],
        },
    }


def graph() -> Spec:
    """Return a picture of peers as points, and of recent groups as lines from their leaders."""
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-1.5, 1.5]}}
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": {"domain": [-1.15, 1.15]}}
    edge_scale = {"domain": list(EDGE_COLOURS), "range": list(EDGE_COLOURS.values())}
    node_scale = {"domain": list(KINDS), "range": [KIND_COLOURS[kind] for kind in KINDS]}
    edges = {
        "transform": [{"filter": "datum.part === 'edge'"}],
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": y,
            "x2": {"field": "x2"},
            "y2": {"field": "y2"},
            "color": {"field": "kind", "type": "nominal", "scale": edge_scale, "legend": None},
            "tooltip": [{"field": "round"}, {"field": "leader"}, {"field": "kind", "title": "outcome"}],
        },
    }
    nodes = {
        "transform": [{"filter": "datum.part === 'node'"}],
        "mark": {"type": "circle", "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "size": {"condition": {"test": f"datum.kind === '{IN_ROUND}'", "value": 260}, "value": 120},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": node_scale,
                "legend": {"title": None, "orient": "bottom", "columns": 3},
            },
            "tooltip": [{"field": "peer"}, {"field": "state"}, {"field": "device"}],
        },
    }
    words = [  # outside the ring, where the fewest lines are
        {
            "transform": [{"filter": f"datum.part === 'node' && datum.name !== '' && {where}"}],
            "mark": {"type": "text", "align": align, "dx": dx, "dy": dy, "fontSize": 11, "color": "#808690"},
            "encoding": {"x": x, "y": y, "text": {"field": "name"}},
        }
        for where, align, dx, dy in LABELS
    ]
    return {
        "height": GRAPH_HEIGHT,
        "layer": [edges, nodes, *words],
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": {"view": {"stroke": None}},
    }


def gantt(rounds: int) -> Spec:
    """Return a timeline with a row for each round and a bar for each phase."""
    rows = {
        "field": "round",
        "type": "nominal",
        "sort": {"field": "order"},
        "title": "fragment and version",
        "axis": {"labelOverlap": False, "labelBound": False, "labelFlush": False},
    }
    bars = {
        "mark": {"type": "bar", "height": GANTT_ROW - 7},
        "encoding": {
            "y": rows,
            "x": clock("start"),
            "x2": {"field": "end"},
            "color": {
                "field": "phase",
                "type": "nominal",
                "scale": {"domain": list(PHASES), "range": list(PHASE_COLOURS)},
                "legend": {"orient": "top", "title": None, "columns": 3},
            },
            "tooltip": [
                {"field": "round"},
                {"field": "phase"},
                {"field": "seconds", "format": ".2f", "type": "quantitative"},
                {"field": "outcome"},
                {"field": "why"},
                {"field": "leader"},
                {"field": "members"},
                {"field": "late"},
            ],
        },
    }
    marks = {
        "mark": {"type": "text", "align": "left", "dx": 6, "color": "#d64545", "fontSize": 11},
        "encoding": {"y": rows, "x": {"field": "end", "type": "temporal"}, "text": {"field": "mark"}},
    }
    return {"height": rounds * GANTT_ROW + AXIS_SPACE + LEGEND_SPACE, "layer": [bars, marks]}


def latency() -> Spec:
    """Return a chart of the median and 95th percentile of each phase."""
    phase = {"field": "phase", "type": "nominal", "sort": {"field": "order"}, "title": "phase"}
    tooltip = [
        {"field": "phase"},
        {"field": "median", "title": "median (s)", "format": ".2f", "type": "quantitative"},
        {"field": "p95", "title": "95th percentile (s)", "format": ".2f", "type": "quantitative"},
        {"field": "rounds"},
    ]
    x = quantity("median", "seconds: median (bar), 95th percentile (mark)") | {
        "axis": {"format": ".1f", "tickCount": 5}
    }
    bars = {"mark": {"type": "bar", "color": FIRST}, "encoding": {"y": phase, "x": x, "tooltip": tooltip}}
    ticks = {
        "mark": {"type": "tick", "color": "#d9663d", "thickness": 3},
        "encoding": {"y": phase, "x": {"field": "p95", "type": "quantitative"}, "tooltip": tooltip},
    }
    return {"height": len(PHASES) * 24 + AXIS_SPACE, "layer": [bars, ticks]}


def by_peer() -> Spec:
    """Return colours by peer, with a legend below the chart."""
    return {
        "field": "peer",
        "type": "nominal",
        "scale": {"range": list(PEER_COLOURS)},
        "legend": {"orient": "bottom", "title": None, "columns": 1, "labelLimit": 240},  # one column fits a telephone
    }


def credit_history() -> Spec:
    """Return a chart of the top contributors' certified tokens over time."""
    return line(clock(), quantity("tokens", "certified tokens"), by_peer()) | {"height": HEIGHT + PEERS_SPACE}


def teams() -> Spec:
    """Return a chart of certified tokens by team."""
    return {
        "mark": {"type": "bar", "color": FIRST, "tooltip": True},
        "encoding": {
            "y": {"field": "team", "type": "nominal", "sort": "-x", "title": "team"},
            "x": quantity("tokens", "certified tokens"),
        },
    }


def peer_history(field: str, title: str, zero: bool = True) -> Spec:
    """Return a chart of one figure of one peer over time."""
    return line(clock(), quantity(field, title, zero=zero), step=field == "versions")


def credit_days() -> Spec:
    """Return a chart of the top contributors' certified tokens by day."""
    day = {
        "field": "day",
        "type": "ordinal",
        "sort": {"field": "order"},
        "title": "day (UTC)",
        "axis": {"labelAngle": 0},
    }
    return {
        "height": HEIGHT + PEERS_SPACE,
        "mark": {"type": "bar", "tooltip": True, "size": 48},
        "encoding": {"x": day, "y": quantity("tokens", "certified tokens"), "color": by_peer()},
    }
