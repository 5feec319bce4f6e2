"""`muster lab`: try a run with many virtual learners before inviting anybody."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from coordinator.run.changes import parse_settings
from coordinator.run.manifest import LAB
from coordinator.run.toml_file import parse_toml, read_run_file
from coordinator.run.validation_errors import nearest
from dht.errors import UsageError
from peer.cli import arguments
from peer.cli.common import Compiled, Track
from peer.cli.progress import drawn, loading, shown
from peer.machine import paths
from peer.machine.clock import unix_seconds
from peer.service.trackers import tracking

if TYPE_CHECKING:
    from peer.lab.options import LabOptions
    from peer.lab.report import LabReport
    from peer.lab.session import Comparisons

app = typer.Typer()

LIST_CHARACTERS = 100  # the width of a line of names


class Reunion(StrEnum):
    """What happens to the versions that the losing side of a partition certified."""

    carry = "carry"
    drop = "drop"
    uncut = "uncut"


class Comparison(StrEnum):
    """A data-parallel baseline to train for comparison."""

    dp = "dp"
    elastic = "elastic"


CONFIG_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "seed": "seed",
        "base": "model.source",
        "merge": "outer.merge",
        "norms": "outer.norms",
        "error_feedback": "outer.error_feedback",
        "optimizer": "inner.optimizer",
        "inner_lr": "inner.learning_rate",
        "outer_lr": "outer.learning_rate",
        "outer_momentum": "outer.momentum",
        "moment_correction": "outer.moment_correction",
        "fragments": "pace.fragments",
        "period": "pace.steps_per_version",
        "overlap": "pace.overlap",
        "quorum": "pace.quorum",
        "grace": "pace.grace_share",
        "min_share": "pace.min_share",
    }
)
"""Options that replace one key of the run file."""

_KEYS_TOO = {"period": "steps_per_version", "grace": "grace_share"}  # the run file's names of these options
NOT_IN_FILES = frozenset({"config", "file", "list_names", "no_ui", "replay", "settings"})


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of the run file's `[lab]` the defaults of options; raises UsageError for an unknown key."""
    if path is None:
        return None
    options = {one.name: one for one in context.command.params if one.name not in NOT_IN_FILES}
    options |= {key: options[name] for name, key in _KEYS_TOO.items()}
    said = parse_toml(read_run_file(path), str(path)).get(LAB, {})
    if not isinstance(said, dict):
        raise UsageError(f"{path}: {LAB} is a table of options, [{LAB}]")
    if unknown := said.keys() - options.keys():
        raise UsageError(f"{path}: {LAB}.{min(unknown)} is no option of `muster lab`{nearest(min(unknown), options)}")
    context.default_map = {
        options[name].name: [value] if options[name].multiple and not isinstance(value, list) else value
        for name, value in said.items()
    }
    return path


