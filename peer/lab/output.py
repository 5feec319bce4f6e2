"""Files that a lab run writes beside its report."""

from __future__ import annotations

import math
from pathlib import Path

from dht.errors import LocalError
from peer.lab.report import LabReport
from peer.plan.plots import write


def write_curve(report: LabReport, path: Path) -> None:
    """Write every evaluation of the lab and its baselines, one JSON object per line; raises LocalError."""
    try:
        path.write_text("".join(point.model_dump_json() + "\n" for point in report.curve), encoding="utf-8")
    except OSError as error:
        raise LocalError(f"nothing can be written to {path}: {error.strerror}") from None


def write_plot(report: LabReport, path: Path) -> None:
    """Plot held-out loss against time in steps, one line per method and rate; raises LocalError.

    A web page (.html) contains the numbers and loads its drawing script from the web; a picture (.png) needs nothing.
    Raises UsageError for another format.
    """
    import altair

    rows = [
        {"step": point.step, "held-out loss (nats)": point.eval_loss, "run": f"{point.method} {point.inner_lr:g}"}
        for point in report.curve
        if math.isfinite(point.eval_loss)  # a diverged run ends at its last finite loss
    ]
    chart = (
        altair.Chart({"values": rows}, width=720, height=420)
        .mark_line(point=True)
        .encode(
            x="step:Q", y=altair.Y("held-out loss (nats):Q", scale=altair.Scale(zero=False, type="log")), color="run:N"
        )
    )
    write(chart, path)
