"""The description of a run for people: its title, purpose, organiser, licence and data."""

from __future__ import annotations

from pydantic import Field

from dht.wire import Wire

# one line: no control characters, and none that turn the direction of text around
ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"


class AboutSpec(Wire):
    """The run in the organiser's own words: shown before people join, on the dashboard and in an export's card."""

    title: str = Field("", max_length=80, pattern=ONE_LINE, description="what the run is, in a few words")
    purpose: str = Field("", max_length=240, pattern=ONE_LINE, description="what it is for")
    organiser: str = Field("", max_length=120, pattern=ONE_LINE, description="who organises it, and how to reach them")
    url: str = Field("", max_length=200, pattern=r"^(https?://[!-~]+)?$", description="where to read more")
    licence: str = Field("", max_length=80, pattern=ONE_LINE, description="of the resulting model")
    data: str = Field("", max_length=200, pattern=ONE_LINE, description="what kind of text it learns from")

    def rows(self) -> list[tuple[str, str]]:
        """Return the texts that are given, each with its label."""
        known = (
            ("about", self.title),
            ("purpose", self.purpose),
            ("run by", self.organiser),
            ("read more", self.url),
            ("licence", self.licence),
            ("kind of data", self.data),
        )
        return [(label, text) for label, text in known if text]
