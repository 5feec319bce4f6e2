"""A family of models that an installed package brings. A manifest names package and version, and nothing is fetched.

The package has an entry point in the group `muster.families`: its name is the family, and what it names is imported to
have config and class registered with `transformers` (`AutoConfig.register`, `AutoModelForCausalLM.register`).
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, PackageNotFoundError, distribution

from coordinator.model_spec import ModelSpec
from dht.errors import UsageError

GROUP = "muster.families"


def check_package(spec: ModelSpec) -> None:
    """Raise UsageError unless the package that `spec` names is installed here, in that version and with that family.

    Nothing of it is imported.
    """
    if spec.package is not None:
        _entry_point(spec, spec.package)


def register_family(spec: ModelSpec) -> None:
    """Have the package that `spec` names, if any, register its family; raises UsageError if it cannot be."""
    if spec.package is None:
        return
    entry = _entry_point(spec, spec.package)
    try:
        entry.load()
    except Exception as error:  # noqa: BLE001 - whatever a package does when it is imported
        raise UsageError(
            f"the package {spec.package} cannot be imported here: {type(error).__name__}: {error}"
        ) from None


def _entry_point(spec: ModelSpec, package: str) -> EntryPoint:
    name, _, version = package.partition("==")
    advice = f"see what it is before you trust it, then: pip install {package}"
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise UsageError(f"this run's model comes with the package {name}, which is not installed; {advice}") from None
    if found.version != version:
        raise UsageError(
            f"this run's model comes with {name} {version}, and {found.version} of it is installed; {advice}"
        )
    entries = found.entry_points.select(group=GROUP, name=spec.family)
    if not entries:
        raise UsageError(f"the package {name} {version} brings no family {spec.family} ({GROUP})")
    return next(iter(entries))
