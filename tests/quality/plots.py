"""The pictures of docs/results.md, from kept reports alone, as its tables are: one line for each row of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peer.plan.plots import HEIGHT, WIDTH, write
from tests.quality.experiments import ADOPTIONS, CUTS, DELAYS, PACES, PERIODS
from tests.quality.tables import Reports, loss_of


@dataclass(frozen=True, slots=True)
class Plot:
    """Held-out loss over one setting; every line has the names of its reports by that setting."""

    across: str
    lines: Mapping[str, Mapping[float, str]]

    def draw(self, reports: Reports, path: Path) -> None:
        """Write the picture; what has not been run is left out, and there is none of nothing."""
        import altair

        points = [
            {"line": line, "x": x, "loss": loss}
            for line, names in self.lines.items()
            for x, name in names.items()
            if (loss := loss_of(reports.get(name))) is not None
        ]
        if not points:
            return
        chart = altair.Chart({"values": points}, width=WIDTH, height=HEIGHT).mark_line(point=True)
        loss_axis = altair.Y("loss:Q", title="held-out loss, nats per byte", scale=altair.Scale(zero=False))
        colour = altair.Color("line:N", sort=None, title=None)
        write(chart.encode(x=altair.X("x:Q", title=self.across), y=loss_axis, color=colour), path)


PLOTS: Mapping[str, Plot] = {
    "period": Plot(
        "H, steps between two versions of a fragment",
        {f"P = {cuts}": {float(h): f"pace-h{h}-p{p}" for h, p in PACES if p == cuts} for cuts in CUTS},
    ),
    "fragments": Plot(
        "P, fragments",
        {f"H = {period}": {float(p): f"pace-h{h}-p{p}" for h, p in PACES if h == period} for period in PERIODS},
    ),
    "adoption": Plot(
        "steps from a snapshot to its adoption",
        {rule: {float(delay): f"adoption-{name}-{delay}" for delay in DELAYS} for rule, name in ADOPTIONS.items()},
    ),
}