Config = Annotated[
    Path | None,
    typer.Argument(
        help="Run file (TOML), which may hold these options in [lab]; without one, the tiny run that ships here.",
        is_eager=True,
        callback=_take_settings,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The run file, by its older name.", is_eager=True, callback=_take_settings),
]
Learners = Annotated[int, typer.Option(help="M: virtual learners.")]
Steps = Annotated[int | None, typer.Option(help="Inner steps of every learner; default: as many as the run has.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same run, bit for bit.")]
Merge = Annotated[str | None, typer.Option(help="Merge rule; see --list.")]
Base = Annotated[str | None, typer.Option(help="Folder of the base model, where the run trains an adapter of one.")]
Norms = Annotated[str | None, typer.Option(help="Lengths that RDA keeps: of each tensor, or of each row.")]
Codec = Annotated[str | None, typer.Option(help="Codec of outer gradients, or CONTRIBUTION,RESULT; see --list.")]
Feedback = Annotated[bool | None, typer.Option(help="Keep what encoding cuts off for the next contribution.")]
Optimizer = Annotated[str | None, typer.Option(help="Inner optimizer; see --list.")]
Rate = Annotated[float | None, typer.Option(help="Peak rate of the inner optimizer.")]
OuterRate = Annotated[float | None, typer.Option(help="η of the outer step.")]
Momentum = Annotated[float | None, typer.Option(help="μ of the outer step.")]
MomentCorrection = Annotated[
    float | None, typer.Option(help="With eager: share of others' work that the first moment takes over.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="TABLE.KEY=VALUE of the run file, as in inner.momentum=0.95.")
]
Batch = Annotated[int | None, typer.Option(help="Tokens in one inner step of one learner.")]
Fragments = Annotated[int | None, typer.Option(help="P: parts of the model that are synchronised in turn.")]
Period = Annotated[
    int | None, typer.Option("--period", "--steps-per-version", help="H: steps between two versions of a fragment.")
]
Overlap = Annotated[int | None, typer.Option(help="τ: rounds in flight at once.")]
Quorum = Annotated[int | None, typer.Option(help="K: joined learners that start the grace window.")]
Grace = Annotated[
    float | None, typer.Option("--grace", "--grace-share", help="γ: share of the slack that is given to late learners.")
]
MinShare = Annotated[float | None, typer.Option(help="Share of the active set that must sign; 0 as in the paper.")]
Adoption = Annotated[str | None, typer.Option(help="carry, overwrite, blend:ALPHA or eager:ALPHA.")]
Delay = Annotated[float, typer.Option(min=0, help="Steps from a snapshot to its adoption.")]
Speeds = Annotated[str, typer.Option(help="equal, two_generations, octaves, or a list as in 1,2,4,8.")]
SpeedJitter = Annotated[float, typer.Option(help="Standard deviation of a step's length, as a share of the mean.")]
LateJoins = Annotated[bool, typer.Option(help="Learners report at step boundaries, so K and γ matter.")]
FailuresOption = Annotated[str | None, typer.Option(help="MTBI:RETURN, in steps: learners die and come back.")]
ScavengeOption = Annotated[str | None, typer.Option(help="N:FROM:TO, in steps: more learners for a while.")]
Attacks = Annotated[list[str] | None, typer.Option(help="NAME:COUNT[:PARAMETER=VALUE] (repeatable); see --list.")]
PartitionOption = Annotated[str | None, typer.Option(help="N:FROM:TO, in steps: the last N learners are cut off.")]
ReunionOption = Annotated[Reunion, typer.Option(help="Carry or drop the losing side's work; uncut: nobody is cut off.")]
OwnText = Annotated[bool, typer.Option(help="The sides of --partition read different packages.")]
NonIid = Annotated[float | None, typer.Option(help="Deal the text out unevenly, with this Dirichlet parameter.")]
Compare = Annotated[
    list[Comparison] | None, typer.Option(help="Also train data-parallel, at equal tokens (repeatable).")
]
CompareRates = Annotated[str | None, typer.Option(help="Rates for --compare, as in 1e-3,2e-3; default: the lab's.")]
EvalEvery = Annotated[int, typer.Option(min=1, help="Evaluate after so many steps.")]
Workers = Annotated[int, typer.Option(min=0, help="Threads that make inner steps; 0: one per core.")]
Device = Annotated[str, typer.Option(help="Make inner steps on `cpu`, `cuda`, `cuda:1`, or what is best (`auto`).")]
Report = Annotated[Path | None, typer.Option(help="Write the report to this file (JSON).")]
Curve = Annotated[Path | None, typer.Option(help="Write all loss curves to this file (JSON lines).")]
Plot = Annotated[Path | None, typer.Option(help="Draw all loss curves into this file: .html or .png.")]
Tape = Annotated[Path | None, typer.Option(help="Write the event tape to this file (JSON lines).")]
Replay = Annotated[Path | None, typer.Option(help="Instead, replay this tape, and compare every bit.")]
Plain = Annotated[bool, typer.Option("--no-ui", help="Print plain lines instead of progress bars.")]
ListNames = Annotated[bool, typer.Option("--list", help="Print merges, codecs, attacks, optimizers and recipes.")]


@app.command(
    epilog="Example: muster lab --learners 8 --steps 1000 --compare dp --dp-lr 7e-3,1.5e-2,3e-2 --report lab.json"
)
def lab(
    context: typer.Context,
    file: Config = None,
    config: ConfigOption = None,
    base: Base = None,
    learners: Learners = 4,
    steps: Steps = None,
    seed: Seed = None,
    merge: Merge = None,
    norms: Norms = None,
    codec: Codec = None,
    error_feedback: Feedback = None,
    optimizer: Optimizer = None,
    inner_lr: Rate = None,
    outer_lr: OuterRate = None,
    outer_momentum: Momentum = None,
    settings: Settings = None,
    batch_tokens: Batch = None,
    fragments: Fragments = None,
    period: Period = None,
    overlap: Overlap = None,
    quorum: Quorum = None,
    grace: Grace = None,
    min_share: MinShare = None,
    adoption: Adoption = None,
    adoption_delay_steps: Delay = 2.0,
    moment_correction: MomentCorrection = None,
    speeds: Speeds = "equal",
    speed_jitter: SpeedJitter = 0.0,
    late_joins: LateJoins = False,
    failures: FailuresOption = None,
    scavenge: ScavengeOption = None,
    partition: PartitionOption = None,
    reunion: ReunionOption = Reunion.carry,
    own_text: OwnText = False,
    attack: Attacks = None,
    noniid: NonIid = None,
    compare: Compare = None,
    dp_lr: CompareRates = None,
    eval_every: EvalEvery = 100,
    workers: Workers = 0,
    device: Device = "cpu",
    compiled: Compiled = None,
    report: Report = None,
    curve: Curve = None,
    plot: Plot = None,
    tape: Tape = None,
    replay: Replay = None,
    track: Track = None,
    no_ui: Plain = False,
    list_names: ListNames = False,
) -> None:
    """Train with many virtual learners in this process.

    Steps are real, time is virtual, faults and attackers come as ordered.
    """
    if list_names:
        _list_names()
    elif replay is not None:
        _replay(replay, base or "")
    else:
        _run(context.params)


def _run(given: Mapping[str, Any]) -> None:
    from peer.lab.output import write_curve, write_plot
    from peer.lab.session import run_session
    from peer.plan.plots import check_format
    from peer.swarm.report import check_writable, write_report

    if given["plot"] is not None:
        check_format(given["plot"])
    for name in ("report", "curve", "plot", "tape"):
        if given[name] is not None:
            check_writable(given[name])
    options = _options(given)
    plain = given["no_ui"] or not sys.stdout.isatty()
    followed, run = tracking(given["track"], Path()), f"{options.config.name}-lab-{unix_seconds():.0f}"
    with shown(options.steps, plain) as bare, drawn(bare, followed, run, options.learners) as show:
        found = run_session(options, _comparisons(given, options), show, given["tape"], loading(options.workers))
    typer.echo(_summary(found))
    if given["report"] is not None:
        write_report(found, given["report"])
    if given["curve"] is not None:
        write_curve(found, given["curve"])
    if given["plot"] is not None:
        write_plot(found, given["plot"])


def _options(given: Mapping[str, Any]) -> LabOptions:
    from coordinator.run.manifest import Merge as BuiltIn
    from peer.attacks.protocol import is_lab_attack
    from peer.attacks.zoo import AttackOrder
    from peer.lab import options as labs
    from peer.lab.options import Failures, LabOptions, Partition, Scavenge, lab_config

    base = arguments.run_config(arguments.run_file(given["file"], given["config"]), None)
    changes = {key: given[name] for name, key in CONFIG_KEYS.items()}
    if given["merge"] in get_args(BuiltIn):
        changes["outer.merge_package"] = ""  # the run's own rule is replaced
    if given["codec"] is not None:
        contribution, _, result = given["codec"].partition(",")
        changes |= {"outer.contribution_codec": contribution, "outer.result_codec": result or contribution}
    if given["adoption"] is not None:
        rule, _, share = given["adoption"].partition(":")
        changes |= {"outer.adoption": rule, "outer.adoption_blend": _number("--adoption", share) if share else None}
    if given["partition"] is None and (given["own_text"] or given["reunion"] is not Reunion.carry):
        raise UsageError("--own-text and --reunion say something of a --partition: give that too")
    cut = None
    if given["partition"] is not None:
        cut = Partition.parse(given["partition"], given["reunion"].value, given["own_text"])
    changes |= parse_settings(given["settings"] or ())
    if given["batch_tokens"] is not None:
        changes["data.sequences_per_step"] = labs.sequences_per_step(base, changes, given["batch_tokens"])
    failures, scavenge = given["failures"], given["scavenge"]
    steps = labs.run_steps(base, changes) if given["steps"] is None else given["steps"]
    options = LabOptions(
        config=lab_config(base, given["learners"], steps, changes),
        learners=given["learners"],
        steps=steps,
        speeds=labs.parse_speeds(given["speeds"]),
        speed_jitter=given["speed_jitter"],
        adoption_delay_steps=given["adoption_delay_steps"],
        late_joins=given["late_joins"],
        failures=None if failures is None else Failures.parse(failures),
        scavenge=None if scavenge is None else Scavenge.parse(scavenge),
        partition=cut,
        attacks=tuple(AttackOrder.parse(text, is_lab_attack) for text in given["attack"] or ()),
        dirichlet_alpha=given["noniid"],
        eval_every_steps=given["eval_every"],
        workers=given["workers"],
        compiled=given["compiled"],
        cache=str(paths.token_cache()),
    )
    return replace(options, device=_device(given["device"], options))


def _device(text: str, options: LabOptions) -> str:
    from peer.learner.devices import choose_devices
    from peer.learner.memory_estimate import least_bytes
    from peer.model.sketch import with_shapes

    needed_bytes = options.total_learners * least_bytes(with_shapes(options.config))
    devices, _ = choose_devices(arguments.device(text), lambda _: needed_bytes, 1.0)
    if len(devices) > 1:
        raise UsageError(f"--device {text}: all learners of a lab are on one device; name one")
    return devices[0]


def _comparisons(given: Mapping[str, Any], options: LabOptions) -> Comparisons:
    from peer.lab.session import Comparisons

    text = given["dp_lr"]
    if text and not given["compare"]:
        raise UsageError("--dp-lr has rates for --compare: give that too")
    rates = [_number("--dp-lr", part) for part in text.split(",")] if text else [options.config.inner.learning_rate]
    return Comparisons(tuple(method.value for method in given["compare"] or ()), tuple(rates))


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} takes numbers, not {text!r}") from None


def _summary(found: LabReport) -> str:
    lines = [
        f"{found.peers} learners, {found.inner_steps:,} inner steps, {found.versions_certified} versions, "
        f"{found.rounds_void} void rounds; {'agreement' if found.agreement else 'NO AGREEMENT'}",
        f"held-out loss {found.eval_loss_first:.4f} -> {found.eval_loss_last:.4f} nats after {found.tokens:,} tokens",
        f"{found.wall_seconds:.0f} s, {found.utilisation:.0%} of the cores in inner steps",
    ]
    if found.attackers:
        guilty = [ban for ban in found.bans if ban.peer in found.attackers]
        reasons = "; ".join(sorted({ban.reason for ban in guilty}))
        told = f"attackers: {len(found.attackers)}, {len(guilty)} of them banned"
        lines.append(f"{told}: {reasons}" if guilty else told)
    innocent = [ban for ban in found.bans if ban.peer not in found.attackers]
    lines += [f"BANNED, AND NO ATTACKER: {ban.peer} by {ban.by}: {ban.reason}" for ban in innocent]
    if found.diverged is not None:
        lines.append(f"the run ended early: {found.diverged}")
    for point in found.sides:
        texts = "".join(
            f", {name} side's text {loss:.4f}"
            for name, loss in zip(("first", "second"), point.text_losses, strict=False)
        )
        lines.append(f"step {point.step}, {point.side}: held out {point.eval_loss:.4f}{texts}")
    if carried := found.events.get("branch_carried"):
        lines.append(f"{carried} times a learner of the losing side brought a fragment's branch along")
    for name, baseline in found.baseline.items():
        lines.append(
            f"{name}: {baseline.eval_loss_last:.4f} at rate {baseline.inner_lr:g} after {baseline.tokens:,} tokens; "
            f"the lab's loss is {found.eval_loss_last / baseline.eval_loss_last:.4f} times that"
        )
    return "\n".join(lines)


def _list_names() -> None:
    from coordinator.run.inner_spec import InnerOptimizer
    from coordinator.run.manifest import Adoption as AdoptionName
    from peer.attacks.protocol import LAB_ATTACKS, SWARM_ATTACKS
    from peer.attacks.zoo import ATTACKS
    from peer.lab.options import NAMED_SPEEDS
    from peer.lab.recipes import RECIPES
    from peer.numerics.codec import CODECS
    from peer.numerics.merge import MERGES

    attacks = [f"{name} ({one.parameter}={one.default:g})" if one.parameter else name for name, one in ATTACKS.items()]
    for heading, names in (
        ("merges", MERGES),
        ("codecs", CODECS),
        ("optimizers", get_args(InnerOptimizer)),
        ("adoptions", get_args(AdoptionName)),
        ("attacks", attacks),
        ("attacks on the protocol", LAB_ATTACKS),
        ("attacks of `muster swarm` only", SWARM_ATTACKS),
        ("speeds", NAMED_SPEEDS),
        *((f"recipe {lines}", [options]) for lines, options in RECIPES.items()),
    ):
        told = f"{heading}: {', '.join(names)}"
        typer.echo(textwrap.fill(told, LIST_CHARACTERS, subsequent_indent="  ", break_on_hyphens=False))


def _replay(path: Path, base: str) -> None:
    from peer.lab.replay import replay_tape

    found = replay_tape(path, base=base)
    typer.echo(f"{found.versions} versions of {path} made again, every state bit for bit;", nl=False)
    typer.echo(f" so are the parameters of {len(found.learners)} learners")
