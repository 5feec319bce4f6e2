"""`muster init`, and the run files that ship with Muster: in an installed package, or in a checkout's examples."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.validation_errors import nearest
from dht.errors import UsageError

TINY = "tiny"
PRESETS = {
    TINY: "four learners on two processor cores, bytes of Python's own source text, five minutes",
    "gpt2-124m": "GPT-2 with 124 million parameters, from your own text and tokenizer",
    "invite": "for friends: everybody with an invite takes part, and audits are on",
    "public": "for anybody: strangers on probation, bounded in every group, audited",
    "continue": "goes on with a finished model, on your own text",
    "chat-lora": "teaches a finished model to talk, with an adapter over four bits, on your own conversations",
}
_PACKAGED = "presets"
_CHECKOUT = Path(__file__).resolve().parents[2] / "examples"  # the same files before they are packed into a wheel
LISTED = "\n".join(f"  {name:<12}{words}" for name, words in PRESETS.items())
INIT_HELP = f"""Write a commented run file to begin from.

\b
Presets:
{LISTED}
"""


def init(
    file: Annotated[Path, typer.Argument(help="The run file to write; it must not exist yet.")] = Path("run.toml"),
    preset: Annotated[str, typer.Option(metavar="NAME", help="Which of the presets above.")] = TINY,
) -> None:
    """Write the preset of this name to `file`."""
    text = preset_text(preset)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists already; name another file") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    typer.echo(f"{file} is the preset {preset}. Change it, then see what it takes: muster check {file}")


def preset_text(name: str) -> str:
    """Return the text of the preset of this name; raises UsageError if there is none."""
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}{nearest(name, PRESETS)}; choose one of {', '.join(PRESETS)}")
    packaged = files("peer") / _PACKAGED / f"{name}.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (_CHECKOUT / f"{name}.toml").read_text(encoding="utf-8")
