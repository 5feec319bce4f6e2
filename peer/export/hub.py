"""A port to the Hugging Face Hub, with only what exports need, so that no other module depends on the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from dht.errors import NetworkError, UsageError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Hub(Protocol):
    """A place to publish exports."""

    def upload(self, folder: Path, message: str) -> None:
        """Publish the files in this folder and delete all earlier ones; raises NetworkError."""
        ...


class HuggingFaceHub:
    """A model repository; `api` is a `huggingface_hub.HfApi`."""

    def __init__(self, repository: str, api: Any) -> None:
        self._repository = repository
        self._api = api

    def upload(self, folder: Path, message: str) -> None:
        try:
            self._api.create_repo(self._repository, exist_ok=True)
            # this export's listing does not have the files of earlier exports, so they would not verify
            self._api.upload_folder(
                repo_id=self._repository, folder_path=folder, commit_message=message, delete_patterns="*"
            )
        except Exception as error:  # noqa: BLE001 - the HTTP library and its errors depend on the release
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise NetworkError(
                f"the Hugging Face Hub did not take {folder} for {self._repository} ({reason}); push it again later"
            ) from None


def open_hub(repository: str) -> Hub:
    """Return the repository `OWNER/NAME`; raises UsageError if this user has no token. Makes no call yet."""
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"{repository!r} is no repository of the Hugging Face Hub; write OWNER/NAME")
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise UsageError("there is no token for the Hugging Face Hub; log in with: hf auth login")
    return HuggingFaceHub(repository, HfApi())
