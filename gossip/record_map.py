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

Records of keys whose admission is not known are held, offered to others, and not told to the other machines of the node
before the key is admitted: anybody can make keys, and nobody should be asked, dialled or shown because of one.

Blame is for what anybody can see is wrong: bytes that are no signed record, or a life longer than a record may have. A
peer that pushes `record_junk_max` of these within a minute is hung up, as the mesh blames who spreads them. An expired
record, one from the future and one that is known are ignored: a clock, a slow path or a replay brought them, and who
forwarded them could not know. That is found before the signature is checked where it can be
(gossip/record_outline.py). So is a change by a publisher that changed too much lately (gossip/record_rates.py). A
record that is refused only because strangers have no room gets no verdict: it may come again when its publisher is
known.

An orderly stop withdraws all own records, addresses too, so that nobody dials who has left. Own records are signed anew
also when the clock was set so that others would not take them, and when somebody else with the own key ended them.

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
from gossip.record_outline import Outline, outline
from gossip.record_rates import ChangeRates, Junk
from gossip.record_sync import MACHINE, RecordSync
from gossip.record_table import Lack, RecordTable, Slot
from protocol.capability import (
    FUTURE_MS_MAX,
    RECORD_TTL_MS,
    AgentValue,
    PeerValue,
    SignedRecord,
    UnknownKind,
    Value,
    key_of,
    make_record,
    record_key,
)
from protocol.errors import DecodeError
from protocol.identity import digest
from protocol.machine import (
    Boot,
    ClockOffset,
    Count,
    Effect,
    Local,
    Misbehaved,
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
_SHORT_MS: Final = 600_000  # a record that ends sooner makes room for the next one, which is a change too


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What a record that came is worth, None if that cannot be said yet; the record, if it is a good one; what follows.

    `newer`: the version that is held instead.
    """

    verdict: Verdict | None
    effects: list[Effect]
    record: SignedRecord | None = None
    newer: SignedRecord | None = None


class RecordMap:
    """The machine. `rng` draws the peer of a round and the pauses between rounds."""

    def __init__(self, ctx: Context, rng: random.Random) -> None:
        self._keys = ctx.keys
        self._genesis = ctx.genesis
        self._clock = ctx.clock
        self._config = ctx.config
        self._jobs = ctx.jobs
        self._store = ctx.store
        self._verify = ctx.verify
        self._rng = rng
        self._table = RecordTable(ctx.me, ctx.genesis, ctx.config)
        self._sync = RecordSync(self._table, ctx.clock, ctx.config, rng)
        self._rates = ChangeRates(ctx.config)
        self._junk = Junk(ctx.config)
        self._stopping = False
        self._published: dict[Slot, Value] = {}  # by this life
        self._rows: list[Row] = []  # to be written and
        self._news: list[bytes] = []  # to be broadcast in this step

    @property
    def complete(self) -> bool:
        """True iff every record that came is held: False on a light node, and where the table was full."""
        return self._table.complete

    def is_member(self, publisher: bytes) -> bool:
        """True iff the key is known to be admitted now, by a link or by the certificate in its peer record.

        Now is the last event that this machine was given.
        """
        return self._table.is_member(publisher)

    def live(self, now_us: int) -> list[SignedRecord]:
        """Every record that is held and not over, in (publisher, key) order."""
        now_ms = self._clock.now_ms(now_us)
        return [record for record in self._table.in_order() if record.live(now_ms)]

    def publishers(self) -> list[bytes]:
        """Every key of which a record is held, also one that withdrew all of its own; in order."""
        return self._table.publishers()

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Records, links and time; everything else is nothing to this machine."""
        self._table.now_ms = self._clock.now_ms(now_us)
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
            case ClockOffset() | Stopping():
                return self._on_own_machine(event, now_us)
            case _:
                return []

    def _on_own_machine(self, event: ClockOffset | Stopping, now_us: int) -> list[Effect]:
        if isinstance(event, ClockOffset):
            told = [effect for publisher in self._table.admit_held() for effect in self._tell_all(publisher, live=True)]
            return [*told, *self._expire(now_us), *self._renew(now_us)]
        self._stopping = True
        slots = sorted(self._published, key=lambda slot: (isinstance(self._published[slot], PeerValue), slot))
        return [effect for _, key in slots for effect in self._withdraw(key, now_us)]

    def _on_link(self, event: Linked | Unlinked | SendDropped | Writable, now_us: int) -> list[Effect]:
        match event:
            case Linked(peer, hello):
                told = self._tell_all(peer, live=True) if self._table.admit(peer, hello.cert_chain) else []
                return [*told, *self._expire(now_us), *self._sync.on_linked(peer, hello, now_us)]
            case Unlinked(peer):
                self._junk.forget(peer)
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
                self._rates.sweep(now_us)
                return [SetTimer(key, now_us + _MINUTE_US), *self._expire(now_us), *self._renew(now_us)]
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
            effects += self._admit_by(record)
            if not self._table.indexed(record) or self._table.lack(record.publisher, None) is not None:
                self._rows.append(RecordGone(record.publisher, record.key))  # the bounds were wider in the last life
                continue
            self._table.put(record, None)
            own = record.publisher == self._keys.public
            if own and isinstance(record.value, AgentValue):
                effects += self._withdraw(record.key, now_us)
            elif record.live(self._clock.now_ms(now_us)):
                effects += self._tell(record, live=True)
        return effects

    # ---- what the other machines are told

    def _tell(self, record: SignedRecord, *, live: bool) -> list[Effect]:
        return [Local(RecordChanged(record, live))] if self._table.is_member(record.publisher) else []

    def _tell_all(self, publisher: bytes, *, live: bool) -> list[Effect]:
        """A key was admitted, or is no longer: tell of everything that it offers."""
        offered = [record for record in self._table.of_publisher(publisher) if record.live(self._table.now_ms)]
        return [Local(RecordChanged(record, live)) for record in offered]

    def _admit_by(self, record: SignedRecord) -> list[Effect]:
        return self._tell_all(record.publisher, live=True) if self._table.admit_by(record) else []

    # ---- own records

    def _publish(self, value: Value, now_us: int) -> list[Effect]:
        if self._stopping:
            return []
        slot = (self._keys.public, key_of(self._keys.public, value))
        old = self._table.get(slot)
        self._published[slot] = value
        if old is not None and old.value == value and self._sound(old):
            return []
        return self._sign(value, old, now_us)

    def _sound(self, record: SignedRecord) -> bool:
        """Whether an own record is live for others too, until it is signed anew; a clock that was set changes that."""
        age_ms = self._table.now_ms - record.issued_ms
        return record.live(self._table.now_ms) and -FUTURE_MS_MAX // 2 <= age_ms <= RECORD_TTL_MS // 2

    def _renew(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for slot, value in sorted(self._published.items(), key=lambda item: item[0]):
            old = self._table.get(slot)
            if old is None or not self._sound(old):
                effects += self._sign(value, old, now_us)
        return effects

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
        """Messages of the mesh: every item gets a verdict, unless it may get a better one later."""
        effects: list[Effect] = []
        verdicts: dict[bytes, Verdict] = {}
        for wire in items:
            opinion = self._examine(wire, peer, now_us)
            effects += opinion.effects
            if opinion.verdict is not None:
                verdicts.setdefault(message_id(TOPIC, wire), opinion.verdict)
        return [*effects, Local(Judged(TOPIC, tuple(verdicts.items())))]

    def _on_records(self, peer: PeerID, records: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Records that a linked peer pushed by itself."""
        effects: list[Effect] = []
        newer: list[bytes] = []
        for wire in records:
            opinion = self._examine(wire, peer, now_us)
            effects += opinion.effects
            if opinion.verdict == "reject" and self._junk.is_too_much(peer, now_us):
                return [*effects, Local(Misbehaved(peer, "pushes records that are none"))]
            if opinion.record is not None or opinion.newer is not None:
                newer += self._sync.on_record(peer, digest("rec", wire), opinion.newer)
            if opinion.verdict == "accept" and opinion.record is not None:
                age_ms = abs(self._table.now_ms - opinion.record.issued_ms)
                self._news += [wire] if age_ms <= self._config.record_fresh_ms else []
        if newer:
            effects.append(Send(peer, Lane.BULK, Records(tuple(newer))))
        return effects

    def _examine(self, wire: bytes, peer: PeerID, now_us: int) -> _Opinion:
        try:
            seen = outline(wire)
            old = self._table.get((seen.publisher, seen.key))
            passed = self._pass_over(seen, wire, old, peer)
            if passed is not None:
                return passed
            costs = self._costs(seen, old)
            if costs and not self._rates.may(seen.publisher, now_us):
                return _Opinion("ignore", [Count("records_too_often")])
            record = SignedRecord.from_wire(wire, self._verify)
        except UnknownKind:
            return _Opinion("ignore", [Count("records_of_a_later_version")])
        except DecodeError:
            return _Opinion("reject", [Count("records_refused")])
        own = self._own_record(record)
        taken = self._take(record, peer, now_us)
        if costs and taken.verdict == "accept":
            self._rates.charge(record.publisher, now_us)
        return _Opinion(taken.verdict, [*own, *taken.effects, *self._insist(record, now_us)], record, taken.newer)

    def _pass_over(self, seen: Outline, wire: bytes, old: SignedRecord | None, peer: PeerID) -> _Opinion | None:
        """What can be said of a record before its signature is checked, if that is enough."""
        if seen.too_long:
            return _Opinion("reject", [Count("records_refused")])
        if not self._comparable(seen):
            return _Opinion("ignore", [Count("records_of_another_encoder")])
        if not seen.timely(self._table.now_ms):
            return _Opinion("ignore", [Count("records_expired")])
        if old is not None and old.wire == wire:
            return _Opinion("ignore", self._own_record(old), old)
        if seen.publisher == self._keys.public:
            return None
        if old is not None:
            return _Opinion("ignore", [], newer=old) if seen.seq < old.seq else None
        lack = self._table.lack(seen.publisher, peer) if seen.kind == "agent" else None
        return self._no_room(lack) if lack in {"strangers", "publisher"} else None

    def _no_room(self, lack: Lack | None) -> _Opinion:
        return _Opinion(None if lack == "strangers" else "ignore", [Count("records_full")])

    def _costs(self, seen: Outline, old: SignedRecord | None) -> bool:
        """Whether this counts as a change. The end of what is live does not: to repeat it takes one that does."""
        if seen.publisher == self._keys.public:
            return False
        if old is None:
            return seen.end_ms - self._table.now_ms < _SHORT_MS
        return not seen.withdrawal or old.withdrawal

    def _insist(self, record: SignedRecord, now_us: int) -> list[Effect]:
        """Somebody with the own key ended what this node offers: it still does."""
        slot = (record.publisher, record.key)
        if not record.withdrawal or slot not in self._published or self._table.get(slot) != record:
            return []
        return self._sign(self._published[slot], record, now_us)

    def _comparable(self, seen: Outline) -> bool:
        """Whether a vector, where there is one, is of the swarm's encoder: no other means anything here."""
        if seen.vector is None:
            return True
        return seen.encoder == self._genesis.encoder.id and len(seen.vector) == self._genesis.encoder.dim

    def _own_record(self, record: SignedRecord) -> list[Effect]:
        if record.publisher != self._keys.public:
            return []
        own = self._table.get((record.publisher, record.key))
        return [Local(OwnRecord(record, newer=own is None or record.version > own.version))]

    def _take(self, record: SignedRecord, source: PeerID | None, now_us: int) -> _Opinion:
        old = self._table.get((record.publisher, record.key))
        effects: list[Effect] = []
        if old is not None and old.seq == record.seq and old.hash != record.hash:
            effects.append(Count("records_equivocated"))
        if old is not None and record.version <= old.version:
            return _Opinion("ignore", effects, newer=old if old.version > record.version else None)
        effects += self._admit_by(record)
        if not self._table.indexed(record):
            return _Opinion("ignore", [*effects, Count("records_not_indexed")])
        if old is None:
            lack = self._table.lack(record.publisher, source)
            if lack == "table":
                return self._pass_on(record, effects, now_us)
            if lack is not None:
                refused = self._no_room(lack)
                return _Opinion(refused.verdict, [*effects, *refused.effects])
            self._evict()
        self._table.put(record, source)
        self._rows.append(RecordRow(record.publisher, record.key, record.wire))
        return _Opinion("accept", [*effects, *self._tell(record, live=record.live(self._table.now_ms))])

    def _pass_on(self, record: SignedRecord, effects: list[Effect], now_us: int) -> _Opinion:
        """The whole table is full. Others may have room: a member's news passes through, an echo of old records not."""
        self._table.overflow()
        young = self._table.now_ms - record.issued_ms < self._config.record_pass_ms
        passes = young and self._table.is_member(record.publisher) and self._rates.may(record.publisher, now_us)
        if passes:
            self._rates.charge(record.publisher, now_us)
        return _Opinion("accept" if passes else "ignore", [*effects, Count("records_full")])

    def _evict(self) -> None:
        gone = self._table.make_room()
        if gone is not None:
            self._rows.append(RecordGone(gone.publisher, gone.key))

    def _expire(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for publisher in self._table.lapse():
            effects += self._tell_all(publisher, live=False)
        for record in self._table.expire():
            value = self._published.get((record.publisher, record.key))
            if value is not None:
                effects += self._sign(value, record, now_us)
                continue
            self._rows.append(RecordGone(record.publisher, record.key))
            if not record.withdrawal:
                effects += self._tell(record, live=False)
        return effects
