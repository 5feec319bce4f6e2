"""The page about the run: loss, time left and how to join; more figures on request."""

from __future__ import annotations

import streamlit as st

from coordinator.views import quantity
from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX, NetworkView
from dashboard import charts, show
from dashboard.frames import run
from dashboard.source import Source
from dashboard.text import escaped, paragraph

HELPS = {
    "Loss": "On text that nobody trains on, in nats per token: lower is better.",
    "Tokens": "In certified versions: a group of machines has merged and signed them.",
    "Time left": "To the last version of the run, at the pace of the last two minutes.",
    "Goodput": "Certified tokens as a share of what all learners known, live or gone, would train at their last speed.",
    "Utilisation": "Tokens trained by live learners as a share of what all learners known would train.",
    "Not sent": "Against data-parallel training with bfloat16 gradients, computed from the steps that were made.",
}


def page(source: Source) -> None:
    """Draw the page."""
    st.header("Run")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        view = seen.view
        show.status(seen)
        if view.run_id:
            st.text("\n".join(run.about(view)))
            st.subheader(escaped(run.headline(view), SENTENCE_CHARACTERS_MAX))
        found = run.figures(view)
        show.figures(_figures(view, found), HELPS)
        _loss(view)
        _sample(view)
        _joining(view)
        if st.toggle("More figures", key="run-more"):
            show.figures(_more_figures(view, found), HELPS)
            st.text(run.facts(view))
            _more_charts(view)

    body()


def _loss(view: NetworkView) -> None:
    st.subheader("Loss on text that nobody trains on")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by = st.segmented_control("Against", ["tokens", "time"], default="tokens", key="loss-by")
        log = st.toggle("Log axes", key="loss-log")
    field = "minutes" if by == "time" else "tokens"
    losses = run.loss_rows(view)
    drawn = losses if len(losses) > 1 else []  # a single point has no axes
    show.chart(drawn, charts.loss(field, log), f"loss-{field}-{log}", "Nobody has tested the model twice yet.")
    if drawn:
        st.text(run.HOW_TESTED)


def _sample(view: NetworkView) -> None:
    if view.sample:
        st.subheader("What it writes" if view.finished else "What it writes now")
        with st.container(border=True):
            st.text(paragraph(view.sample))


def _joining(view: NetworkView) -> None:
    if not view.run_id:
        return
    st.subheader("Take part")
    with st.container(border=True):
        st.text(run.joining(view))
        if not view.finished:
            st.code("muster doctor INVITE\nmuster join INVITE", language=None)


def _more_charts(view: NetworkView) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("Speed")
        show.chart(run.rate_rows(view), charts.rates(), "rates")
        st.subheader("Versions per fragment")
        show.chart(run.version_rows(view), charts.versions(), "versions", "No version is certified yet.")
    with right:
        st.subheader("Traffic")
        show.chart(run.traffic_rows(view), charts.traffic(run.TRAFFIC_SERIES), "traffic", "No peer tells its traffic.")
        st.subheader("Live machines")
        show.chart(run.peer_rows(view), charts.peers_over_time(), "peers")


def _figures(view: NetworkView, found: run.Figures) -> dict[str, str]:
    versions = min(found.versions, found.versions_target)  # rounds running at the end may make a few more
    whole = {
        "Loss": quantity.loss(found.loss),
        "Versions": f"{quantity.count(versions)} of {quantity.count(found.versions_target)}",
        "Tokens": quantity.count(found.tokens_certified),
    }
    if view.finished:  # then nothing moves
        return {**whole, "Contributors": quantity.count(len(view.credit))}
    return {
        **whole,
        "Tokens per second": quantity.count(found.tokens_per_second),
        "Live machines": f"{found.peers_live} of {found.peers_known}",
        "Time left": "–" if found.seconds_to_target is None else quantity.rough(found.seconds_to_target),
    }


def _more_figures(view: NetworkView, found: run.Figures) -> dict[str, str]:
    rates = {"Goodput": _share(found.goodput), "Utilisation": _share(found.utilisation)}
    return {
        **({} if view.finished else rates),  # of the last two minutes
        "Not sent": "–" if found.bytes_not_sent is None else quantity.size(found.bytes_not_sent),
        "Traffic saved": "–" if found.bytes_not_sent_share is None else f"{found.bytes_not_sent_share:.1%}",
    }


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
