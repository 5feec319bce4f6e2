"""An owner's limits as `muster limits` and the dashboard show them. Only the peer knows what they mean.

The dashboard builds its form from these rows, so that each limit is described in one place only: where the peer checks
it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str


class OwnerLimit(BaseModel):
    """One key of `settings.toml`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    title: str = Field(description="in words, with its unit")
    meaning: str
    value: Value = Field(description="in force now; of the type that the key has")
    off: str = Field("", description="what 0 or no text means, in a word; empty if 0 is a value as any other")
    at_start: bool = Field(False, description="a change of it takes effect when the peer starts again")

    def change(self, value: Value) -> str:
        """Return the text that sets this value, as `--limit` takes it."""
        return f"{self.key}={str(value).lower() if isinstance(value, bool) else value}"


class OwnerLimits(BaseModel):
    """All limits of an owner, in the order of the documentation."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    limits: tuple[OwnerLimit, ...]
    sharers: int = Field(1, description="how many peers of this machine share them")
