"""Records whose signature was checked, by their exact bytes, so that no signature is checked twice.

An answer names twenty peers, nearly all of them known already; verifying each anew would cost 3 ms of every answer,
and reading their addresses as much again. Bounded; the longest unused goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from dht.routing_table import Contact
from protocol.capability import PeerValue, SignedRecord
from protocol.identity import Verify


class VerifiedRecords:
    """The cache."""

    def __init__(self, verify: Verify, records_max: int) -> None:
        self._verify = verify
        self._max = records_max
        self._known: OrderedDict[bytes, SignedRecord] = OrderedDict()
        self._contacts: OrderedDict[bytes, Contact] = OrderedDict()

    def read(self, wire: bytes) -> SignedRecord:
        """The record behind bytes.

        Raises:
            DecodeError: not a well-formed record signed by its publisher; not remembered.
        """
        record = self._known.get(wire)
        if record is None:
            record = SignedRecord.from_wire(wire, self._verify)
            self._known[wire] = record
            if len(self._known) > self._max:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(wire)
        return record

    def contact(self, wire: bytes, now_ms: int) -> Contact | None:
        """The contact that a peer record describes; None if it names nobody who could be asked now.

        Raises:
            DecodeError: as `read`.
        """
        contact = self._contacts.get(wire)
        if contact is None:
            record = self.read(wire)
            if not isinstance(record.value, PeerValue):
                return None
            contact = self._contacts[wire] = Contact(record)
            if len(self._contacts) > self._max:
                self._contacts.popitem(last=False)
        else:
            self._contacts.move_to_end(wire)
        return contact if contact.addrs and contact.record.live(now_ms) else None
