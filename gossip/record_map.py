"""The replicated map of signed records: last writer wins, with expiry (protocol.md §8, replication.md §8).

Two ways bring a record to everybody. A change spreads **through the mesh** as a message of the topic `records`: its
publisher broadcasts it, each node judges it and lets it pass only if it changes the own map, so a flood ends. What the
mesh lost, or a node that was not there missed, is found by **exchanges of digests** between linked peers
(gossip/record_sync.py): never gossip alone (complaint 13). What an exchange brings is not broadcast, or every join
would be a storm, unless it was signed within `record_fresh_ms`: then it is on its way, and others miss it too.

Nothing expired is offered or taken. A withdrawal is kept and offered as long as what it withdraws could still be, so
that nothing comes back and who missed it learns of it from anybody. Own records are signed anew at a third of their
life and when their value changes, but only those that this life published: what only the last life offered is
withdrawn at boot. Two contents under one sequence number are the publisher's equivocation: every node keeps the
greater hash, and counts it (case D1).

Blame is for what anybody can see is wrong: bytes that are no signed record, or a life longer than a record may have.
An expired record, one from the future and one that is known are ignored: a clock, a slow path or a replay brought
them, and who forwarded them could not know.

What is held within which bounds is the business of gossip/record_table.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from gossip.context import Context
from gossip.events import (
    Arrived,
    Broadcast,
    Judged,
    Linked,
    OwnRecord,
    Publish,
    RecordChanged,
    Unlinked,
    Verdict,
    Withdraw,
)
from gossip.record_sync import MACHINE, RecordSync
from gossip.record_table import RecordTable, Slot
from protocol.capability import (
    RECORD_TTL_MS,
    AgentValue,
    SignedRecord,
    UnknownKind,
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
from protocol.messages import RecordDigests, Records, message_id
from protocol.peer import PeerID
from protocol.store import RecordGone, RecordRow, Row
from protocol.transport import Lane

TOPIC: Final = "records"
_MINUTE_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What a record that came is worth; the record, where it could be held; what follows."""

    verdict: Verdict
    record: SignedRecord | None
    effects: list[Effect]


