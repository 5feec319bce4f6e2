"""The experiments with Muon: the choice of the shipped recipe, its distance from data-parallel, and its cost."""

from __future__ import annotations

from peer.attacks.zoo import ATTACKS
from tests.quality.experiment import (
    EIGHT,
    NO_MOMENTUM,
    SEEDS,
    SHIPPED,
    SIX,
    SIXTEEN,
    TINY,
    TWELVE,
    Experiment,
    Rates,
    at_one_rate,
    pair,
    seeded,
    variants,
)

MUON = ("--optimizer", "muon8bit", "--set", "inner.momentum=0.8")
MUON_RATES = at_one_rate("1e-2", "1.5e-2", "2.25e-2")
MUON_BEST: Rates = ("2.25e-2", "2.25e-2")
MUON_LENGTHS = {  # learners, and steps of 3,072 tokens
    (4, 240): (MUON_BEST,),
    (4, 2400): MUON_RATES,
    (8, 1200): MUON_RATES,
}
MUON_SIZES = {  # million parameters: hidden size, layers, feed-forward size, and steps for equal tokens a parameter
    "0.1": ("64", "2", "176", "120"),
    "0.4": ("128", "2", "352", "480"),
    "1.6": ("256", "2", "704", "1760"),
    "6": ("512", "2", "1408", "6800"),
}
MUON_SIZES_RATES = (*MUON_RATES, *at_one_rate("3.4e-2", "5.1e-2"))  # the smallest want more
MUON_SIZES_ADAMW = at_one_rate("3e-3", "4.5e-3", "6.75e-3", "1e-2", "1.5e-2")
STEP_OF_ONE = ("--outer-lr", "1", "--outer-momentum", "0")
MUON_SHIPPED = (*MUON, "--inner-lr", "1.5e-2", *STEP_OF_ONE)
MULOCO = ("--outer-lr", "0.7", "--outer-momentum", "0.6")  # the outer step of 2505.23725
MUON_WORST = ("random_noise", "mimic", "stale", "sign_flip", "fixed_direction")
MOMENTUM_WORST = ("delta_replay", "stale", "alie_optimised", "sign_flip", "stale+work")  # with momentum, adr/0029
DEPTHS, INITIAL = ("2", "8", "24"), ("width", "depth")

GROUPS: dict[str, tuple[Experiment, ...]] = {
    "muon": variants(
        "muon",
        (*SHIPPED, *MUON, "--inner-lr", "1.5e-2"),
        {
            "default": (),
            "1e-2": ("--inner-lr", "1e-2"),
            "2.25e-2": ("--inner-lr", "2.25e-2"),
            "momentum-0.6": ("--set", "inner.momentum=0.6"),
            "momentum-0.9": ("--set", "inner.momentum=0.9"),
            "momentum-0.95": ("--set", "inner.momentum=0.95"),
            "momentum-0.95-2.25e-2": ("--set", "inner.momentum=0.95", "--inner-lr", "2.25e-2"),
            "outer-0.8": ("--outer-lr", "0.8"),
            "outer-1": ("--outer-lr", "1"),
            "outer-1.3": ("--outer-lr", "1.3"),
            "outer-0.65-0.3": ("--outer-momentum", "0.3"),
            "outer-1-0.3": ("--outer-lr", "1", "--outer-momentum", "0.3"),
            "outer-0.7-0.6": MULOCO,
            "eager": ("--adoption", "eager:0.7"),
            "h8": ("--period", "8", "--fragments", "2"),
            "outer-1-h8": ("--outer-lr", "1", "--period", "8", "--fragments", "2"),
            "h3": ("--period", "3", "--fragments", "3", "--outer-lr", "0.5", "--adoption", "eager:0.7"),
            "decay-0": ("--set", "inner.weight_decay=0"),
            "decay-0.3": ("--set", "inner.weight_decay=0.3"),
            "warmup-100": ("--set", "inner.warmup_steps=100"),
            "linear": ("--set", "inner.schedule=linear"),
            "wsd": ("--set", "inner.schedule=wsd"),
            "depth": ("--set", "model.initial=depth"),
        },
    ),
    "muon-outer": seeded(
        "muon-outer",
        (*SHIPPED, *MUON, "--inner-lr", "1.5e-2"),
        {
            "0.65-0": (),
            "1-0": ("--outer-lr", "1"),
            "1-0.3": ("--outer-lr", "1", "--outer-momentum", "0.3"),
            "0.7-0.6": MULOCO,
        },
    ),
    "muon-state": seeded(
        "muon-state",
        (*SHIPPED, *MUON, "--inner-lr", "1.5e-2"),
        {"float32": ("--optimizer", "muon"), "8bit": ()},
    ),
    "muon-lengths": tuple(
        pair(f"muon-m{learners}-{steps}", (learners, steps, 3072), SEEDS[0], rates, (*STEP_OF_ONE, *MUON))
        for (learners, steps), grid in MUON_LENGTHS.items()
        for rates in grid
    ),
    "muon-sizes": tuple(
        pair(
            f"muon-size-{size}-{name}",
            (4, int(steps), 3072),
            SEEDS[0],
            rates,
            (
                *(*recipe, "--set", f"model.hidden_size={hidden}"),
                *("--set", f"model.layers={layers}", "--set", f"model.intermediate_size={inner}"),
            ),
        )
        for size, (hidden, layers, inner, steps) in MUON_SIZES.items()
        for name, grid, recipe in (
            ("muon8bit", MUON_SIZES_RATES, (*STEP_OF_ONE, *MUON)),
            ("adamw8bit", MUON_SIZES_ADAMW, (*NO_MOMENTUM, "--optimizer", "adamw8bit")),
        )
        for rates in grid
    ),
    "initial": tuple(
        Experiment(
            f"initial-{layers}-{name}",
            (
                *(TINY, "--learners", "1", "--quorum", "1", "--min-share", "0", "--steps", "60", *MUON),
                *("--inner-lr", "1.5e-2", "--set", f"model.layers={layers}", "--set", f"model.initial={name}"),
            ),
        )
        for layers in DEPTHS
        for name in INITIAL
    ),
    "attacks-muon": (
        Experiment("attacks-muon-none", (*SIX, *MUON_SHIPPED)),
        *variants(
            "attacks-muon",
            (*EIGHT, *MUON_SHIPPED),
            {name: ("--attack", f"{name}:2") for name in (*ATTACKS, *(f"{worst}+work" for worst in MUON_WORST))},
        ),
    ),
    "attacks-muon-momentum": (
        Experiment("attacks-muon-momentum-none", (*SIX, *MUON_SHIPPED, *MULOCO)),
        *variants(
            "attacks-muon-momentum",
            (*EIGHT, *MUON_SHIPPED, *MULOCO),
            {name: ("--attack", f"{name}:2") for name in MOMENTUM_WORST},
        ),
    ),
    "attacks-muon-sixteen": (
        Experiment("attacks-muon-sixteen-none", (*TWELVE, *MUON_SHIPPED)),
        *variants(
            "attacks-muon-sixteen",
            (*SIXTEEN, *MUON_SHIPPED),
            {name: ("--attack", f"{name}:4") for name in ("alie", *MUON_WORST)},
        ),
    ),
}
