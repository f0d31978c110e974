"""The replicated map of signed records: last writer wins, with expiry (protocol.md §8, replication.md §8).

Records are pushed whole to every new link and, when one changes, to every linked peer but the one it came from.
A record that does not change the map is not forwarded, so a flood ends. Nothing expired is offered or taken.
Own records are signed anew at a third of their life and when their value changes; leaving withdraws them.
"""

from __future__ import annotations

from gossip.context import Context
from gossip.events import Linked, Publish, RecordChanged, Unlinked, Withdraw
from protocol.capability import AgentValue, SignedRecord, Value, key_of, make_record, record_key
from protocol.errors import DecodeError
from protocol.machine import (
    Boot,
    Count,
    Effect,
    Local,
    Persist,
    Received,
    Send,
    SetTimer,
    Stopping,
    TimerFired,
    TimerKey,
)
from protocol.messages import RECORDS_MAX, Records
from protocol.peer import PeerID
from protocol.store import RecordGone, RecordRow, Row
from protocol.transport import Lane

MACHINE = "records"
_EXPIRY_EVERY_US = 60_000_000
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
        self._linked: set[PeerID] = set()

    def live(self, now_us: int) -> list[SignedRecord]:
        """Every record that may be used now, in (publisher, key) order."""
        now_ms = self._clock.now_ms(now_us)
        return [self._map[slot] for slot in sorted(self._map) if self._map[slot].live(now_ms)]

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Records, links and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                return self._on_boot(now_us)
            case Linked(peer, _):
                self._linked.add(peer)
                return self._push(peer, self.live(now_us))
            case Unlinked(peer):
                self._linked.discard(peer)
                return []
            case Publish(value):
                return self._publish(value, now_us)
            case Withdraw(agent):
                return self._withdraw(agent, now_us)
            case Received(peer, Records(records)) if peer in self._linked:
                return self._on_records(peer, records, now_us)
            case TimerFired(TimerKey(_, "refresh")):
                return self._on_refresh(now_us)
            case TimerFired(TimerKey(_, "expiry")):
                return self._on_expiry(now_us)
            case Stopping():
                own = [record for record in self.live(now_us) if record.publisher == self._keys.public]
                agents = [record.value.agent for record in own if isinstance(record.value, AgentValue)]
                return [effect for agent in agents for effect in self._withdraw(agent, now_us)]
            case _:
                return []

    def _on_boot(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us),
            SetTimer(TimerKey(MACHINE, "expiry"), now_us + _EXPIRY_EVERY_US),
        ]
        for wire in self._store.records():
            record = SignedRecord.from_wire(wire, self._verify)
            self._map[record.publisher, record.key] = record
            if record.live(self._clock.now_ms(now_us)):
                effects.append(Local(RecordChanged(record, live=True)))
        return effects

    def _publish(self, value: Value, now_us: int) -> list[Effect]:
        slot = (self._keys.public, key_of(self._keys.public, value))
        old = self._map.get(slot)
        if old is not None and old.value == value and old.live(self._clock.now_ms(now_us)):
            return []
        return self._sign(value, old, now_us)

    def _sign(self, value: Value, old: SignedRecord | None, now_us: int, **ttl: int) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        # Time-based: it grows though the database was lost. After the stored one: it grows though the clock fell back.
        seq = max(now_ms, old.seq + 1 if old else 0)
        wire = make_record(self._keys, value, seq=seq, issued_ms=now_ms, **ttl)
        return self._take(SignedRecord.from_wire(wire, self._verify), None, now_us)

    def _withdraw(self, agent: str, now_us: int) -> list[Effect]:
        old = self._map.get((self._keys.public, record_key(self._keys.public, "agent", agent)))
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
            if record.acceptable(self._clock.now_ms(now_us)):
                effects += self._take(record, peer, now_us)
            else:
                effects.append(Count("records_expired"))
        return effects

    def _take(self, record: SignedRecord, source: PeerID | None, now_us: int) -> list[Effect]:
        slot = (record.publisher, record.key)
        old = self._map.get(slot)
        if old is not None and record.version <= old.version:
            return []
        if old is None and len(self._map) >= self._config.records_max:
            return [Count("records_full")]
        self._map[slot] = record
        live = record.live(self._clock.now_ms(now_us))
        effects: list[Effect] = [
            Persist(self._jobs.next(), (RecordRow(record.publisher, record.key, record.wire),)),
            Local(RecordChanged(record, live)),
        ]
        for peer in sorted(self._linked - {source}):
            effects += self._push(peer, [record])
        return effects

    def _push(self, peer: PeerID, records: list[SignedRecord]) -> list[Effect]:
        wires = [record.wire for record in records]
        return [
            Send(peer, Lane.BULK, Records(tuple(wires[start : start + RECORDS_MAX])))
            for start in range(0, len(wires), RECORDS_MAX)
        ]

    def _on_refresh(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "refresh"), now_us + self._config.record_refresh_us)]
        for record in self.live(now_us):
            if record.publisher == self._keys.public:
                effects += self._sign(record.value, record, now_us)
        return effects

    def _on_expiry(self, now_us: int) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        gone = [slot for slot in sorted(self._map) if not self._map[slot].live(now_ms)]
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "expiry"), now_us + _EXPIRY_EVERY_US)]
        rows: list[Row] = []
        for slot in gone:
            record = self._map[slot]
            # A withdrawal is kept as long as what it withdraws could still be offered: nothing comes back.
            if now_ms > record.issued_ms + self._config.record_refresh_us * 3 // 1000:
                del self._map[slot]
                rows.append(RecordGone(*slot))
            if record.expiry_ms > record.issued_ms:
                effects.append(Local(RecordChanged(record, live=False)))
        return [*effects, Persist(self._jobs.next(), tuple(rows))] if rows else effects
