"""Plots Muster's speed over data-parallel's against step time: `python -m tests.bench.links.plot REPORT SVG`.

Points are measured. The curves are drawn through those at one step time. They assume that the seconds of a gradient and
Muster's share of its ideal stay the same, and that data-parallel hides as much of the gradient as its buckets can.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.links.__main__ import BUCKETS, CONFIG, PEERS, STEP_KINDS
from tests.bench.links.data_parallel import FORWARD_SHARE

WIDTH, HEIGHT, MARGIN, LEGEND = 760, 460, 56, 130
STEP_SECONDS = (0.25, 16.0)
RATIOS = (0.5, 500.0)
COLOURS = {1e9: "#4c78a8", 1e8: "#54a24b", 2e7: "#f58518", 5e6: "#e45756"}
DASHES = {"float32": "", "bfloat16": ' stroke-dasharray="5 4"'}
SAMPLES = 60

Lines = list[dict[str, Any]]


def main(report: Path, picture: Path) -> None:
    picture.write_text("\n".join(svg([json.loads(line) for line in report.read_text().splitlines()])) + "\n")


def svg(lines: Lines) -> Iterator[str]:
    size, font = f'viewBox="0 0 {WIDTH} {HEIGHT}"', 'font-family="sans-serif" font-size="12"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    yield from grid()
    for row, (speed, gradients) in enumerate((speed, kind) for speed in COLOURS for kind in STEP_KINDS):
        points = sorted(measured(lines, speed, gradients))
        if not points:
            continue
        stroke = f'stroke="{COLOURS[speed]}" stroke-width="2"{DASHES[gradients]}'
        where = " ".join(f"{x(step):.1f},{y(ratio):.1f}" for step, ratio in curve(lines, speed, gradients))
        yield f'<polyline points="{where}" fill="none" {stroke}/>'
        for step, ratio in points:
            yield f'<circle cx="{x(step):.1f}" cy="{y(ratio):.1f}" r="4" fill="{COLOURS[speed]}"/>'
        top = MARGIN + 18 * row
        yield f'<line x1="{WIDTH - LEGEND}" x2="{WIDTH - LEGEND + 24}" y1="{top}" y2="{top}" {stroke}/>'
        name = {"float32": "fp32", "bfloat16": "bf16"}[gradients]
        yield f'<text x="{WIDTH - LEGEND + 30}" y="{top + 4}">{speed / 1e6:g} Mbit/s, {name}</text>'
    yield "</svg>"


def grid() -> Iterator[str]:
    bottom, right = HEIGHT - MARGIN, WIDTH - LEGEND - 20
    for step in (0.25, 0.5, 1, 2, 4, 8, 16):
        yield f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{MARGIN}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x(step):.1f}" y="{bottom + 18}" text-anchor="middle">{step:g}</text>'
    for ratio in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500):
        yield f'<line x1="{MARGIN}" x2="{right}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" stroke="#ddd"/>'
        yield f'<text x="{MARGIN - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:g}</text>'
    middle = f'x="{(MARGIN + right) / 2}" text-anchor="middle"'
    yield f'<text {middle} y="{HEIGHT - 16}">seconds of computation per step</text>'
    yield f'<text x="{MARGIN}" y="{MARGIN - 24}">certified tokens per second, times those of data-parallel</text>'


def measured(lines: Lines, speed: float, gradients: str) -> Iterator[tuple[float, float]]:
    """Yield step time and ratio, wherever both methods were measured."""
    for other in of(lines, speed, gradients):
        for own in of(lines, speed, "muster"):
            if own["step_seconds"] == other["step_seconds"]:
                yield own["step_seconds"], own["tokens_per_second"] / other["tokens_per_second"]


def curve(lines: Lines, speed: float, gradients: str) -> Iterator[tuple[float, float]]:
    """Yield a curve through the first measured point. Buckets wait for their part of backward; the last hides none."""
    other = next(of(lines, speed, gradients))
    own = next(of(lines, speed, "muster"))
    ideal = PEERS * CONFIG.tokens_per_step / own["step_seconds"]
    first_at = FORWARD_SHARE + (1 - FORWARD_SHARE) / BUCKETS
    sent_seconds = min(
        other["seconds_per_step"] - first_at * other["step_seconds"],
        BUCKETS * (other["seconds_per_step"] - other["step_seconds"]),
    )
    for sample in range(SAMPLES + 1):
        step = STEP_SECONDS[0] * (STEP_SECONDS[1] / STEP_SECONDS[0]) ** (sample / SAMPLES)
        taken = max(first_at * step + sent_seconds, step + sent_seconds / BUCKETS)
        yield step, own["tokens_per_second"] / ideal * taken / step


def of(lines: Lines, speed: float, method: str) -> Iterator[dict[str, Any]]:
    return (line for line in lines if line["bits_per_second"] == speed and line["method"] == method)


def x(step_seconds: float) -> float:
    return MARGIN + _share(step_seconds, STEP_SECONDS) * (WIDTH - LEGEND - 20 - MARGIN)


def y(ratio: float) -> float:
    return HEIGHT - MARGIN - _share(min(max(ratio, RATIOS[0]), RATIOS[1]), RATIOS) * (HEIGHT - 2 * MARGIN)


def _share(value: float, span: tuple[float, float]) -> float:
    return math.log(value / span[0]) / math.log(span[1] / span[0])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
