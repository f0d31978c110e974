"""The table of signed records: of each (publisher, key) the greatest version, within bounds, until its time is over.

It decides what has room and keeps what a machine asks for besides single records: fingerprints of all that is held
(gossip/record_digests.py), the records of a leaf, and everything that came after a given one.

**Room.** Anybody can make keys, so records of publishers whose admission is not known (by a link, or by the certificate
in their peer record) share a small table, and of that one peer that brings them fills only a part; one publisher has a
share; the whole is bounded. What is held may always be replaced. A member's record that finds the whole table full
takes the place of the oldest stranger's; where there is none it makes the table **incomplete** until an eighth of it is
free again. A light node holds its own records and the peer records of some others, and is never complete.

**Admission** ends with the certificate that gave it, by swarm time.

**Time.** A record is over at its expiry; a withdrawal when what it withdraws could no longer be offered. What is over
leaves by `expire`, in the order of time, at the cost of what leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal

from gossip.config import GossipConfig
from gossip.record_digests import LEAVES, Fingerprints, bucket_count, leaf_of
from protocol.admission import Genesis, check_chain
from protocol.capability import RECORD_TTL_MS, PeerValue, SignedRecord
from protocol.errors import DecodeError
from protocol.peer import PeerID

Slot = tuple[bytes, bytes]  # publisher, key
Lack = Literal["table", "publisher", "strangers"]  # what there is no room in
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
        self._keys: dict[bytes, dict[bytes, None]] = {}  # of each publisher, as they entered
        self._members: dict[bytes, int] = {}  # keys that are known to be admitted, until when; lately heard of last
        self._first_end_ms: int | None = None  # no admission ends before
        self._strangers: dict[Slot, PeerID | None] = {}  # records of all other keys by source, as they entered
        self._brought: dict[PeerID | None, int] = {}  # of these, by source
        self._overflowed = False
        self.now_ms = 0  # swarm time of this step; whose admission is over by then is no member
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
        """The records of this node, as they entered."""
        return [self._held[self._me, key] for key in self._keys.get(self._me, ())]

    def publishers(self) -> list[bytes]:
        """Whose records are held, in order."""
        return sorted(self._keys)

    def of_publisher(self, publisher: bytes) -> list[SignedRecord]:
        """The records of one publisher, as they entered."""
        return [self._held[publisher, key].record for key in self._keys.get(publisher, ())]

    def entered_after(self, entered: int) -> list[Held]:
        """What came after the record of this number, as it entered; takes the time of what came."""
        newer = list(takewhile(lambda held: held.entered > entered, reversed(self._held.values())))
        return newer[::-1]

    # ---- members

    def is_member(self, publisher: bytes) -> bool:
        """True iff this key is known to be admitted to the swarm now."""
        return publisher == self._me or self._members.get(publisher, -1) >= self.now_ms

    def admit(self, publisher: bytes, chain: tuple[bytes, ...]) -> bool:
        """Admit a key if this chain admits it now: its records leave the share of strangers. True if that is news."""
        if publisher == self._me:
            return False
        try:
            admission = check_chain(self._genesis, chain, publisher)
        except DecodeError:
            return False
        if not admission.nbf_ms <= self.now_ms <= admission.exp_ms:
            return False
        news = publisher not in self._members
        until_ms = max(self._members.pop(publisher, 0), admission.exp_ms)  # and in again, as the last
        self._members[publisher] = until_ms
        self._first_end_ms = until_ms if self._first_end_ms is None else min(self._first_end_ms, until_ms)
        for key in self._keys.get(publisher, ()) if news else ():
            self._forget_stranger((publisher, key))
        if len(self._members) > self._config.record_members_max:
            self._demote(next(iter(self._members)))
        return news

    def admit_by(self, record: SignedRecord) -> bool:
        """Admit the publisher if this is a peer record that carries its certificate. True if that is news."""
        if not isinstance(record.value, PeerValue):
            return False
        held = self.get((record.publisher, record.key))
        same = held is not None and isinstance(held.value, PeerValue) and held.value.cert == record.value.cert
        if same and self.is_member(record.publisher) and record.publisher != self._me:
            self._members[record.publisher] = self._members.pop(record.publisher)
            return False
        return self.admit(record.publisher, record.value.cert)

    def admit_held(self) -> list[bytes]:
        """The clock was set: look again at the peer records of strangers. Returns whom they admit now."""
        looked = [self._held[slot].record for slot in self._strangers]
        return [record.publisher for record in looked if self.admit_by(record)]

    def lapse(self) -> list[bytes]:
        """Whose admission is over by now; their records are those of strangers from now on."""
        if self._first_end_ms is None or self.now_ms <= self._first_end_ms:
            return []
        over = [publisher for publisher, until_ms in self._members.items() if until_ms < self.now_ms]
        for publisher in over:
            self._demote(publisher)
        self._first_end_ms = min(self._members.values(), default=None)
        return over

    def _demote(self, publisher: bytes) -> None:
        del self._members[publisher]
        for key in self._keys.get(publisher, ()):
            self._note_stranger((publisher, key), self._held[publisher, key].source)

    def _note_stranger(self, slot: Slot, source: PeerID | None) -> None:
        self._strangers[slot] = source
        self._brought[source] = self._brought.get(source, 0) + 1

    def _forget_stranger(self, slot: Slot) -> None:
        if slot not in self._strangers:
            return
        source = self._strangers.pop(slot)
        self._brought[source] -= 1
        if not self._brought[source]:
            del self._brought[source]

    # ---- room

    def indexed(self, record: SignedRecord) -> bool:
        """True iff this node means to hold records of this sort at all; a light node holds agents of its own only."""
        own = record.publisher == self._me
        return own or not self._config.light_index or isinstance(record.value, PeerValue)

    def lack(self, publisher: bytes, source: PeerID | None) -> Lack | None:
        """What a record in a new slot finds full; None if it may enter, perhaps in the place of another."""
        config = self._config
        if publisher == self._me:
            return None
        if not self.is_member(publisher):
            too_many = source is not None and self._brought.get(source, 0) >= config.record_strangers_per_peer_max
            if too_many or len(self._strangers) >= config.records_of_strangers_max:
                return "strangers"
        if len(self._keys.get(publisher, ())) >= config.records_per_publisher_max:
            return "publisher"
        if config.light_index:
            return "table" if len(self._held) - len(self._keys.get(self._me, ())) >= config.records_light_max else None
        if len(self._held) < config.records_max or (self.is_member(publisher) and self._strangers):
            return None
        return "table"

    def overflow(self) -> None:
        """A record found the whole table full."""
        self._overflowed = True

    def make_room(self) -> SignedRecord | None:
        """Before a record in a new slot enters: take out the oldest of a stranger if the whole table is full."""
        if self._config.light_index or len(self._held) < self._config.records_max or not self._strangers:
            return None
        slot = next(iter(self._strangers))
        record = self._held[slot].record
        self._remove(slot, record)
        return record

    def put(self, record: SignedRecord, source: PeerID | None) -> None:
        """Hold this version from now on."""
        slot, leaf = (record.publisher, record.key), leaf_of(record.key)
        old = self._held.pop(slot, None)
        keys = self._keys.setdefault(record.publisher, {})
        keys.pop(record.key, None)
        keys[record.key] = None
        if old is None:
            if record.publisher != self._me and record.publisher not in self._members:
                self._note_stranger(slot, source)
        else:
            self._sums.remove(leaf, old.record.hash)
            del self._leaves[leaf][slot]
        self.entered += 1
        held = Held(record, self.entered, source)
        self._held[slot] = self._leaves[leaf][slot] = held
        self._sums.add(leaf, record.hash)
        heapq.heappush(self._ends, (end_ms(record), slot))
        if len(self._ends) > 2 * len(self._held) + _SLACK:
            self._ends = [(end_ms(each.record), slot) for slot, each in self._held.items()]
            heapq.heapify(self._ends)

    def expire(self) -> list[SignedRecord]:
        """Take out what is over by now, and return it."""
        gone: list[SignedRecord] = []
        while self._ends and self._ends[0][0] <= self.now_ms:
            ended_ms, slot = heapq.heappop(self._ends)
            held = self._held.get(slot)
            if held is not None and end_ms(held.record) == ended_ms:
                self._remove(slot, held.record)
                gone.append(held.record)
        if len(self._held) * 8 <= self._config.records_max * 7:
            self._overflowed = False
        return gone

    def _remove(self, slot: Slot, record: SignedRecord) -> None:
        leaf = leaf_of(record.key)
        del self._held[slot], self._leaves[leaf][slot]
        self._sums.remove(leaf, record.hash)
        keys = self._keys[record.publisher]
        del keys[record.key]
        if not keys:
            del self._keys[record.publisher]
        self._forget_stranger(slot)

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


def end_ms(record: SignedRecord) -> int:
    """When a record leaves the table."""
    longest = record.issued_ms + RECORD_TTL_MS
    return longest if record.withdrawal else min(record.expiry_ms, longest)
