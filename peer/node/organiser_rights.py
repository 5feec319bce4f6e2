"""Whether this peer's owner may give orders and invites: as the organiser, or as a co-organiser with its word.

The word is a signature over this peer's key. It is given on as a line of text, and stays in the run's folder.
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
    """One peer's part in organising one run."""

    def __init__(self, core: Core, signer: Signer, folder: Path) -> None:
        self._core = core
        self._signer = signer
        self._path = folder / WORD_FILE

    @property
    def organises(self) -> bool:
        """Whether this is the organiser itself."""
        return self._signer.peer_id == self._core.rules.organiser

    def require(self) -> None:
        """Raises UsageError unless orders and invites of this peer count."""
        if not self.organises and self._word() is None:
            raise UsageError(
                f"only the organiser of the run and its co-organisers can do that; the organiser is "
                f"{self._core.rules.organiser}"
            )

    def may_give(self) -> bool:
        """Whether orders and invites of this peer count."""
        return self.organises or self._word() is not None

    def appoint(self, peer: PeerId) -> str:
        """The word that makes a peer a co-organiser, as text; raises UsageError if that is not ours to give."""
        if not self.organises:
            raise UsageError(f"only the organiser appoints co-organisers, and its key is {self._core.rules.organiser}")
        return delegate(self._signer, self._core.rules.run_id, peer).signature.hex()

    def accept(self, text: str) -> None:
        """Take up the word of the organiser; raises UsageError if it is none for this peer."""
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
        """An order of ours, with what shows that we may give it."""
        rules, word = self._core.rules, None if self.organises else self._word()
        shown = b"" if word is None else delegation_of(rules.authority, self._signer.peer_id, word).to_wire()
        return order_evidence(sign_order(self._signer, rules.run_id, order), shown)

    def grant(self, grant: Grant) -> SignedGrant:
        """A grant of ours, likewise."""
        return sign_grant(self._signer, self._core.rules.run_id, grant, None if self.organises else self._word())

    def _word(self) -> bytes | None:
        try:
            word = bytes.fromhex(self._path.read_text())
        except (OSError, ValueError):
            return None
        return word if is_deputy(self._signer.peer_id, word, self._core.rules.authority) else None
