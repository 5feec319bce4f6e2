"""The experiments behind docs/research/results.md: groups of `muster lab` commands, each a name and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from peer.attacks.zoo import ATTACKS
from tests.quality import muon
from tests.quality.experiment import (
    EIGHT,
    LEARNERS,
    NO_MOMENTUM,
    SEEDS,
    SHIPPED,
    SHORT,
    SIX,
    SIXTEEN,
    SMALL,
    TWELVE,
    WORST,
    Experiment,
    Rates,
    pair,
    seeded,
    variants,
)
from tests.quality.muon import MULOCO, MUON, MUON_BEST, MUON_RATES, STEP_OF_ONE

UNEVEN = ("--noniid", "0.3")
OCTAVES = (*EIGHT, *UNEVEN, "--speeds", "octaves", "--late-joins")
PLAIN = (*SHORT, "--inner-lr", "3e-3", "--outer-lr", "0.65", "--outer-momentum", "0")  # best of P = 8, H = 24 there
MEANS = {  # a mean of vectors that point apart is shorter than they are, so it may want a whole outer step
    "mean": ("--merge", "mean"),
    "mean-outer-1": ("--merge", "mean", "--outer-lr", "1"),
}
BOTH_RDA = {rule: ("--merge", rule) for rule in ("rda", "robust_rda")}
BEFORE = ("--outer-lr", "0.5", "--outer-momentum", "0.8")  # the defaults before docs/adr/0029
SHORT_PERIOD = ("--fragments", "2", "--period", "8", *NO_MOMENTUM)
PARITY_CUTS = ("--fragments", "2", "--period", "4")
PARITY_ADOPTION = ("--adoption", "eager:0.7", "--moment-correction", "0.5")
PARITY_PACE = (*PARITY_CUTS, *NO_MOMENTUM, *PARITY_ADOPTION)
SHORTEST_PACE = ("--fragments", "3", "--period", "3", "--outer-lr", "0.5", "--outer-momentum", "0", *PARITY_ADOPTION)
PARITY_RATES: tuple[Rates, ...] = (("4.5e-3", "6.75e-3"), ("6.75e-3", "4.5e-3"), ("1e-2", "3e-3"))
SHORTEST_RATES: tuple[Rates, ...] = (("6.75e-3", "3e-3"), ("1e-2", "4.5e-3"), ("1.5e-2", "6.75e-3"))
SHORTEST_BEST: Rates = ("1.5e-2", "4.5e-3")
HIGHEST_RATES: Rates = ("2.25e-2", "1e-2")
SHIPPED_RATES: tuple[Rates, ...] = (("3e-3", "4.5e-3"), ("4.5e-3", "6.75e-3"), ("6.75e-3", "3e-3"))


@dataclass(frozen=True, slots=True)
class Period:
    """One way to synchronise in the runs of parity: a grid of rates on the first seed, the best ones on all seeds."""

    label: str
    file: str  # the beginning of its runs' names, after the learners
    pace: tuple[str, ...]
    grid: dict[int, tuple[Rates, ...]]  # by learners
    best: dict[int, tuple[Rates, ...]]
    tokens: int = 3072  # of a learner's step

    def name(self, learners: int) -> str:
        """Return the name of its runs, without seed and rates."""
        return f"parity-m{learners}{self.file}"

    def runs(self, learners: int) -> tuple[tuple[str, Rates], ...]:
        """Return the seed and rates of each run."""
        best = self.best.get(learners, ())
        first = dict.fromkeys((*self.grid.get(learners, ()), *best))
        return tuple((SEEDS[0], rates) for rates in first) + tuple((seed, one) for seed in SEEDS[1:] for one in best)


HALF_THE_BITS = ("--period", "12", "--fragments", "4", "--codec", "int4")  # as many rounds and bytes a step as H = 24
SHORTEST = Period(
    "H = 3",
    "-h3",
    SHORTEST_PACE,
    dict.fromkeys(LEARNERS, (*SHORTEST_RATES, HIGHEST_RATES)),
    dict.fromkeys(LEARNERS, (SHORTEST_RATES[1], SHORTEST_BEST)),
)
MUON_PERIOD = Period(
    "H = 24, Muon",
    "-h24-muon-shipped",
    (*STEP_OF_ONE, *MUON),
    dict.fromkeys(LEARNERS, MUON_RATES),
    dict.fromkeys(LEARNERS, (MUON_BEST,)),
)
PARITY_PERIODS = (
    Period(
        "H = 4",
        "",
        PARITY_PACE,
        {4: PARITY_RATES, 8: PARITY_RATES, 16: PARITY_RATES[1:2]},
        dict.fromkeys((4, 8), PARITY_RATES[1:2]),
    ),
    SHORTEST,
    Period("H = 3, 6,144 tokens", "-h3-6144", SHORTEST_PACE, {}, dict.fromkeys((8, 16), (SHORTEST_BEST,)), tokens=6144),
    Period("H = 24, AdamW", "-h24", NO_MOMENTUM, {4: SHIPPED_RATES}, {}),
    MUON_PERIOD,
    Period("H = 24, Muon, outer 0.7/0.6", "-h24-muon", (*MULOCO, *MUON), {4: (MUON_BEST,)}, {}),
    Period(
        "H = 12, int4, Muon, outer 0.7/0.6",
        "-h12-int4-muon",
        (*HALF_THE_BITS, *MULOCO, *MUON),
        {4: MUON_RATES},
        dict.fromkeys(LEARNERS, (MUON_BEST,)),
    ),
)
LENGTHS: dict[tuple[int, int], tuple[Rates, ...]] = {  # other steps, and tokens of each; four learners, first seed
    (480, 1024): (("4.5e-3", "2e-3"), *SHORTEST_RATES),
    (480, 6144): (*SHORTEST_RATES[1:], ("2.25e-2", "3e-3")),
    (960, 3072): SHORTEST_RATES,
}
PERIODS, CUTS = ("4", "8", "16", "24", "48"), ("1", "2", "8")  # H in steps, and into how many fragments it is dealt
PACES = tuple((period, cuts) for period in PERIODS for cuts in CUTS if int(period) >= int(cuts))
DELAYS = ("0", "2", "8", "16")  # τ: steps from a snapshot to its adoption
ADOPTIONS = {  # and what files can be called
    "overwrite": "overwrite",
    "carry": "carry",
    "blend:0.5": "blend0.5",
    "eager:0.7": "eager0.7",
}
HARD = ("sign_flip", "scaling", "alie", "ipm")
CLAIMING = ("stale", "sign_flip", "label_flip")  # attacks that a false claim helps most
ON_PROTOCOL = (  # one or two of each kind
    "two_joins",
    "two_votes",
    "false_results",
    "mean_results",
    "noisy_results",
    "garbage_commits",
    "claim_more",
    "drop_one",
    "misshapen_checks",
    "other_bytes",
    "false_evidence",
    "frame",
    "shut_out",
    "pass_over",
    "refute_everything",
    "never_commit",
    "never_scatter",
    "silent_from_check",
    "shun_half",
    "hoard_votes",
)
STRENGTHS = (  # beside those that the attacks have by themselves
    "sign_flip:2:factor=1",
    "sign_flip:2:factor=1000",
    "scaling:2:factor=1000",
    "random_noise:2:factor=1",
    "fixed_direction:2:factor=1",
    "fixed_direction:2:factor=1000",
    "alie:2:z=0.5",
    "ipm:2:epsilon=0.1",
    "ipm:2:epsilon=0.5",
    "ipm:2:epsilon=10",
    "stale:2:rounds=1",
    "stale:2:rounds=20",
    "sleeper:2:every=1",
    "backdoor:2:share=1",
)
RULES = ("mean", "median", "trimmed_mean", "krum")  # beside the default
HALF_GOODPUT = "100:20"  # MTBI and return in steps, per learner: of eight, elastic data-parallel keeps 0.52 to 0.61
FAILURES: dict[str, tuple[str, ...]] = {
    "none": (),
    "half": ("--failures", HALF_GOODPUT, "--compare", "elastic"),
    "longer": ("--failures", HALF_GOODPUT, "--steps", "580"),  # until as many tokens are trained
}
FAILING = {"text": EIGHT, "task": ("tests/quality/sorting.toml", *EIGHT[1:])}  # tests/quality/sorting.py
SCAVENGERS = (1, 2, 4, 12)  # beside four learners, for half of the work
SCAVENGED_STEPS = 480  # of the run without them
PARTED_AT, STEPS_PER_ROUND, ROUNDS_AFTERWARDS = 48, 2, 100
SPLITS, ROUNDS_APART = ("4:4", "6:2"), (5, 20, 100)
REUNIONS = ("drop", "carry", "uncut")


def _parity(learners: int) -> tuple[Experiment, ...]:
    return tuple(
        pair(period.name(learners), (learners, 480, period.tokens), seed, rates, period.pace)
        for period in PARITY_PERIODS
        for seed, rates in period.runs(learners)
    )


def length_name(steps: int, tokens: int) -> str:
    """Return the name of the pairs of one of LENGTHS, without seed and rates."""
    return f"parity-{steps}x{tokens}"


def _adoption(group: str, base: tuple[str, ...]) -> tuple[Experiment, ...]:
    return tuple(
        Experiment(
            f"{group}-{name}-{delay}",
            (*base, "--adoption", rule, "--adoption-delay-steps", delay),
        )
        for rule, name in ADOPTIONS.items()
        for delay in DELAYS
    )


def scavenged_steps(scavengers: int) -> int:
    """Return the steps of a run of four, if so many scavengers help with half of its work.

    The run takes 0.5 + 0.5 / (1 + e) of the time, where e is the scavengers as a share of the four.
    """
    return SCAVENGED_STEPS // 2 + helped_steps(scavengers)


def helped_steps(scavengers: int) -> int:
    """Return the steps in which the four and these scavengers do half of the work."""
    return SCAVENGED_STEPS // 2 * 4 // (4 + scavengers)


def _scavenging() -> tuple[Experiment, ...]:
    return tuple(
        Experiment(
            f"scavenging-{more}",
            (
                *(SMALL, "--learners", "4", "--steps", f"{scavenged_steps(more)}"),
                *(("--scavenge", f"{more}:0:{helped_steps(more)}") if more else ()),
            ),
        )
        for more in (0, *SCAVENGERS)
    )


def _partition(seed: str, split: str, rounds: int, own_text: bool, reunion: str) -> Experiment:
    healed = healed_at(rounds)
    steps = healed + STEPS_PER_ROUND * ROUNDS_AFTERWARDS
    size = ("--learners", "8", "--steps", f"{steps}", "--eval-every", "16", "--seed", seed)
    cut = ("--partition", f"{split[-1]}:{PARTED_AT}:{healed}", "--reunion", reunion)
    return Experiment(
        f"{parting(split, rounds, own_text)}-{reunion}-s{seed}",
        ("tests/quality/partition.toml", *size, *cut, *(("--own-text",) if own_text else ())),
    )


def healed_at(rounds: int) -> int:
    """Return the step at which the sides meet after so many rounds apart."""
    return PARTED_AT + STEPS_PER_ROUND * rounds


def parting(split: str, rounds: int, own_text: bool) -> str:
    """Return the name of one partition, without the way of reunion and the seed."""
    return f"partition-{split.replace(':', '')}-r{rounds}-{'own' if own_text else 'same'}"


def _partitions() -> tuple[Experiment, ...]:
    return tuple(
        _partition(seed, split, rounds, own_text, reunion)
        for seed in SEEDS
        for own_text in (False, True)
        for split in SPLITS
        for rounds in ROUNDS_APART
        for reunion in REUNIONS
    )


def _attacked_seeds(
    group: str, honest: tuple[str, ...], all_of_them: tuple[str, ...], attacks: tuple[str, ...]
) -> tuple[Experiment, ...]:
    """Return runs of the honest learners alone, and with each attack, on the same seeds."""
    hostile = {attack.partition(":")[0]: ("--attack", attack) for attack in attacks}
    return (*seeded(group, honest, {"none": ()}), *seeded(group, all_of_them, hostile))


def _strength(attack: str) -> str:
    """Return an attack as part of a file's name: `ipm:2:epsilon=10` is `ipm-10`."""
    return attack.partition(":")[0] + "-" + attack.rpartition("=")[2]


