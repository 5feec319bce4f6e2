"""A lab run with its baselines, from options to report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dht.errors import UsageError
from peer.data.tally import Loading
from peer.data.windows import LOADING, load_tokens
from peer.lab.baseline import BaselinePlan, Method, best_of, elastic_schedule, full_schedule, train_jointly
from peer.lab.laboratory import Laboratory
from peer.lab.options import LabOptions
from peer.lab.report import Baseline, CurvePoint, LabReport
from peer.lab.summary import report_of
from peer.learner.memory_estimate import available_bytes
from peer.model.description import describe
from peer.model.located import located
from peer.rounds.tape import TapeWriter, keep_no_tape

Show = Callable[[str, int, list[CurvePoint]], None]
"""Called with the name of a run (the lab, or a baseline with its rate), its step, and new points of its curve."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The baselines to train, each at every one of these rates."""

    methods: tuple[Method, ...]
    learning_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 < rate <= 10 for rate in self.learning_rates):
            raise UsageError("--dp-lr takes rates above 0, as in --dp-lr 1e-3,2e-3")


def run_session(
    options: LabOptions, compared: Comparisons, show: Show, tape: Path | None = None, loading: Loading = LOADING
) -> LabReport:
    """Run the lab and its baselines; `loading` says how text becomes tokens before the first step.

    Raises UsageError if the options do not go together.
    """
    if "elastic" in compared.methods and options.failures is None:
        raise UsageError("--compare elastic is about failures: give --failures too")
    started = time.perf_counter(), time.process_time()
    described = describe(options.config, available_bytes("cpu"))
    if described.note:
        loading.tell(described.note, None)
    files = replace(described.files, cache=options.cache)
    options = replace(options, config=located(described.config, files.base), files=files)
    data = load_tokens(options.config.data, options.config.model.vocabulary, files, loading=loading)
    if data.note:
        loading.tell(f"of your text: {data.note}", None)
    with ExitStack() as stack:
        record = keep_no_tape if tape is None else stack.enter_context(TapeWriter(tape)).write
        lab = stack.enter_context(Laboratory(options, data, record, described.values))
        if lab.context.compiling:
            loading.tell(f"steps {lab.context.compiling}", None)
        shown = 0

        def show_lab(step: int) -> None:
            nonlocal shown
            show("lab", step, lab.curve[shown:])
            shown = len(lab.curve)

        lab.run(show_lab)
        used = time.perf_counter() - started[0], time.process_time() - started[1]
        baselines, curves = _compare(lab, compared, show)
        return report_of(lab, used, baselines, curves)


def _compare(lab: Laboratory, compared: Comparisons, show: Show) -> tuple[Mapping[str, Baseline], list[CurvePoint]]:
    """Train all baselines at all rates, as many at once as there are threads."""
    running: dict[Method, tuple[BaselinePlan, list[Future[list[CurvePoint]]]]] = {}
    for method in compared.methods:
        plan = _plan(lab, method)
        running[method] = (
            plan,
            [
                lab.pool.submit(train_jointly, plan, rate, partial(show, f"{method} {rate:g}"))
                for rate in compared.learning_rates
            ],
        )
    baselines: dict[str, Baseline] = {}
    points: list[CurvePoint] = []
    for method, (plan, futures) in running.items():
        curves = [future.result() for future in futures]
        baselines[method] = best_of(plan, curves)
        points += [point for curve in curves for point in curve]
    return baselines, points


def _plan(lab: Laboratory, method: Method) -> BaselinePlan:
    options = lab.options
    founders = lab.world.peers[: options.learners]
    return BaselinePlan(
        method=method,
        config=options.config,
        start=tuple(state.anchor for state in lab.context.genesis),
        sources=[lab.draws(peer.me) for peer in founders],
        heldout=lab.heldout,
        device=options.device,
        compiled=lab.context.compiles,
        schedule=(
            elastic_schedule(lab.absences[: options.learners], options.steps)
            if method == "elastic"
            else full_schedule(options.learners, options.steps)
        ),
        steps=options.steps,
        eval_every_steps=options.eval_every_steps,
    )
