"""Is the model getting better, how fast, and at what cost?"""

from __future__ import annotations

import streamlit as st

from coordinator.views import quantity
from dashboard import charts, show
from dashboard.frames import run
from dashboard.source import Source
from dashboard.text import escaped

HELPS = {
    "Goodput": "Certified tokens as a share of what all learners known, live or gone, would train at their last speed.",
    "Utilisation": "Tokens trained by live learners as a share of what all learners known would train.",
    "Not sent": "Against data-parallel training with bfloat16 gradients, computed from the steps that were made.",
    "Time left": "To the last version of the run, at the pace of the last two minutes.",
}


def page(source: Source) -> None:
    """The page."""
    st.header("Run")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        view = seen.view
        show.status(seen)
        if view.run_id:
            st.subheader(escaped(run.headline(view)))
            st.text("\n".join([*run.about(view), run.facts(view)]))
        if alert := run.alert(view):
            st.warning(escaped(alert))
        found = run.figures(view)
        show.figures(_figures(found), HELPS)
        st.subheader("Held-out loss")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            by = st.segmented_control("Against", ["tokens", "time"], default="tokens", key="loss-by")
            log = st.toggle("Log axes", key="loss-log")
        losses = run.loss_rows(view)
        field = "minutes" if by == "time" else "tokens"
        show.chart(losses, charts.loss(field, log), f"loss-{field}-{log}", "Nobody has evaluated the model yet.")
        left, right = st.columns(2)
        with left:
            st.subheader("Speed")
            show.chart(run.rate_rows(view), charts.rates(), "rates")
            st.subheader("Versions per fragment")
            show.chart(run.version_rows(view), charts.versions(), "versions", "No version is certified yet.")
        with right:
            st.subheader("Traffic")
            spec = charts.traffic(run.TRAFFIC_SERIES)
            show.chart(run.traffic_rows(view), spec, "traffic", "No peer tells its traffic.")
            st.subheader("Live peers")
            show.chart(run.peer_rows(view), charts.peers_over_time(), "peers")

    body()


def _figures(found: run.Figures) -> dict[str, str]:
    return {
        "Loss (nats/token)": quantity.loss(found.loss),
        "Versions": f"{quantity.count(found.versions)} of {quantity.count(found.versions_target)}",
        "Certified tokens": quantity.count(found.tokens_certified),
        "Tokens/s certified": quantity.count(found.tokens_per_second),
        "Live peers": f"{found.peers_live} of {found.peers_known}",
        "Goodput": _share(found.goodput),
        "Utilisation": _share(found.utilisation),
        "Time left": "–" if found.seconds_to_target is None else quantity.duration(found.seconds_to_target),
        "Not sent": "–" if found.bytes_not_sent is None else quantity.size(found.bytes_not_sent),
        "Traffic saved": "–" if found.bytes_not_sent_share is None else f"{found.bytes_not_sent_share:.1%}",
    }


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
