"""Exports base plus adapter as one folder for `transformers`, which holds the provable export of the adapter too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dht.errors import UsageError
from dht.files import sync
from dht.identity import Signer
from peer.export.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from peer.export.exported import Exported
from peer.export.model_files import TOKENIZER, TOKENIZER_CONFIG
from peer.export.writer import check_target, unfinished, write_export
from peer.model.base import base_folder, check_base
from peer.model.given import read_model
from peer.model.located import located
from peer.model.quiet import quietly

ADAPTER_FOLDER = "adapter"


def write_merged(target: Path, exported: Exported, signer: Signer, unix_seconds: int, base: str) -> None:
    """Write the whole model in the base's own dtype; `base` is the folder of the run's base, which is checked first.

    The sums are not signed, but anybody with the base can recompute them from the export in `adapter/`. Raises what
    `write_export` does, and UsageError if the run trains no adapter or the base is not the run's.
    """
    config = exported.manifest.config
    if config.adapter is None:
        raise UsageError("this run trains its model itself, so there is nothing to merge; export it without --merged")
    check_target(target)
    folder = base_folder(located(config, base).model.source)
    check_base(config.adapter, folder)
    with unfinished(target) as place:
        adapter = place / ADAPTER_FOLDER
        write_export(adapter, exported, signer, unix_seconds)
        with quietly():
            load_adapted(adapter, folder).merge_and_unload().save_pretrained(place)
        for name in (TOKENIZER, TOKENIZER_CONFIG):
            if (adapter / name).exists():
                shutil.copyfile(adapter / name, place / name)
        for path in place.iterdir():
            sync(path)
        place.chmod(0o755)
        place.rename(target)
        sync(target.parent)


def load_adapted(adapter: Path, base: Path) -> Any:
    """Load the `PeftModel` of these two folders, in the base's own dtype, on the processor."""
    from peft import PeftModel

    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (adapter / name).is_file():
            raise UsageError(f"{adapter} holds no adapter: it has no {name}")
    with quietly():
        model = read_model(base, dtype="auto", use_safetensors=True)
        return PeftModel.from_pretrained(model, adapter)
