"""Whether this peer's owner may give orders and invites: as the organiser, or as a co-organiser.

A co-organiser has the organiser's signature over its key. It receives it as a line of text, and keeps it in the run's
folder.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.core.context import Core
from coordinator.trust.evidence import Evidence, order_evidence
from coordinator.trust.orders import Order, delegate, delegation_of, sign_order
from dht.admission import Grant, SignedGrant, is_deputy, sign_grant
from dht.errors import LocalError, UsageError
from dht.files import write_whole
from dht.identity import SIGNATURE_BYTES, PeerId, Signer

WORD_FILE = "co-organiser"


class OrganiserRights:
    """The rights of one peer to organise one run."""

    def __init__(self, core: Core, signer: Signer, folder: Path) -> None:
        self._core = core
        self._signer = signer
        self._path = folder / WORD_FILE

    @property
    def organises(self) -> bool:
        """Whether this peer is the organiser itself."""
        return self._signer.peer_id == self._core.rules.organiser

    def require(self) -> None:
        """Raise UsageError unless orders and invites of this peer count."""
        if not self.organises and self._word() is None:
            raise UsageError(
                f"only the organiser of the run and its co-organisers can do that; the organiser is "
                f"{self._core.rules.organiser}"
            )

    def may_give(self) -> bool:
        """Whether orders and invites of this peer count."""
        return self.organises or self._word() is not None

    def appoint(self, peer: PeerId) -> str:
        """Return the signature that makes a peer a co-organiser, as text; raises UsageError if we may not give it."""
        if not self.organises:
            raise UsageError(f"only the organiser appoints co-organisers, and its key is {self._core.rules.organiser}")
        return delegate(self._signer, self._core.rules.run_id, peer).signature.hex()

    def accept(self, text: str) -> None:
        """Keep the organiser's signature for this peer; raises UsageError if it is not valid for this peer and run."""
        try:
            word = bytes.fromhex(text)
        except ValueError:
            word = b""
        if len(word) != SIGNATURE_BYTES or not is_deputy(self._signer.peer_id, word, self._core.rules.authority):
            raise UsageError("this is not the organiser's word for this peer and this run; ask for it again")
        try:
            write_whole(self._path, text.encode())
        except OSError as error:
            raise LocalError(f"{self._path} cannot be written: {error.strerror}") from None

    def order(self, order: Order) -> Evidence:
        """Sign an order, with the proof that we may give it."""
        rules, word = self._core.rules, None if self.organises else self._word()
        shown = b"" if word is None else delegation_of(rules.authority, self._signer.peer_id, word).to_wire()
        return order_evidence(sign_order(self._signer, rules.run_id, order), shown)

    def grant(self, grant: Grant) -> SignedGrant:
        """Sign a grant, with the proof that we may give it."""
        return sign_grant(self._signer, self._core.rules.run_id, grant, None if self.organises else self._word())

    def _word(self) -> bytes | None:
        try:
            word = bytes.fromhex(self._path.read_text())
        except (OSError, ValueError):
            return None
        return word if is_deputy(self._signer.peer_id, word, self._core.rules.authority) else None
