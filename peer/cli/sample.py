"""`muster sample`: print text by the newest certified model, from an export or from the peer here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.common import AsJson, Base, Data, tell
from peer.cli.export import Run, export_here
from peer.machine import paths
from peer.machine.text import printable

app = typer.Typer()

TOKENS = 200
SEED_MAX = 2**63 - 1  # torch takes no more than 64 bits


@app.command(epilog="Example: muster sample my-model --prompt Once")
def sample(
    directory: Annotated[Path | None, typer.Argument(help="The folder of an export; default: the peer here.")] = None,
    data: Data = None,
    run: Run = "",
    base: Base = "",
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "The",
    chat: Annotated[str | None, typer.Option(metavar="TEXT", help="Ask this, of a model trained on chat.")] = None,
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="How many tokens to write.")] = TOKENS,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0 always takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, max=SEED_MAX, help="The same seed writes the same text.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print text that the newest certified model writes."""
    from peer.export.sampler import Sampler
    from peer.export.source import base_of_export

    home = paths.data_directory(data)
    if directory is not None:
        sampler = Sampler.load(directory, base_of_export(directory, home, base))
    else:
        with tempfile.TemporaryDirectory(prefix="muster-sample-") as folder:
            place = Path(folder) / "model"
            export_here(place, home, run)
            sampler = Sampler.load(place, base_of_export(place, home, base))
    how = (tokens, temperature, seed)
    said = sampler.write(prompt, *how) if chat is None else sampler.answer(chat, *how)
    told = {"prompt": prompt if chat is None else chat, "text": said, "seed": seed, "temperature": temperature}
    tell("\n".join(map(printable, said.splitlines())), told, as_json)