GROUPS: dict[str, tuple[Experiment, ...]] = {
    "parity-m4": _parity(4),
    "parity-m8": _parity(8),
    "parity-m16": _parity(16),
    "parity-lengths": tuple(
        pair(length_name(*size), (4, *size), SEEDS[0], rates, SHORTEST_PACE)
        for size, grid in LENGTHS.items()
        for rates in grid
    ),
    "adoption": _adoption("adoption", PLAIN),
    "adoption-shipped": _adoption("adoption-shipped", SHIPPED),
    "codecs": seeded(
        "codecs",
        PLAIN,
        {
            "bf16": ("--codec", "bf16"),
            "int8": ("--codec", "int8"),
            "int4": ("--codec", "int4"),
            "e3m0": ("--codec", "e3m0"),
            "int2": ("--codec", "int2,int8"),
            "int2-feedback": ("--codec", "int2,int8", "--error-feedback"),
        },
    ),
    "merges-m8": (
        *seeded("merges-m8", EIGHT, MEANS | BOTH_RDA),
        *seeded("merges-m8", EIGHT, {f"{rule}-alike": options for rule, options in BOTH_RDA.items()}, "embeddings"),
    ),
    "merges-m16": (
        *seeded("merges-m16", SIXTEEN, MEANS | BOTH_RDA),
        *seeded("merges-m16", SIXTEEN, {"robust_rda-alike": BOTH_RDA["robust_rda"]}, "embeddings"),
    ),
    "noniid": (
        *seeded("noniid", OCTAVES, BOTH_RDA),
        *seeded("noniid", OCTAVES, {"robust_rda-median": BOTH_RDA["robust_rda"]}, "half-more"),
        *seeded("noniid", OCTAVES, {"robust_rda-whole": BOTH_RDA["robust_rda"]}, "truncation"),
    ),
    "pace": variants(
        "pace",
        (*SHORT, "--inner-lr", "3e-3", *SHORT_PERIOD),
        {f"h{period}-p{cuts}": ("--period", period, "--fragments", cuts) for period, cuts in PACES},
    ),
    "outer": variants(
        "outer",
        (*SHORT, "--inner-lr", "3e-3", *SHORT_PERIOD),
        {
            "0.65-0": (),
            "0.5-0": ("--outer-lr", "0.5"),
            "0.8-0": ("--outer-lr", "0.8"),
            "1-0": ("--outer-lr", "1"),
            "0.5-0.3": ("--outer-lr", "0.5", "--outer-momentum", "0.3"),
            "0.3-0.5": ("--outer-lr", "0.3", "--outer-momentum", "0.5"),
            "mean-1-0": ("--merge", "mean", "--outer-lr", "1"),
        },
    ),
    "ablation": variants(
        "ablation",
        (*SHORT, *BEFORE),
        {
            "default": (),
            "h12": ("--period", "12"),
            "h48": ("--period", "48"),
            "p4": ("--fragments", "4"),
            "p1": ("--fragments", "1"),
            "overlap1": ("--overlap", "1"),
            "outer-0.7-0.8": ("--outer-lr", "0.7"),
            "outer-0.7-0.9": ("--outer-lr", "0.7", "--outer-momentum", "0.9"),
            "outer-0.5-0.9": ("--outer-momentum", "0.9"),
            "outer-0.8-0.5": ("--outer-lr", "0.8", "--outer-momentum", "0.5"),
            "outer-1-0": ("--outer-lr", "1", "--outer-momentum", "0"),
            "rows": ("--norms", "row"),
            "muon": ("--optimizer", "muon", "--set", "inner.momentum=0.9"),
            "lion8bit": ("--optimizer", "lion8bit", "--inner-lr", "5e-4"),
        },
    ),
    **muon.GROUPS,
    "attacks": (
        Experiment("attacks-none", SIX),
        *variants("attacks", EIGHT, {name: ("--attack", f"{name}:2") for name in ATTACKS}),
    ),
    "attacks-protocol": (
        Experiment("attacks-protocol-none", SIX),
        *variants("attacks-protocol", EIGHT, {name: ("--attack", f"{name}:2") for name in ON_PROTOCOL}),
    ),
    "attacks-strengths": (
        Experiment("attacks-strengths-none", SIX),
        *variants("attacks-strengths", EIGHT, {_strength(attack): ("--attack", attack) for attack in STRENGTHS}),
    ),
    "attacks-claiming": (
        Experiment("attacks-claiming-none", SIX),
        *variants("attacks-claiming", EIGHT, {name: ("--attack", f"{name}+work:2") for name in CLAIMING}),
        *(
            Experiment(f"attacks-claiming-{name}-median", (*EIGHT, "--attack", f"{name}+work:2"), "half-more")
            for name in CLAIMING
        ),
    ),
    "attacks-three": (
        Experiment("attacks-three-none", (SMALL, "--learners", "5", "--steps", "480")),
        *variants("attacks-three", EIGHT, {name: ("--attack", f"{name}:3") for name in ATTACKS}),
    ),
    "attacks-sixteen": (
        Experiment("attacks-sixteen-none", TWELVE),
        *variants("attacks-sixteen", SIXTEEN, {name: ("--attack", f"{name}:4") for name in (*HARD, *WORST)}),
    ),
    "attacks-seeds": _attacked_seeds("attacks-seeds", SIX, EIGHT, ("sign_flip:2",)),
    "attacks-sixteen-seeds": _attacked_seeds(
        "attacks-sixteen-seeds", TWELVE, SIXTEEN, ("stale:4", "fixed_direction:4")
    ),
    "attacks-noniid": (
        Experiment("attacks-noniid-none", (*SIX, *UNEVEN)),
        *variants("attacks-noniid", (*EIGHT, *UNEVEN), {name: ("--attack", f"{name}:2") for name in ATTACKS}),
    ),
    "rules": tuple(
        Experiment(f"rules-{rule}-{attack}", (*EIGHT, "--merge", rule, "--attack", f"{attack}:2"))
        for rule in RULES
        for attack in HARD
    ),
    "quorum": seeded(
        "quorum",
        # half of the learners 18 % behind, and steps that vary by 10 %, as in the paper's Table 5
        (*SHIPPED, "--speeds", "two_generations", "--speed-jitter", "0.1", "--late-joins", "--min-share", "0"),
        {
            "k1": ("--quorum", "1", "--grace", "0"),
            "k1-grace": ("--quorum", "1", "--grace", "0.5"),
            "km": ("--quorum", "4", "--grace", "0"),
        },
    ),
    "partition": _partitions(),
    "scavenging": _scavenging(),
    "failures": tuple(one for what, base in FAILING.items() for one in seeded(f"failures-{what}", base, FAILURES)),
}
