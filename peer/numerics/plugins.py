"""The parts that a run takes from installed packages (plugins): a model's family, a merge rule.

A manifest names package and version, and nothing is downloaded. A package declares its parts as entry points. In the
group `muster.families`, it is the module that registers a family's config and class with `transformers` when it is
imported (`AutoConfig.register`, `AutoModelForCausalLM.register`). In `muster.merges`, it is a function
(`peer.numerics.merge_plugin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Any

from coordinator.run.manifest import OuterSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError

FAMILIES = "muster.families"
MERGES = "muster.merges"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run from a package: the package as `NAME==VERSION`, the entry point's group, and its name."""

    package: str
    group: str
    name: str

    def find(self) -> EntryPoint:
        """Return the entry point without importing it; raises UsageError unless that version is installed."""
        name, _, version = self.package.partition("==")
        advice = f"see what it is before you trust it, then: pip install {self.package}"
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise UsageError(f"this run needs the package {name}, which is not installed; {advice}") from None
        if found.version != version:
            raise UsageError(
                f"this run needs the package {name} {version}, and {found.version} of it is installed; {advice}"
            )
        for entry in found.entry_points.select(group=self.group, name=self.name):
            return entry
        raise UsageError(f"the package {name} {version} has no entry point {self.name} in {self.group}")

    def load(self) -> Any:
        """Import the part; raises UsageError if that fails."""
        entry = self.find()
        try:
            return entry.load()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything on import
            raise UsageError(
                f"the package {self.package} cannot be imported here: {type(error).__name__}: {error}"
            ) from None


def family_part(model: ModelSpec) -> Part | None:
    """Return the model's family, if it comes from a package."""
    return None if model.package is None else Part(model.package, FAMILIES, model.family)


def merge_part(outer: OuterSpec) -> Part | None:
    """Return the merge rule, if it comes from a package."""
    return None if outer.merge_package is None else Part(outer.merge_package, MERGES, outer.merge)


def parts_of(config: RunConfig) -> tuple[Part, ...]:
    """Return all parts of this run that come from packages."""
    return tuple(part for part in (family_part(config.model), merge_part(config.outer)) if part is not None)


def check_packages(config: RunConfig) -> None:
    """Raise UsageError unless every package of this run is installed in its version; imports none of them."""
    for part in parts_of(config):
        part.find()
