"""The pictures of docs/research/results.md, made from kept reports alone, like its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peer.plan.plots import HEIGHT, WIDTH, write
from tests.quality.experiments import ADOPTIONS, CUTS, DELAYS, PACES, PERIODS
from tests.quality.muon_tables import trends
from tests.quality.tables import Reports, best_by_length, loss_of

Point = tuple[str, float, float | None]  # line, x, y; None if a report is missing
LOSS = "held-out loss, nats per byte"


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over one setting."""

    across: str
    up: str
    points: Callable[[Reports], Iterable[Point]]
    logarithmic: bool = False  # of the setting

    def draw(self, reports: Reports, path: Path) -> None:
        """Write the picture, without runs that are missing; writes nothing if all are."""
        import altair

        points = [{"line": line, "x": x, "y": y} for line, x, y in self.points(reports) if y is not None]
        if not points:
            return
        chart = altair.Chart({"values": points}, width=WIDTH, height=HEIGHT).mark_line(point=True)
        up = altair.Y("y:Q", title=self.up, scale=altair.Scale(zero=False))
        colour = altair.Color("line:N", sort=None, title=None)
        scale = altair.Scale(type="log" if self.logarithmic else "linear")
        across = altair.X("x:Q", title=self.across, scale=scale, axis=altair.Axis(grid=not self.logarithmic))
        write(chart.encode(x=across, y=up, color=colour), path)


def losses(lines: Mapping[str, Mapping[float, str]]) -> Callable[[Reports], Iterator[Point]]:
    """Return a source of held-out losses; every line has its reports' names by setting."""

    def points(reports: Reports) -> Iterator[Point]:
        for line, names in lines.items():
            for x, name in names.items():
                yield line, x, loss_of(reports.get(name))

    return points


def late(group: str) -> Plot:
    """Return a plot of loss over lateness, with a line per adoption rule."""
    lines = {rule: {float(delay): f"{group}-{name}-{delay}" for delay in DELAYS} for rule, name in ADOPTIONS.items()}
    return Plot("steps from a snapshot to its adoption", LOSS, losses(lines))


def lengths(reports: Reports) -> Iterator[Point]:
    """Yield the ratio of both methods, best against best, as runs grow by larger steps or by more steps."""
    for (steps, tokens), (ours, theirs) in best_by_length(reports).items():
        ratio = None if ours is None or theirs is None else ours / theirs
        if steps == 480:
            yield "by larger steps", steps * tokens / 1e6, ratio
        if tokens == 3072:
            yield "by more steps", steps * tokens / 1e6, ratio


def sizes(reports: Reports) -> Iterator[Point]:
    """Yield the quotient of Muon's losses with merges and data-parallel, by million parameters."""
    for line, gaps in trends(reports).items():
        for size, gap in gaps.items():
            yield line, size, 1 + gap


PLOTS: Mapping[str, Plot] = {
    "period": Plot(
        "H, steps between two versions of a fragment",
        LOSS,
        losses({f"P = {cuts}": {float(h): f"pace-h{h}-p{p}" for h, p in PACES if p == cuts} for cuts in CUTS}),
    ),
    "fragments": Plot(
        "P, fragments",
        LOSS,
        losses({f"H = {period}": {float(p): f"pace-h{h}-p{p}" for h, p in PACES if h == period} for period in PERIODS}),
    ),
    "adoption": late("adoption"),
    "adoption-shipped": late("adoption-shipped"),
    "lengths": Plot("million tokens of a learner", "loss over data-parallel's", lengths),
    "sizes": Plot("million parameters", "loss over data-parallel Muon's", sizes, logarithmic=True),
}
