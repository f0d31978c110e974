"""The table of signed records: of each (publisher, key) the greatest version, within bounds, until its time is over.

It decides what has room and keeps what a machine asks for besides single records: fingerprints of all that is held
(gossip/record_digests.py), the records of a leaf, and everything that came after a given one.

**Room.** Anybody can make keys, so records of publishers whose admission is not known (by a link, or by the certificate
in their peer record) share a small table; one publisher has a share; the whole is bounded. What is held may always be
replaced. A record that found the whole table full makes it **incomplete** until an eighth of it is free again.
A light node holds its own records and the peer records of some others, and is never complete.

**Time.** A record is over at its expiry; a withdrawal when what it withdraws could no longer be offered. What is over
leaves by `expire`, in the order of time, at the cost of what leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gossip.config import GossipConfig
from gossip.record_digests import LEAVES, Fingerprints, bucket_count, leaf_of
from protocol.admission import Genesis, check_chain
from protocol.capability import RECORD_TTL_MS, PeerValue, SignedRecord
from protocol.errors import DecodeError
from protocol.peer import PeerID

Slot = tuple[bytes, bytes]  # publisher, key
_SLACK: Final = 64


@dataclass(frozen=True, slots=True)
class Held:
    """A record that is held: when it came, as a number that only grows, and who gave it (None: this node)."""

    record: SignedRecord
    entered: int
    source: PeerID | None


class RecordTable:
    """The table; versions are compared by the caller."""

    def __init__(self, me: bytes, genesis: Genesis, config: GossipConfig) -> None:
        self._me = me
        self._genesis = genesis
        self._config = config
        self._held: dict[Slot, Held] = {}  # in the order in which they entered
        self._leaves: list[dict[Slot, Held]] = [{} for _ in range(LEAVES)]  # the same, each in that order
        self._sums = Fingerprints()
        self._ends: list[tuple[int, Slot]] = []  # a heap; entries of what was replaced are passed over
        self._per_publisher: dict[bytes, int] = {}
        self._members: dict[bytes, None] = {}  # keys that are known to be admitted, lately heard of last
        self._of_strangers = 0  # records of all other keys
        self._overflowed = False
        self.entered = 0  # the number of the newest record

    def __len__(self) -> int:
        return len(self._held)

    @property
    def complete(self) -> bool:
        """False where records of others may be missing because there was no room for them, or none is meant to be."""
        return not self._overflowed and not self._config.light_index

    def get(self, slot: Slot) -> SignedRecord | None:
        """The version that is held."""
        held = self._held.get(slot)
        return held.record if held is not None else None

    def in_order(self) -> list[SignedRecord]:
        """All records, in (publisher, key) order."""
        return [self._held[slot].record for slot in sorted(self._held)]

    def of_leaf(self, leaf: int) -> Collection[Held]:
        """The records of one leaf, as they entered."""
        return self._leaves[leaf].values()

    def own(self) -> list[Held]:
        """The records of this node, as they entered; takes the time of all."""
        return [held for slot, held in self._held.items() if slot[0] == self._me]

    def entered_after(self, entered: int) -> list[Held]:
        """What came after the record of this number, as it entered; takes the time of what came."""
        newer = list(takewhile(lambda held: held.entered > entered, reversed(self._held.values())))
        return newer[::-1]

    # ---- members

    def is_member(self, publisher: bytes) -> bool:
        """True iff this key is known to have been admitted to the swarm."""
        return publisher == self._me or publisher in self._members

    def admit(self, publisher: bytes) -> None:
        """The key is known to be admitted: its records leave the share of strangers."""
        if publisher == self._me:
            return
        if publisher in self._members:
            del self._members[publisher]  # and in again: who was heard of longest ago is forgotten first
        else:
            self._of_strangers -= self._per_publisher.get(publisher, 0)
        self._members[publisher] = None
        if len(self._members) > self._config.record_members_max:
            oldest = next(iter(self._members))
            del self._members[oldest]
            self._of_strangers += self._per_publisher.get(oldest, 0)

    def admit_by(self, record: SignedRecord) -> None:
        """Admit the publisher if this is a peer record that carries its certificate."""
        if not isinstance(record.value, PeerValue):
            return
        if not self.is_member(record.publisher):
            try:
                check_chain(self._genesis, record.value.cert, record.publisher)
            except DecodeError:
                return
        self.admit(record.publisher)

    # ---- room

    def indexed(self, record: SignedRecord) -> bool:
        """True iff this node means to hold records of this sort at all; a light node holds agents of its own only."""
        own = record.publisher == self._me
        return own or not self._config.light_index or isinstance(record.value, PeerValue)

    def within_share(self, publisher: bytes) -> bool:
        """True iff it is the whole table that is full, and not the share of a stranger or of this publisher."""
        used = self._per_publisher.get(publisher, 0)
        return self.is_member(publisher) and used < self._config.records_per_publisher_max

    def has_room(self, record: SignedRecord) -> bool:
        """True iff a record in a new slot may enter."""
        publisher, config = record.publisher, self._config
        if publisher == self._me:
            return True
        if not self.is_member(publisher) and self._of_strangers >= config.records_of_strangers_max:
            return False
        if self._per_publisher.get(publisher, 0) >= config.records_per_publisher_max:
            return False
        if config.light_index:
            return len(self._held) - self._per_publisher.get(self._me, 0) < config.records_light_max
        full = len(self._held) >= config.records_max
        self._overflowed = self._overflowed or full
        return not full

    def put(self, record: SignedRecord, source: PeerID | None) -> None:
        """Hold this version from now on."""
        slot, leaf = (record.publisher, record.key), leaf_of(record.key)
        old = self._held.pop(slot, None)
        if old is None:
            self._per_publisher[record.publisher] = self._per_publisher.get(record.publisher, 0) + 1
            self._of_strangers += not self.is_member(record.publisher)
        else:
            self._sums.remove(leaf, old.record.hash)
            del self._leaves[leaf][slot]
        self.entered += 1
        held = Held(record, self.entered, source)
        self._held[slot] = self._leaves[leaf][slot] = held
        self._sums.add(leaf, record.hash)
        heapq.heappush(self._ends, (_end_ms(record), slot))
        if len(self._ends) > 2 * len(self._held) + _SLACK:
            self._ends = [(_end_ms(each.record), slot) for slot, each in self._held.items()]
            heapq.heapify(self._ends)

    def expire(self, now_ms: int) -> list[SignedRecord]:
        """Take out what is over, and return it."""
        gone: list[SignedRecord] = []
        while self._ends and self._ends[0][0] <= now_ms:
            end_ms, slot = heapq.heappop(self._ends)
            held = self._held.get(slot)
            if held is not None and _end_ms(held.record) == end_ms:
                self._remove(slot, held.record)
                gone.append(held.record)
        if len(self._held) * 8 <= self._config.records_max * 7:
            self._overflowed = False
        return gone

    def _remove(self, slot: Slot, record: SignedRecord) -> None:
        leaf = leaf_of(record.key)
        del self._held[slot], self._leaves[leaf][slot]
        self._sums.remove(leaf, record.hash)
        left = self._per_publisher[record.publisher] - 1
        if left:
            self._per_publisher[record.publisher] = left
        else:
            del self._per_publisher[record.publisher]
        self._of_strangers -= not self.is_member(record.publisher)

    # ---- fingerprints

    def frame(self) -> bytes:
        """The fingerprints of all that is held, as many as fit its number."""
        return self._sums.frame(bucket_count(len(self._held)))

    def differing(self, frame: bytes) -> list[int]:
        """The leaves of the buckets that a peer's frame tells otherwise.

        Raises:
            DecodeError: the frame is none.
        """
        return self._sums.differing(frame)


def _end_ms(record: SignedRecord) -> int:
    longest = record.issued_ms + RECORD_TTL_MS
    return longest if record.withdrawal else min(record.expiry_ms, longest)
