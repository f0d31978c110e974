"""Records whose signature was checked, by their exact bytes, so that no signature is checked twice.

An answer names twenty peers, nearly all of them known already; verifying each anew would cost 3 ms of every answer,
and reading their addresses as much again. Bounded; the longest unused goes first.

Keys are free and admission is not: whoever can sign could name any machine of the world as a node, and have everybody
dial it. So a peer record describes a contact only while the certificate in it admits its publisher. What a certificate
said is remembered per record, and the keys that one admitted are known as members until it ends.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from dht.routing_table import Contact
from dht.terms import Terms, Window
from protocol.capability import PeerValue, SignedRecord

V = TypeVar("V")


class VerifiedRecords:
    """The cache, and what it says of the publishers of records."""

    def __init__(self, terms: Terms, records_max: int) -> None:
        self._terms = terms
        self._max = records_max
        self._known: OrderedDict[bytes, SignedRecord] = OrderedDict()
        self._contacts: OrderedDict[bytes, Contact] = OrderedDict()
        self._windows: OrderedDict[bytes, Window | None] = OrderedDict()  # by the hash of a peer record
        self._members: OrderedDict[bytes, Window] = OrderedDict()  # by the key that a certificate admitted

    def read(self, wire: bytes) -> SignedRecord:
        """The record behind bytes.

        Raises:
            DecodeError: not a well-formed record signed by its publisher; not remembered.
        """
        record = self._known.get(wire)
        if record is None:
            record = SignedRecord.from_wire(wire, self._terms.verify)
        self._keep(self._known, wire, record)
        return record

    def contact(self, wire: bytes, now_ms: int) -> Contact | None:
        """The contact that a peer record describes; None if it names nobody who could be asked now, or no member.

        Raises:
            DecodeError: as `read`.
        """
        contact = self._contacts.get(wire)
        if contact is None:
            record = self.read(wire)
            if not isinstance(record.value, PeerValue):
                return None
            contact = Contact(record)
        self._keep(self._contacts, wire, contact)
        usable = contact.addrs and contact.record.live(now_ms) and self.certified(contact.record, now_ms)
        return contact if usable else None

    def certified(self, record: SignedRecord, now_ms: int) -> bool:
        """Whether this is a peer record whose certificate admits its publisher now."""
        if not isinstance(record.value, PeerValue):
            return False
        known = record.hash in self._windows
        window = self._windows[record.hash] if known else self._terms.admission(record.publisher, record.value.cert)
        self._keep(self._windows, record.hash, window)
        if window is None or not window[0] <= now_ms <= window[1]:
            return False
        self._keep(self._members, record.publisher, window)
        return True

    def of_member(self, record: SignedRecord, now_ms: int) -> bool:
        """Whether the publisher of a record is known to be admitted."""
        if self._terms.admitted(record.publisher) or self.certified(record, now_ms):
            return True
        first_ms, last_ms = self._members.get(record.publisher, (now_ms + 1, 0))
        return first_ms <= now_ms <= last_ms

    def usable(self, record: SignedRecord, now_ms: int) -> bool:
        """Whether a record that an answer gives may be used: its time, its encoder, and no address of a stranger."""
        if not record.acceptable(now_ms) or not self._terms.fits(record):
            return False
        return not isinstance(record.value, PeerValue) or self.of_member(record, now_ms)

    def fits(self, record: SignedRecord) -> bool:
        """Whether a record is of the swarm's encoder."""
        return self._terms.fits(record)

    def _keep(self, cache: OrderedDict[bytes, V], name: bytes, value: V) -> None:
        """Remember as the newest; the longest unused goes."""
        cache[name] = value
        cache.move_to_end(name)
        if len(cache) > self._max:
            cache.popitem(last=False)
