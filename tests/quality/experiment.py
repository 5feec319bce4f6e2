"""One experiment of docs/research/results.md, the common settings of most, and ways to vary them."""

from __future__ import annotations

from dataclasses import dataclass

SMALL = "tests/quality/small.toml"
TINY = "tests/quality/tiny.toml"
SIX = (SMALL, "--learners", "6", "--steps", "480")  # the honest of eight, alone
EIGHT = (SMALL, "--learners", "8", "--steps", "480")
TWELVE = (SMALL, "--learners", "12", "--steps", "480")
SIXTEEN = (SMALL, "--learners", "16", "--steps", "480")
SHORT = (TINY, "--learners", "4", "--steps", "480")  # 1,024 tokens per learner step: two minutes of one core
SHIPPED = (*SHORT, "--outer-lr", "0.65", "--outer-momentum", "0")  # with AdamW at 1.5e-3
NO_MOMENTUM = ("--outer-lr", "0.65", "--outer-momentum", "0")
Rates = tuple[str, str]  # inner rates of Muster and of data-parallel
WORST = ("stale", "work_lie", "fixed_direction", "alie_optimised", "label_flip")  # of all, two of eight
LEARNERS = (4, 8, 16)
SEEDS = ("0", "1", "2")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of `muster lab`, or of `tests.quality.without`; its cached result is docs/results/NAME.json."""

    name: str
    arguments: tuple[str, ...]
    without: str = ""  # a rule of ours

    @property
    def command(self) -> str:
        """The command that makes this result, without its output file."""
        program = ("python", "-m", "tests.quality.without", self.without) if self.without else ("muster", "lab")
        return " ".join((*program, *self.arguments))


def pair(name: str, size: tuple[int, int, int], seed: str, rates: Rates, pace: tuple[str, ...]) -> Experiment:
    """Return an experiment with both methods at equal tokens; `size` is learners, steps and tokens per learner step."""
    learners, steps, tokens = map(str, size)
    ours, theirs = rates
    return Experiment(
        f"{name}-s{seed}-{ours}-{theirs}",
        (
            *(TINY, "--learners", learners, "--steps", steps, "--batch-tokens", tokens, *pace, "--seed", seed),
            *("--inner-lr", ours, "--compare", "dp", "--dp-lr", theirs),
        ),
    )


def at_one_rate(*rates: str) -> tuple[Rates, ...]:
    """Return a grid in which Muster and data-parallel have the same rate."""
    return tuple((rate, rate) for rate in rates)


def variants(group: str, base: tuple[str, ...], variants: dict[str, tuple[str, ...]]) -> tuple[Experiment, ...]:
    return tuple(Experiment(f"{group}-{name}", (*base, *options)) for name, options in variants.items())


def seeded(
    group: str, base: tuple[str, ...], variants: dict[str, tuple[str, ...]], without: str = ""
) -> tuple[Experiment, ...]:
    return tuple(
        Experiment(f"{group}-{name}-s{seed}", (*base, "--seed", seed, *options), without)
        for seed in SEEDS
        for name, options in variants.items()
    )
