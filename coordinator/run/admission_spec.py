"""Who may take part in a run: the table `[admission]` of a run file (docs/how-to/invites.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from pydantic import Field

from dht.wire import Wire

OPEN_GROUP_MIN = 4  # of an open run: in a smaller group one liar is a third

AdmissionMode: TypeAlias = Literal["invite", "list", "open"]


class AdmissionSpec(Wire):
    """Who may take part (docs/adr/0061). Without this table, `muster host` begins a run with `invite`."""

    OMITS_NONE: ClassVar[bool] = True

    mode: AdmissionMode = Field(
        "invite",
        description="`invite`: peers with an invite of the organiser; `list`: only peers that the organiser names; "
        "`open`: anybody, which needs the limits of `[trust]` (docs/how-to/strangers.md)",
        json_schema_extra={"enum": list(get_args(AdmissionMode))},
    )
    observers_get_states: bool = Field(False, description="whether peers that only observe may fetch the model")

    @property
    def asks_for_passes(self) -> bool:
        """Whether newcomers have to show a pass."""
        return self.mode != "open"

    def check(self, protections: Sequence[float], min_group: int) -> None:
        """Raise ValueError if the run is open and one of the `protections` is off: keys cost nothing."""
        if self.asks_for_passes:
            return
        if not all(protections):
            raise ValueError(
                'admission.mode = "open" needs trust.probation_rounds, trust.newcomers_share, trust.network_share and '
                "trust.audit_share, as in `muster init --preset public`; or let in by invite"
            )
        if min_group < OPEN_GROUP_MIN:
            raise ValueError(f'admission.mode = "open" needs pace.min_group of {OPEN_GROUP_MIN} at least')
