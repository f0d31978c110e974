"""The replicated map of signed records: last writer wins, with expiry (protocol.md §8, replication.md §8).

Records are pushed whole to every new link and, when one changes, to every linked peer but the one it came from.
A record that does not change the map is not forwarded, so a flood ends. Own records are pushed again once a minute,
because a frame can be lost; what a full queue refused is pushed when it has room.

Nothing expired is offered or taken. A withdrawal is kept and offered as long as what it withdraws could still be, so
that nothing comes back and who missed it learns of it from anybody. Own records are signed anew at a third of their
life and when their value changes, but only those that this life published: what only the last life offered is
withdrawn at boot. Two contents under one sequence number are the publisher's equivocation: every node keeps the
greater hash, and counts it (case D1).

Anybody can make keys, so records of keys whose admission is not known (by a link, or by the certificate in their peer
record) fill a small table of their own at most.
"""

from __future__ import annotations

from gossip.context import Context
from gossip.events import Linked, OwnRecord, Publish, RecordChanged, Unlinked, Withdraw
from protocol.admission import check_chain
from protocol.capability import (
    RECORD_TTL_MS,
    AgentValue,
    PeerValue,
    SignedRecord,
    Value,
    key_of,
    make_record,
    record_key,
)
from protocol.errors import DecodeError
from protocol.machine import (
    Boot,
    Count,
    Effect,
    Local,
    Persist,
    Received,
    Send,
    SendDropped,
    SetTimer,
    Stopping,
    TimerFired,
    TimerKey,
    Writable,
)
from protocol.messages import RECORDS_MAX, Records
from protocol.peer import PeerID
from protocol.store import RecordGone, RecordRow, Row
from protocol.transport import Lane

MACHINE = "records"
_MINUTE_US = 60_000_000
_Slot = tuple[bytes, bytes]  # publisher, key


