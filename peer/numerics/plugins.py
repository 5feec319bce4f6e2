"""What a run takes from packages that are installed here: a model's family, a merge rule.

A manifest names package and version, and nothing is fetched. A package says in an entry point what it brings: in the
group `muster.families` the module that registers a family's config and class with `transformers` when it is imported
(`AutoConfig.register`, `AutoModelForCausalLM.register`), in `muster.merges` a function (`peer.numerics.merge_plugin`).
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
    """A part of a run that a package brings: `NAME==VERSION`, the entry point's group, and its name."""

    package: str
    group: str
    name: str

    def find(self) -> EntryPoint:
        """Where the package has it; raises UsageError unless that version is installed. Nothing of it is imported."""
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
        """Import it; raises UsageError if that cannot be."""
        entry = self.find()
        try:
            return entry.load()
        except Exception as error:  # noqa: BLE001 - whatever a package does when it is imported
            raise UsageError(
                f"the package {self.package} cannot be imported here: {type(error).__name__}: {error}"
            ) from None


def family_part(model: ModelSpec) -> Part | None:
    """The model's family, if a package brings it."""
    return None if model.package is None else Part(model.package, FAMILIES, model.family)


def merge_part(outer: OuterSpec) -> Part | None:
    """The merge rule, if a package brings it."""
    return None if outer.merge_package is None else Part(outer.merge_package, MERGES, outer.merge)


def parts_of(config: RunConfig) -> tuple[Part, ...]:
    """All that packages have to bring for this run."""
    return tuple(part for part in (family_part(config.model), merge_part(config.outer)) if part is not None)


def check_packages(config: RunConfig) -> None:
    """Raise UsageError unless every package of this run is installed in its version; nothing of them is imported."""
    for part in parts_of(config):
        part.find()
