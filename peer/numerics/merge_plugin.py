"""A merge rule of an installed plugin (docs/how-to/aggregators.md): tested before use, and compared with the host's.

Members recompute single leaves, so a rule must merge some elements alone as it merges them in the whole. And two
machines may have the same version of a package and compute other bytes. So the host writes into the manifest a digest
of its rule's results for fixed inputs. A peer with another digest takes no part: it would accuse honest reducers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np

from coordinator.run.manifest import OuterSpec, RunConfig
from coordinator.wire.messages import SQUARED_NORM_MAX
from dht.errors import UsageError
from peer.numerics.golden import ordinary, wide
from peer.numerics.merge import MERGES, MergeRule, PieceRule
from peer.numerics.plugins import Part, merge_part
from peer.numerics.robust.plugin_rule import RuleError, apply_rule
from peer.numerics.robust.stack import Floats, Singles

# A change of any of these changes the digests of all rules, and is a new major version of the protocol.
MEMBERS = (1, 2, 3, 8, 32)
ELEMENTS = 1 << 13  # number of elements that a rule gets at once
VALUE_MAX = math.sqrt(SQUARED_NORM_MAX)  # of members' contributions
SINGLE = range(ELEMENTS - 1, 0, -1023)  # a library may sum single columns along contiguous memory, in another order
SLICES = (*((at, at + 1) for at in SINGLE), (0, 2), (5, 8), (16, 32), (3, 36), (511, 1024), (1000, 2024), (0, 4097))


def merge_rule(outer: OuterSpec) -> MergeRule:
    """Return the rule with which a run merges.

    Raises UsageError if it comes from a plugin that is missing, or computes other bytes here than at the host.
    """
    part = merge_part(outer)
    if part is None:
        return replace(MERGES[outer.merge], by_row=outer.norms == "row")
    function = part.load()
    if _digest(part, function) != outer.merge_sha256:
        raise UsageError(
            f"the merge rule {part.name} of the package {part.package} computes other bytes here than at the run's "
            "host; install what the host has of it and of what it imports"
        )
    return MergeRule(part.name, directional=False, function=function)


def with_rule_digest(config: RunConfig) -> RunConfig:
    """Return the configuration with the digest of its rule's results for fixed inputs here; raises UsageError."""
    part = merge_part(config.outer)
    if part is None:
        return config
    outer = config.outer.model_copy(update={"merge_sha256": _digest(part, part.load())})
    return config.model_copy(update={"outer": outer})


def _digest(part: Part, function: PieceRule) -> str:
    try:
        return rule_digest(function)
    except RuleError as error:
        raise UsageError(f"the package {part.package} brings no usable merge rule: {part.name} {error}") from None


def rule_digest(function: PieceRule) -> str:
    """Return the SHA-256 of a rule's results for fixed inputs; raises RuleError if the rule is invalid.

    The error's message begins with a verb. A rule is invalid if it merges a slice to other bytes than the whole, fails
    on an input that members may contribute, or changes its inputs.
    """
    hasher = hashlib.sha256()
    for members in MEMBERS:
        for pieces, weights in _inputs(members):
            whole = apply_rule(function, pieces, weights)
            for start, stop in SLICES:
                if apply_rule(function, pieces[:, start:stop], weights).tobytes() != whole[start:stop].tobytes():
                    raise RuleError("merges a slice to other bytes than the whole")
            hasher.update(whole.astype("<f4").tobytes())
    return hasher.hexdigest()


def _inputs(members: int) -> list[tuple[Singles, Floats]]:
    """Return similar values with equal weights, and arbitrary admissible values, some equal, with unequal weights."""
    names = [f"merge {member}".encode() for member in range(members)]
    # products of two have all digits of float32, so that the order of a sum shows
    alike = np.stack([(ordinary(b"left " + name, ELEMENTS) * ordinary(name, ELEMENTS)).numpy() for name in names])
    any_values = np.stack([wide(name, ELEMENTS).numpy() for name in names])
    ranks = np.arange(1, members + 1, dtype=np.float64)
    return [
        (alike, np.full(members, 1 / members)),
        (np.clip(any_values, np.float32(-VALUE_MAX), np.float32(VALUE_MAX)), ranks / ranks.sum()),
    ]