class RecordMap:
    """The machine."""

    def __init__(self, ctx: Context) -> None:
        self._keys = ctx.keys
        self._clock = ctx.clock
        self._config = ctx.config
        self._jobs = ctx.jobs
        self._store = ctx.store
        self._verify = ctx.verify
        self._map: dict[_Slot, SignedRecord] = {}
        self._linked: dict[PeerID, None] = {}
        self._owed: dict[PeerID, None] = {}  # links whose full queue refused records
        self._published: dict[_Slot, Value] = {}  # by this life
        self._per_publisher: dict[bytes, int] = {}
        self._genesis = ctx.genesis
        self._members: dict[bytes, None] = {ctx.keys.public: None}  # keys that are known to be admitted
        self._of_strangers = 0  # records of all other keys

    def live(self, now_us: int) -> list[SignedRecord]:
        """Every record that may be used now, in (publisher, key) order."""
        now_ms = self._clock.now_ms(now_us)
        return [self._map[slot] for slot in sorted(self._map) if self._map[slot].live(now_ms)]

    def _offered(self, now_us: int) -> list[SignedRecord]:
        """What a new link is given: live records, and withdrawals that still matter."""
        now_ms = self._clock.now_ms(now_us)
        return [self._map[slot] for slot in sorted(self._map) if self._map[slot].acceptable(now_ms)]

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Records, links and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                return self._on_boot(now_us)
            case Linked(peer, _):
                self._linked[peer] = None
                self._admit(peer)
                return self._push(peer, self._offered(now_us))
            case Unlinked(peer):
                self._linked.pop(peer, None)
                self._owed.pop(peer, None)
                return []
            case Publish(value):
                return self._publish(value, now_us)
            case Withdraw(agent):
                return self._withdraw(record_key(self._keys.public, "agent", agent), now_us)
            case Received(peer, Records(records)) if peer in self._linked:
                return self._on_records(peer, records, now_us)
            case SendDropped(peer, "Records", _) if peer in self._linked:
                self._owed[peer] = None
                return []
            case Writable(peer) if peer in self._owed:
                del self._owed[peer]
                return self._push(peer, self._offered(now_us))
            case TimerFired(TimerKey(_, "refresh")):
                return self._on_refresh(now_us)
            case TimerFired(TimerKey(_, "minute")):
                return self._on_minute(now_us)
            case Stopping():
                agents = [slot[1] for slot, value in self._published.items() if isinstance(value, AgentValue)]
                return [effect for key in sorted(agents) for effect in self._withdraw(key, now_us)]
            case _:
                return []

    def _on_boot(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us),
            SetTimer(TimerKey(MACHINE, "minute"), now_us + _MINUTE_US),
        ]
        for wire in self._store.records():
            try:
                record = SignedRecord.from_wire(wire, self._verify)
            except DecodeError:
                effects.append(Count("stored_records_unreadable"))
                continue
            self._enter(record)
            own = record.publisher == self._keys.public
            if own and isinstance(record.value, AgentValue):
                effects += self._withdraw(record.key, now_us)
            elif record.live(self._clock.now_ms(now_us)):
                effects.append(Local(RecordChanged(record, live=True)))
        return effects

    def _publish(self, value: Value, now_us: int) -> list[Effect]:
        slot = (self._keys.public, key_of(self._keys.public, value))
        old = self._map.get(slot)
        self._published[slot] = value
        if old is not None and old.value == value and old.live(self._clock.now_ms(now_us)):
            return []
        return self._sign(value, old, now_us)

    def _sign(self, value: Value, old: SignedRecord | None, now_us: int, ttl_ms: int = RECORD_TTL_MS) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        # Time-based: it grows though the database was lost. After the stored one: it grows though the clock fell back.
        seq = max(now_ms, old.seq + 1 if old else 0)
        wire = make_record(self._keys, value, seq=seq, issued_ms=now_ms, ttl_ms=ttl_ms)
        return self._take(SignedRecord.from_wire(wire, self._verify), None, now_us)

    def _withdraw(self, key: bytes, now_us: int) -> list[Effect]:
        slot = (self._keys.public, key)
        old = self._map.get(slot)
        self._published.pop(slot, None)
        if old is None or not old.live(self._clock.now_ms(now_us)):
            return []
        return self._sign(old.value, old, now_us, ttl_ms=0)

    def _on_records(self, peer: PeerID, records: tuple[bytes, ...], now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for wire in records:
            try:
                record = SignedRecord.from_wire(wire, self._verify)
            except DecodeError:
                effects.append(Count("records_refused"))
                continue
            if not self._comparable(record.value):
                effects.append(Count("records_of_another_encoder"))
            elif record.acceptable(self._clock.now_ms(now_us)):
                effects += self._own_record(record)
                effects += self._take(record, peer, now_us)
            else:
                effects.append(Count("records_expired"))
        return effects

    def _comparable(self, value: Value) -> bool:
        """Whether a vector, where there is one, is of the swarm's encoder: no other means anything here."""
        if not isinstance(value, AgentValue) or value.vector is None:
            return True
        return value.encoder == self._genesis.encoder.id and len(value.vector) == self._genesis.encoder.dim

    def _own_record(self, record: SignedRecord) -> list[Effect]:
        if record.publisher != self._keys.public:
            return []
        own = self._map.get((record.publisher, record.key))
        return [Local(OwnRecord(record, newer=own is None or record.version > own.version))]

    def _take(self, record: SignedRecord, source: PeerID | None, now_us: int) -> list[Effect]:
        slot = (record.publisher, record.key)
        old = self._map.get(slot)
        counted: list[Effect] = []
        if old is not None and old.seq == record.seq and old.hash != record.hash:
            counted.append(Count("records_equivocated"))
        if old is not None and record.version <= old.version:
            return counted
        if old is None and not self._has_room(record):
            return [Count("records_full")]
        self._enter(record)
        effects: list[Effect] = [
            *counted,
            Persist(self._jobs.next(), (RecordRow(record.publisher, record.key, record.wire),)),
            Local(RecordChanged(record, record.live(self._clock.now_ms(now_us)))),
        ]
        for peer in sorted(self._linked):
            effects += self._push(peer, [record]) if peer != source else []
        return effects

    def _enter(self, record: SignedRecord) -> None:
        slot, publisher = (record.publisher, record.key), record.publisher
        if slot not in self._map:
            self._per_publisher[publisher] = self._per_publisher.get(publisher, 0) + 1
            self._of_strangers += publisher not in self._members
        self._map[slot] = record
        if isinstance(record.value, PeerValue) and self._admits(record.value, publisher):
            self._admit(publisher)

    def _admits(self, value: PeerValue, publisher: bytes) -> bool:
        try:
            check_chain(self._genesis, value.cert, publisher)
        except DecodeError:
            return False
        return True

    def _admit(self, publisher: bytes) -> None:
        if publisher not in self._members:
            self._members[publisher] = None
            self._of_strangers -= self._per_publisher.get(publisher, 0)

    def _has_room(self, record: SignedRecord) -> bool:
        publisher = record.publisher
        if publisher == self._keys.public:
            return True
        member = publisher in self._members or (
            isinstance(record.value, PeerValue) and self._admits(record.value, publisher)
        )
        if not member and self._of_strangers >= self._config.records_of_strangers_max:
            return False
        full = self._per_publisher.get(publisher, 0) >= self._config.records_per_publisher_max
        return not full and len(self._map) < self._config.records_max

    def _push(self, peer: PeerID, records: list[SignedRecord]) -> list[Effect]:
        wires = [record.wire for record in records]
        return [
            Send(peer, Lane.BULK, Records(tuple(wires[start : start + RECORDS_MAX])))
            for start in range(0, len(wires), RECORDS_MAX)
        ]

    def _on_refresh(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us)]
        for slot in sorted(self._published):
            effects += self._sign(self._published[slot], self._map.get(slot), now_us)
        return effects

    def _on_minute(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "minute"), now_us + _MINUTE_US), *self._expire(now_us)]
        own = [record for record in self._offered(now_us) if record.publisher == self._keys.public]
        for peer in sorted(self._linked):
            effects += self._push(peer, own)
        return effects

    def _expire(self, now_us: int) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        effects: list[Effect] = []
        rows: list[Row] = []
        for slot in sorted(self._map):
            record = self._map[slot]
            if record.acceptable(now_ms) or record.issued_ms > now_ms:
                continue
            del self._map[slot]
            self._per_publisher[record.publisher] -= 1
            self._of_strangers -= record.publisher not in self._members
            rows.append(RecordGone(*slot))
            if not record.withdrawal:
                effects.append(Local(RecordChanged(record, live=False)))
        return [*effects, Persist(self._jobs.next(), tuple(rows))] if rows else effects
