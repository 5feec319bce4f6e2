"""Tells that a run file which changed since its run began starts another run, and how to continue the first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.run.model_spec import WRITTEN_BY
from dht.identity import PeerId
from dht.wire import Wire
from peer.machine.paths import run_path

STEPS_SHOWN = 3
CHARACTERS_SHOWN = 40  # of a value: a longer one is not a setting that a person types again


def earlier_run(known: Iterable[Manifest], described: RunConfig, me: PeerId) -> Manifest | None:
    """Return the newest run of this name that we host; None if this one starts from given weights and that did not."""
    ours = (one for one in known if (one.organiser, one.config.name) == (me, described.name))
    newest = max(ours, key=lambda one: one.created_unix_seconds, default=None)
    goes_on = newest is not None and (newest.config.model.weights, described.model.weights) == ("seeded", "given")
    return None if goes_on else newest


def new_run_line(earlier: Manifest, described: RunConfig, data_directory: Path) -> str:
    """Return the message for the organiser of both runs."""
    config = described.model_copy(update={"admission": described.admission or earlier.config.admission})
    before, now = (dict(_settings(one)) for one in (earlier.config, config))
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    steps = [_again(key, before.get(key)) for key in changed if len(str(before.get(key))) <= CHARACTERS_SHOWN]
    if not steps or len(steps) < len(changed):
        steps.append("bring back its files as they were")
    more = f", and change {len(steps) - STEPS_SHOWN} more back" if len(steps) > STEPS_SHOWN else ""
    back = ", ".join(steps[:STEPS_SHOWN]) + more
    return (
        f"this begins a new run; the last one called {earlier.config.name}, {earlier.run_id.hex()[:12]}, stays in "
        f"{run_path(data_directory, earlier.run_id)}: to go on with it, {back}"
    )


def _settings(table: Wire, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings of a run file by dotted key, without those that its host adds."""
    for name, field in type(table).model_fields.items():
        extra, value = field.json_schema_extra, getattr(table, name)
        if isinstance(extra, dict) and WRITTEN_BY in extra:
            continue
        if isinstance(value, Wire):
            yield from _settings(value, f"{above}{name}.")
        else:
            yield above + name, value


def _again(key: str, value: object) -> str:
    return f"leave out {key}" if value is None else f"set {key} = {json.dumps(value)}"