class RecordMap:
    """The machine. `rng` draws the peer of a round and the pauses between rounds; by default seeded by the own key."""

    def __init__(self, ctx: Context, rng: random.Random | None = None) -> None:
        self._keys = ctx.keys
        self._genesis = ctx.genesis
        self._clock = ctx.clock
        self._config = ctx.config
        self._jobs = ctx.jobs
        self._store = ctx.store
        self._verify = ctx.verify
        self._rng = rng = rng or random.Random(ctx.me)
        self._table = RecordTable(ctx.me, ctx.genesis, ctx.config)
        self._sync = RecordSync(self._table, ctx.clock, ctx.config, rng)
        self._published: dict[Slot, Value] = {}  # by this life
        self._rows: list[Row] = []  # to be written and
        self._news: list[bytes] = []  # to be broadcast in this step

    @property
    def complete(self) -> bool:
        """True iff every record that came is held: False on a light node, and where the table was full."""
        return self._table.complete

    def is_member(self, publisher: bytes) -> bool:
        """True iff the key is known to have been admitted, by a link or by the certificate in its peer record."""
        return self._table.is_member(publisher)

    def live(self, now_us: int) -> list[SignedRecord]:
        """Every record that may be used now, in (publisher, key) order."""
        now_ms = self._clock.now_ms(now_us)
        return [record for record in self._table.in_order() if record.live(now_ms)]

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Records, links and time; everything else is nothing to this machine."""
        effects = self._on_event(event, now_us)
        rows, self._rows = self._rows, []
        news, self._news = self._news, []
        if rows:
            effects = [Persist(self._jobs.next(), tuple(rows)), *effects, *self._sync.on_changed(now_us)]
        if news:
            effects.append(Local(Broadcast(TOPIC, tuple(news))))
        return effects

    def _on_event(self, event: object, now_us: int) -> list[Effect]:
        match event:
            case Boot():
                return self._on_boot(now_us)
            case Linked() | Unlinked() | SendDropped() | Writable():
                return self._on_link(event, now_us)
            case Publish(value):
                return self._publish(value, now_us)
            case Withdraw(agent):
                return self._withdraw(record_key(self._keys.public, "agent", agent), now_us)
            case Received(peer, Records(records)) if peer in self._sync:
                return self._on_records(peer, records, now_us)
            case Received(peer, RecordDigests(buckets)) if peer in self._sync:
                return [*self._expire(now_us), *self._sync.on_digests(peer, buckets, now_us)]
            case Arrived(peer, topic, items) if topic == TOPIC:
                return self._on_arrived(peer, items, now_us)
            case TimerFired(key):
                return self._on_timer(key, now_us)
            case Stopping():
                agents = [slot[1] for slot, value in self._published.items() if isinstance(value, AgentValue)]
                return [effect for key in sorted(agents) for effect in self._withdraw(key, now_us)]
            case _:
                return []

    def _on_link(self, event: Linked | Unlinked | SendDropped | Writable, now_us: int) -> list[Effect]:
        match event:
            case Linked(peer, hello):
                self._table.admit(peer)
                return [*self._expire(now_us), *self._sync.on_linked(peer, hello, now_us)]
            case Unlinked(peer):
                self._sync.on_unlinked(peer)
            case SendDropped(peer, "Records" | "RecordDigests", _) if peer in self._sync:
                self._sync.on_dropped(peer)
            case Writable(peer) if peer in self._sync:
                return self._sync.on_writable(peer, now_us)
            case _:
                pass
        return []

    def _on_timer(self, key: TimerKey, now_us: int) -> list[Effect]:
        match key:
            case TimerKey(_, "refresh"):
                return self._on_refresh(now_us)
            case TimerKey(_, "minute"):
                return [SetTimer(key, now_us + _MINUTE_US), *self._expire(now_us)]
            case TimerKey(_, "sync"):
                return [self._sync_timer(now_us), *self._expire(now_us), *self._sync.on_round(now_us)]
            case TimerKey(_, "again", bytes(peer)):
                return [*self._expire(now_us), *self._sync.on_again(PeerID(peer), now_us)]
            case _:
                return []

    def _sync_timer(self, now_us: int) -> Effect:
        every = self._config.sync_every_us
        return SetTimer(TimerKey(MACHINE, "sync"), now_us + every // 2 + self._rng.randrange(every))

    def _on_boot(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us),
            SetTimer(TimerKey(MACHINE, "minute"), now_us + _MINUTE_US),
            self._sync_timer(now_us),
        ]
        for wire in self._store.records():
            try:
                record = SignedRecord.from_wire(wire, self._verify)
            except DecodeError:
                effects.append(Count("stored_records_unreadable"))
                continue
            self._table.admit_by(record)
            if not self._table.indexed(record) or not self._table.has_room(record):
                self._rows.append(RecordGone(record.publisher, record.key))  # the bounds were wider in the last life
                continue
            self._table.put(record, None)
            own = record.publisher == self._keys.public
            if own and isinstance(record.value, AgentValue):
                effects += self._withdraw(record.key, now_us)
            elif record.live(self._clock.now_ms(now_us)):
                effects.append(Local(RecordChanged(record, live=True)))
        return effects

    # ---- own records

    def _publish(self, value: Value, now_us: int) -> list[Effect]:
        slot = (self._keys.public, key_of(self._keys.public, value))
        old = self._table.get(slot)
        self._published[slot] = value
        if old is not None and old.value == value and old.live(self._clock.now_ms(now_us)):
            return []
        return self._sign(value, old, now_us)

    def _sign(self, value: Value, old: SignedRecord | None, now_us: int, ttl_ms: int = RECORD_TTL_MS) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        # Time-based: it grows though the database was lost. After the stored one: it grows though the clock fell back.
        seq = max(now_ms, old.seq + 1 if old else 0)
        wire = make_record(self._keys, value, seq=seq, issued_ms=now_ms, ttl_ms=ttl_ms)
        self._news.append(wire)
        return self._take(SignedRecord.from_wire(wire, self._verify), None, now_us).effects

    def _withdraw(self, key: bytes, now_us: int) -> list[Effect]:
        slot = (self._keys.public, key)
        old = self._table.get(slot)
        self._published.pop(slot, None)
        if old is None or not old.live(self._clock.now_ms(now_us)):
            return []
        return self._sign(old.value, old, now_us, ttl_ms=0)

    def _on_refresh(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us)]
        for slot in sorted(self._published):
            effects += self._sign(self._published[slot], self._table.get(slot), now_us)
        return effects

    # ---- records of others

    def _on_arrived(self, peer: PeerID, items: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Messages of the mesh: every item gets a verdict."""
        effects: list[Effect] = []
        verdicts: dict[bytes, Verdict] = {}
        for wire in items:
            opinion = self._examine(wire, peer, now_us)
            effects += opinion.effects
            verdicts.setdefault(message_id(TOPIC, wire), opinion.verdict)
        return [*effects, Local(Judged(TOPIC, tuple(verdicts.items())))]

    def _on_records(self, peer: PeerID, records: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Records that a linked peer pushed by itself."""
        effects: list[Effect] = []
        newer: list[bytes] = []
        for wire in records:
            opinion = self._examine(wire, peer, now_us)
            effects += opinion.effects
            record = opinion.record
            if record is None:
                continue
            newer += self._sync.on_record(peer, record, self._table.get((record.publisher, record.key)))
            age_ms = abs(self._clock.now_ms(now_us) - record.issued_ms)
            if opinion.verdict == "accept" and age_ms <= self._config.record_fresh_ms:
                self._news.append(wire)
        if newer:
            effects.append(Send(peer, Lane.BULK, Records(tuple(newer))))
        return effects

    def _examine(self, wire: bytes, peer: PeerID, now_us: int) -> _Opinion:
        try:
            record = SignedRecord.from_wire(wire, self._verify)
        except UnknownKind:
            return _Opinion("ignore", None, [Count("records_of_a_later_version")])
        except DecodeError:
            return _Opinion("reject", None, [Count("records_refused")])
        if record.expiry_ms > record.issued_ms + RECORD_TTL_MS:
            return _Opinion("reject", None, [Count("records_refused")])
        if not self._comparable(record.value):
            return _Opinion("ignore", None, [Count("records_of_another_encoder")])
        if not record.acceptable(self._clock.now_ms(now_us)):
            return _Opinion("ignore", None, [Count("records_expired")])
        own = self._own_record(record)
        taken = self._take(record, peer, now_us)
        return _Opinion(taken.verdict, record, [*own, *taken.effects])

    def _comparable(self, value: Value) -> bool:
        """Whether a vector, where there is one, is of the swarm's encoder: no other means anything here."""
        if not isinstance(value, AgentValue) or value.vector is None:
            return True
        return value.encoder == self._genesis.encoder.id and len(value.vector) == self._genesis.encoder.dim

    def _own_record(self, record: SignedRecord) -> list[Effect]:
        if record.publisher != self._keys.public:
            return []
        own = self._table.get((record.publisher, record.key))
        return [Local(OwnRecord(record, newer=own is None or record.version > own.version))]

    def _take(self, record: SignedRecord, source: PeerID | None, now_us: int) -> _Opinion:
        old, now_ms = self._table.get((record.publisher, record.key)), self._clock.now_ms(now_us)
        effects: list[Effect] = []
        if old is not None and old.seq == record.seq and old.hash != record.hash:
            effects.append(Count("records_equivocated"))
        if old is not None and record.version <= old.version:
            return _Opinion("ignore", record, effects)
        self._table.admit_by(record)
        if not self._table.indexed(record):
            return _Opinion("ignore", record, [Count("records_not_indexed")])
        if old is None and not self._table.has_room(record):
            # Others may have room: news passes through, which an echo of old records does not.
            young = now_ms - record.issued_ms < self._config.record_pass_ms
            passes = young and self._table.within_share(record.publisher)
            return _Opinion("accept" if passes else "ignore", record, [Count("records_full")])
        self._table.put(record, source)
        self._rows.append(RecordRow(record.publisher, record.key, record.wire))
        effects.append(Local(RecordChanged(record, record.live(now_ms))))
        return _Opinion("accept", record, effects)

    def _expire(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for record in self._table.expire(self._clock.now_ms(now_us)):
            self._rows.append(RecordGone(record.publisher, record.key))
            if not record.withdrawal:
                effects.append(Local(RecordChanged(record, live=False)))
        return effects
