"""Records held for others: bounded by count and bytes, in total, per key, per publisher and per bringer (case S3).

Of one slot under one key the greatest (seq, hash) stays, whatever arrives in whatever order (case D1); the same rule
holds for what is stored, read, handed on and republished, because all of them pass through `offer`. Nothing expired is
taken or given. A withdrawal is a record as well: it stays as long as what it ends could still be offered.

Records of strangers, that is of publishers whose admission is not known here, have a small share: of all, and of those
that one peer brought. They leave it when their publisher is heard to be a member, and are handed to nobody before.

Full is a typed answer, never an eviction: what a newcomer brings can push nobody out. Records are soft state, lost with
the process: their publishers and the other holders bring them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dht.config import DhtConfig
from protocol.capability import SignedRecord
from protocol.peer import PeerID

RECORD_OVERHEAD_BYTES: Final = 2_048  # what a decoded record costs in memory beside its bytes, rounded up

Slot = tuple[bytes, bytes]  # publisher, record key


class Verdict(StrEnum):
    """What became of an offered record; the words of case D1 where it has them."""

    NEW = "accept_new"
    REPLACED = "accept_replace"
    KNOWN = "accept_noop"
    OLDER = "reject_older"
    EQUIVOCATED = "keep_greater_hash"  # two contents under one number; the greater hash stays, old or new
    EXPIRED = "reject_expired"
    FULL = "full"
    QUOTA = "quota"

    @property
    def holds(self) -> bool:
        """True if this version, or a greater one, is held now."""
        return self not in (Verdict.EXPIRED, Verdict.FULL, Verdict.QUOTA)


@dataclass(slots=True)
class _Shelf:
    """The records under one key."""

    slots: dict[Slot, SignedRecord] = field(default_factory=dict)
    source: dict[Slot, PeerID] = field(default_factory=dict)
    bytes: int = 0


def _size(record: SignedRecord) -> int:
    return len(record.wire) + RECORD_OVERHEAD_BYTES


class RecordStore:
    """The store of one serving node."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._shelves: dict[bytes, _Shelf] = {}
        self._per_publisher: dict[bytes, int] = {}
        self._per_source: dict[bytes, int] = {}
        self._strangers: dict[tuple[bytes, Slot], PeerID] = {}  # key and slot -> who brought it
        self._strangers_per_source: dict[bytes, int] = {}
        self.count = 0
        self.bytes = 0

    @property
    def of_strangers(self) -> int:
        """How many of the records are in the share of strangers."""
        return len(self._strangers)

    def keys(self) -> list[bytes]:
        """Every key with records, in byte order."""
        return sorted(self._shelves)

    def clear(self) -> None:
        """Drop everything: this node serves no more."""
        self._shelves.clear()
        self._per_publisher.clear()
        self._per_source.clear()
        self._strangers.clear()
        self._strangers_per_source.clear()
        self.count = self.bytes = 0

    def get(self, key: bytes, slot: Slot) -> SignedRecord | None:
        """The record of a slot under a key, live or not."""
        shelf = self._shelves.get(key)
        return shelf.slots.get(slot) if shelf else None

    def slots(self, key: bytes) -> list[Slot]:
        """The slots under a key, in byte order."""
        shelf = self._shelves.get(key)
        return sorted(shelf.slots) if shelf else []

    def read(self, key: bytes, now_ms: int) -> list[SignedRecord]:
        """What may be given now, withdrawals included, in slot order."""
        shelf = self._shelves.get(key)
        if shelf is None:
            return []
        return [shelf.slots[slot] for slot in sorted(shelf.slots) if shelf.slots[slot].acceptable(now_ms)]

    def offer(
        self, key: bytes, record: SignedRecord, source: PeerID, now_ms: int, *, stranger: bool = False
    ) -> Verdict:
        """Take a verified record that belongs under the key, or say why not. `stranger`: see the head of this file."""
        if not record.acceptable(now_ms):
            return Verdict.EXPIRED
        slot = (record.publisher, record.key)
        old = self.get(key, slot)
        if old is None:
            if stranger and not self._has_room_for_strangers(source):
                return Verdict.QUOTA
            verdict = self._add(key, slot, record, source)
            if stranger and verdict is Verdict.NEW:
                self._strangers[key, slot] = source
                self._strangers_per_source[source] = self._strangers_per_source.get(source, 0) + 1
            return verdict
        if not stranger:
            self._acquaint(key, slot)
        if old.wire == record.wire:
            return Verdict.KNOWN
        if record.version < old.version:
            return Verdict.EQUIVOCATED if record.seq == old.seq else Verdict.OLDER
        shelf = self._shelves[key]
        grown = _size(record) - _size(old)
        if not self._fits(shelf, grown):
            return Verdict.FULL
        shelf.slots[slot] = record
        shelf.bytes += grown
        self.bytes += grown
        return Verdict.EQUIVOCATED if record.seq == old.seq else Verdict.REPLACED

    def _add(self, key: bytes, slot: Slot, record: SignedRecord, source: PeerID) -> Verdict:
        shelf = self._shelves.get(key) or _Shelf()
        config = self._config
        if self._per_publisher.get(slot[0], 0) >= config.records_per_publisher_max:
            return Verdict.QUOTA
        if self._per_source.get(source, 0) >= config.records_per_source_max:
            return Verdict.QUOTA
        full = self.count >= config.records_max or len(shelf.slots) >= config.records_per_key_max
        if full or not self._fits(shelf, _size(record)):
            return Verdict.FULL
        self._shelves[key] = shelf
        shelf.slots[slot] = record
        shelf.source[slot] = source
        shelf.bytes += _size(record)
        self.bytes += _size(record)
        self.count += 1
        self._per_publisher[slot[0]] = self._per_publisher.get(slot[0], 0) + 1
        self._per_source[source] = self._per_source.get(source, 0) + 1
        return Verdict.NEW

    def _has_room_for_strangers(self, source: PeerID) -> bool:
        config = self._config
        brought = self._strangers_per_source.get(source, 0)
        return (
            len(self._strangers) < config.records_of_strangers_max
            and brought < config.records_of_strangers_per_source_max
        )

    def is_stranger(self, key: bytes, slot: Slot) -> bool:
        """Whether the record of a slot under a key is in the share of strangers."""
        return (key, slot) in self._strangers

    def admit(self, is_member: Callable[[SignedRecord], bool]) -> None:
        """Records of strangers that are now known as members leave their share."""
        for key, slot in list(self._strangers):
            if is_member(self._shelves[key].slots[slot]):
                self._acquaint(key, slot)

    def _acquaint(self, key: bytes, slot: Slot) -> None:
        source = self._strangers.pop((key, slot), None)
        if source is not None:
            _take_one(self._strangers_per_source, source)

    def _fits(self, shelf: _Shelf, grown: int) -> bool:
        config = self._config
        return (
            self.bytes + grown <= config.records_bytes_max and shelf.bytes + grown <= config.records_per_key_bytes_max
        )

    def expire(self, now_ms: int) -> int:
        """Drop what may no longer be given; how many records that were."""
        before = self.count
        for key in self.keys():
            shelf = self._shelves[key]
            for slot in [slot for slot, record in shelf.slots.items() if not record.acceptable(now_ms)]:
                self._drop(key, slot)
        return before - self.count

    def _drop(self, key: bytes, slot: Slot) -> None:
        self._acquaint(key, slot)
        shelf = self._shelves[key]
        size = _size(shelf.slots.pop(slot))
        shelf.bytes -= size
        self.bytes -= size
        self.count -= 1
        _take_one(self._per_publisher, slot[0])
        _take_one(self._per_source, shelf.source.pop(slot))
        if not shelf.slots:
            del self._shelves[key]


def _take_one(counts: dict[bytes, int], name: bytes) -> None:
    """One less; nothing is remembered of whom nothing is held."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
