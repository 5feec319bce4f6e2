"""`muster init`: a run file to begin from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dht.errors import UsageError
from peer.cli.presets import PRESETS, TINY, preset_text

PRESET_HELP = "; ".join(f"{name}: {words}" for name, words in PRESETS.items()) + "."


def init(
    file: Annotated[Path, typer.Argument(help="The run file to write; it must not exist yet.")] = Path("run.toml"),
    preset: Annotated[str, typer.Option(help=PRESET_HELP)] = TINY,
) -> None:
    """Write a commented run file to begin from."""
    text = preset_text(preset)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists already; name another file") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    typer.echo(f"{file} is the preset {preset}. Change it, then see what it takes: muster check {file}")
