"""Parsers for the options of commands: run files, addresses, devices, peer ids, and lists of one value per peer."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from coordinator.run.changes import parse_settings, with_changes
from coordinator.run.manifest import RunConfig
from dht.errors import PeerError, UsageError
from dht.identity import PeerId, public_key_of
from peer.cli.presets import TINY, preset_text

SLOWNESS_MAX = 1000.0
_DEVICE = re.compile(r"auto|cpu(,cpu){0,31}|cuda|cuda:[0-9]{1,2}(,cuda:[0-9]{1,2})*")


def run_file(argument: Path | None, option: Path | None) -> Path | None:
    """Return the run file, given as an argument or with --config; raises UsageError for both."""
    if argument is not None and option is not None:
        raise UsageError("the run file is given twice; leave out --config")
    return argument or option


def run_config(path: Path | None, versions: int | None, settings: Iterable[str] | None = None) -> RunConfig:
    """Return the run in this file, or the tiny run that ships with Muster; raises UsageError.

    `versions` replaces its length, and each of the settings is `TABLE.KEY=VALUE`.
    """
    config = RunConfig.parse(preset_text(TINY), "the tiny run") if path is None else RunConfig.from_toml(path)
    return _changed(config, versions, settings)


def hosted_run(
    path: Path | None, export: Path | None, versions: int | None, settings: Iterable[str] | None
) -> RunConfig:
    """Return what `run_config` does, or a run that continues this export; raises LocalError if that is incomplete."""
    if export is None:
        return run_config(path, versions, settings)
    if path is not None:
        raise UsageError("give a run file, or an export with --continue; --set changes keys of either")
    from peer.export.continued import continued

    return _changed(continued(export), versions, settings)


def _changed(config: RunConfig, versions: int | None, settings: Iterable[str] | None) -> RunConfig:
    config = config if versions is None else config.model_copy(update={"versions": versions})
    return with_changes(config, parse_settings(list(settings or ())))


def listen(text: str) -> str:
    """Return the text if it is an IP address to listen on; raises UsageError."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"--listen {text!r} is no IP address; 0.0.0.0 stands for all of this machine's") from None
    return text


def device(text: str) -> str:
    """Return the text if it names a device to train on, or several; raises UsageError."""
    if not _DEVICE.fullmatch(text):
        raise UsageError(
            f"--device {text!r} is none; say auto, cpu, cuda, cuda:1 for the second GPU, or cuda:0,cuda:1 for both"
        )
    names = text.split(",")
    if names[0] != "cpu" and len(set(names)) < len(names):
        raise UsageError(f"--device {text} names a GPU twice; name each once")
    return text


def one_device(text: str) -> str:
    """Return the text if it names one device to evaluate on; raises UsageError."""
    if "," in device(text):
        raise UsageError(f"--device {text} names several; an evaluation takes place on one")
    return text


def peer_ids(texts: Iterable[str]) -> tuple[str, ...]:
    """Return these texts as peer ids; raises UsageError if one is no peer id."""
    for text in texts:
        try:
            public_key_of(PeerId(text))
        except PeerError:
            raise UsageError(f"{text!r} is no peer id; its owner gets it with: muster id") from None
    return tuple(texts)


def by_peer(option: str, texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the number and the value of each `NUMBER:VALUE`; raises UsageError."""
    for text in texts:
        number, _, value = text.partition(":")
        if not (number.isdecimal() and value):
            raise UsageError(f"{option} {text!r} is not of the form NUMBER:VALUE, as in {option} 2:10")
        yield int(number), value


def attacks(texts: Sequence[str], peers: int) -> dict[int, str]:
    """Assign attacks to the last of so many peers; raises UsageError, also if no peer stays honest.

    Each text is `NAME:COUNT[:PARAMETER=VALUE]`. Returns the attack, as `NAME[:PARAMETER=VALUE]`, by peer number.
    """
    if not texts:
        return {}
    from peer.attacks.protocol import is_process_attack
    from peer.attacks.zoo import AttackOrder

    found: list[str] = []
    asked = 0
    for text in texts:
        count = AttackOrder.parse(text, is_process_attack).count
        name, _, rest = text.partition(":")
        _, colon, setting = rest.partition(":")
        asked += count
        found += [name + colon + setting] * min(count, peers + 1)
    if asked >= peers:
        raise UsageError(f"somebody must be honest: of {peers} peers {peers - 1} can attack, not {asked}")
    return dict(enumerate(found, peers - len(found) + 1))


def slowness(text: str) -> float:
    """Parse how many times slower than the others a peer is; raises UsageError."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= SLOWNESS_MAX:
        raise UsageError(f"a peer can be 1 to {SLOWNESS_MAX:g} times slower than the others, not {text!r}")
    return factor
