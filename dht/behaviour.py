"""The DHT of one node as a machine: no I/O, no clock and no randomness of its own.

    joining    a first contact starts a look-up of the own place; a second one follows, for nodes that started together
    contacts   dht/neighbourhood.py: learned from who speaks, evicted at once, kept in the table
    serving    dht/server.py: every request is answered. In client mode this node answers that it serves nobody, holds
               nothing and introduces itself to nobody, and so stands in no table (complaint 15)
    records    of this node: dht/publisher.py; of others: dht/record_store.py, lost with the process
    commands   dht/lookups.py: `Lookup`, `Put`, `Get`, `Find`, each answered by one `Local` event with its request id

Peers come as `PeerSeen` and `PeerGone` from whoever admits links; frames of others are not looked at. Addresses come
from signed peer records alone, and only while the certificate in them admits their publisher (dht/verified.py).
"""

from __future__ import annotations

import random
from typing import Final

from dht.aims import OwnPut, Refresh, World
from dht.calls import MACHINE, Answered, Calls, Failed, Outcome, Slow
from dht.config import DhtConfig
from dht.directory import Directory
from dht.events import Find, Get, Lookup, OwnRecord, PeerGone, PeerSeen, Put, Serving, UseCodebook
from dht.key import node_id, random_id
from dht.lookups import Lookups, store_request
from dht.neighbourhood import Neighbourhood
from dht.placement import Codebook
from dht.publisher import Publisher
from dht.record_store import RecordStore
from dht.routing_table import Table
from dht.server import CLIENT_RETRY_MS, Held, Server
from dht.terms import Terms
from dht.verified import VerifiedRecords
from protocol.capability import PeerValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import DecodeError
from protocol.machine import (
    Boot,
    Count,
    DialFailed,
    Effect,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import (
    PEER_RECORD_BYTES_MAX,
    Busy,
    FindNode,
    FindValue,
    FoundNodes,
    FoundValue,
    Frame,
    Introduce,
    Pong,
    Stored,
    StoreRecord,
)
from protocol.peer import PeerID
from protocol.transport import Lane

_EXPIRE_EVERY_US: Final = 60_000_000


class Dht:
    """The machine. `clock` is shared with the other machines of the node, which feed it."""

    def __init__(self, me: PeerID, clock: SwarmClock, config: DhtConfig, rng: random.Random, *, terms: Terms) -> None:
        self._me = me
        self._clock = clock
        self._config = config
        self._rng = rng
        self._serving = config.server
        self._joined = False
        self._joining = False  # a look-up of the own place is due or under way
        self._settling = False
        self._own_peer: SignedRecord | None = None
        self.table = Table(me, config)
        self.store = RecordStore(config)
        self.directory = Directory(config)
        self._verified = VerifiedRecords(terms, config.cache_records_max)
        self._calls = Calls(config)
        self._publisher = Publisher(self.table, self.store, self.directory, config)
        self._around = Neighbourhood(self.table, self._calls, self._publisher, self._verified, clock, config)
        self._server = Server(Held(self.table, self.store, self.directory, self._verified), config)
        world = World(
            me=me,
            place=node_id(me),
            table=self.table,
            store=self.store,
            directory=self.directory,
            calls=self._calls,
            now_ms=clock.now_ms,
            serves=lambda: self._serving,
        )
        self._lookups = Lookups(world, config)

    @property
    def joined(self) -> bool:
        """True once a look-up of the own place was answered, while contacts are left."""
        return self._joined

    def status(self) -> dict[str, object]:
        """Plain data for `masos status`."""
        return {
            "mode": "server" if self._serving else "client",
            "joined": self._joined,
            "contacts": len(self.table),
            "buckets": len(self.table.buckets),
            "held_records": self.store.count,
            "held_bytes": self.store.bytes,
            "held_of_strangers": self.store.of_strangers,
            "own_records": len(self._publisher),
            "codebooks": [codebook.hex()[:16] for codebook in self.directory.codebooks],
            "lookups": len(self._lookups),
            "requests_open": len(self._calls),
            "stores": dict(sorted(self._server.verdicts.items())),
        }

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Peers, frames, time and local commands; everything else is nothing to this machine."""
        effects = self._on_event(event, now_us)
        while self._calls.outcomes or self._lookups.finished or self._lookups.can_admit:
            if self._calls.outcomes:
                effects += self._on_outcome(self._calls.outcomes.popleft(), now_us)
            elif self._lookups.finished:
                effects += self._on_finished(*self._lookups.finished.popleft(), now_us=now_us)
            else:
                effects += self._lookups.admit(now_us)
        return effects + self._follow_up(now_us)

    def _on_event(self, event: object, now_us: int) -> list[Effect]:
        match event:
            case Boot():
                return self._on_boot(now_us)
            case PeerSeen(peer):
                return self._on_peer_seen(peer, now_us)
            case PeerGone(peer, in_order):
                return self._on_peer_gone(peer, in_order=in_order)
            case DialFailed(peer, _):
                return self._calls.on_dial_failed(peer)
            case Received(peer, frame) if peer in self._calls.linked:
                return self._on_frame(peer, frame, now_us)
            case SendDropped(_, _, (str(machine), int(req))) if machine == MACHINE:
                return self._calls.on_dropped(req)
            case TimerFired(TimerKey(machine, what, ref)) if machine == MACHINE:
                return self._on_timer(what, ref, now_us)
            case OwnRecord(record):
                return self._on_own_record(record, now_us)
            case Serving(on):
                return self._on_serving(on=on)
            case UseCodebook(wire):
                return self._on_codebook(wire, now_us)
            case Lookup() | Put() | Get() | Find():
                return self._lookups.begin(event, now_us)
            case _:
                return []

    def _follow_up(self, now_us: int) -> list[Effect]:
        """What changes of the table and failed puts ask for, after a while in which more of them may come."""
        effects: list[Effect] = []
        if not len(self.table):
            self._joined = self._around.settled = False
        elif not self._joined and not self._joining:
            self._joining = True
            effects.append(_timer("join", now_us + self._config.join_delay_us))
        if self._publisher.restless and not self._settling:
            self._settling = True
            wait_us = self._config.settle_us + self._rng.randrange(self._config.settle_jitter_us + 1)
            effects.append(_timer("settle", now_us + wait_us))
        return effects

    # ---- links and frames

    def _on_boot(self, now_us: int) -> list[Effect]:
        return [
            _timer("refresh", now_us + self._config.refresh_every_us),
            _timer("republish", now_us + self._config.republish_us),
            _timer("expire", now_us + _EXPIRE_EVERY_US),
        ]

    def _on_peer_seen(self, peer: PeerID, now_us: int) -> list[Effect]:
        self._around.on_link(peer)
        effects = self._calls.on_linked(peer, now_us)
        return [*self._introduce(peer), *effects]

    def _introduce(self, peer: PeerID) -> list[Effect]:
        record = self._own_peer
        if not self._serving or record is None:
            return []
        return [Send(peer, Lane.CONTROL, Introduce(record.wire))]

    def _on_peer_gone(self, peer: PeerID, *, in_order: bool) -> list[Effect]:
        effects = self._calls.on_unlinked(peer, in_order=in_order)
        self._server.forget(peer)
        return effects + self._around.on_link_end(peer, in_order=in_order)

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        match frame:
            case FindNode() | FindValue() | StoreRecord():
                return self._on_request(peer, frame, now_us)
            case FoundNodes() | FoundValue() | Stored() | Pong():
                return self._calls.on_answer(peer, frame)
            case Busy():
                return self._calls.on_busy(peer, frame, now_us)
            case Introduce(wire):
                return self._around.on_introduction(peer, wire, now_us, self._clock.now_ms(now_us))
            case _:
                return []

    def _on_request(self, peer: PeerID, frame: FindNode | FindValue | StoreRecord, now_us: int) -> list[Effect]:
        if not self._serving:
            return [Send(peer, Lane.CONTROL, Busy(frame.req, CLIENT_RETRY_MS)), Count("dht_asked_as_client")]
        answer = self._server.answer(peer, frame, now_us, self._clock.now_ms(now_us))
        counted: list[Effect] = [Count("dht_answers_busy")] if isinstance(answer, Busy) else []
        return [Send(peer, Lane.CONTROL, answer), *counted, *self._around.on_request(peer, now_us)]

    # ---- outcomes of requests

    def _on_outcome(self, outcome: Outcome, now_us: int) -> list[Effect]:
        what, number = outcome.owner
        if isinstance(outcome, Slow):
            is_query = what == "query"
            return self._lookups.on_slow(number, outcome.contact.peer, now_us) if is_query else []
        if what == "ping":
            self._around.on_pong(outcome.contact.peer)
        around = self._around
        effects = (
            around.on_failed(outcome, now_us) if isinstance(outcome, Failed) else around.heard(outcome.contact, now_us)
        )
        match what:
            case "query":
                return effects + self._on_query_outcome(number, outcome, now_us)
            case "put":
                return effects + self._lookups.on_stored(number, outcome)
            case _:
                return effects

    def _on_query_outcome(self, number: int, outcome: Answered | Failed, now_us: int) -> list[Effect]:
        contact = outcome.contact
        if isinstance(outcome, Failed) or not isinstance(outcome.frame, FoundNodes | FoundValue):
            return self._lookups.on_failure(number, contact.peer, now_us)
        closer = self._around.named(outcome.frame.peers, now_us, self._clock.now_ms(now_us))
        records = self._records(outcome.frame, now_us)
        if closer is None or records is None or not self._lookups.on_records(number, contact, records):
            return [
                Count("dht_answers_forged"),
                *self._around.distrust(contact.peer, now_us),
                *self._lookups.on_failure(number, contact.peer, now_us),
            ]
        return self._lookups.on_nodes(number, contact, closer, now_us)

    def _records(self, frame: FoundNodes | FoundValue, now_us: int) -> list[SignedRecord] | None:
        """What an answer gives under the key and may be used here and now; None if a record is forged."""
        if isinstance(frame, FoundNodes):
            return []
        try:
            records = [self._verified.read(wire) for wire in frame.records]
        except DecodeError:
            return None
        now_ms = self._clock.now_ms(now_us)
        return [record for record in records if self._verified.usable(record, now_ms)]

    # ---- time

    def _on_timer(self, what: str, ref: object, now_us: int) -> list[Effect]:
        match what:
            case "call" if isinstance(ref, int):
                return self._calls.on_timer(ref, now_us)
            case "join":
                return self._look_around(now_us)
            case "refresh":
                return self._on_refresh(now_us)
            case "settle":
                return self._on_settle(now_us)
            case "hand_over":
                return self._on_hand_over(now_us)
            case "republish":
                self._publisher.all_due(now_us - self._config.republish_us // 2)
                return [_timer("republish", now_us + self._config.republish_us), *self._publish(now_us)]
            case "expire":
                return self._on_expire(now_us)
            case _:
                return []

    def _on_expire(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [_timer("expire", now_us + _EXPIRE_EVERY_US)]
        now_ms = self._clock.now_ms(now_us)
        self.store.admit(lambda record: self._verified.of_member(record, now_ms))
        expired = self.store.expire(now_ms)
        if expired:
            effects.append(Count("dht_records_expired", expired))
        return effects + self._around.expire(now_ms)

    def _look_around(self, now_us: int) -> list[Effect]:
        return self._lookups.begin(Refresh(self.table.place, own=True), now_us)

    def _on_refresh(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [_timer("refresh", now_us + self._config.refresh_every_us)]
        if self._joined:
            effects += self._look_around(now_us)
        for bucket in self.table.lonely(now_us)[: self._config.lonely_per_refresh_max]:
            effects += self._lookups.begin(Refresh(random_id(*bucket.range, self._rng)), now_us)
        return effects

    def _on_finished(self, aim: Refresh | OwnPut, answer: int, *, now_us: int) -> list[Effect]:
        if isinstance(aim, OwnPut):
            self._publisher.on_put(aim, enough=bool(answer))
            return []
        return self._on_looked_around(answer, now_us) if aim.own else []

    def _on_looked_around(self, answered: int, now_us: int) -> list[Effect]:
        """The own place was looked up: the first time this joins, the second time the view is good enough."""
        self._joining = False
        if not answered or self._around.settled:
            return []
        if not self._joined:
            self._joined = self._joining = True
            return [_timer("join", now_us + self._config.join_again_us), *self._publish(now_us)]
        self._around.settled = True
        self._publisher.all_due(now_us)
        return self._publish(now_us)

    def _on_settle(self, now_us: int) -> list[Effect]:
        self._settling = False
        self._publisher.settle()
        return [*self._publish(now_us), *self._on_hand_over(now_us)]

    def _on_hand_over(self, now_us: int) -> list[Effect]:
        if not self._serving:
            return []
        effects: list[Effect] = []
        for contact, key, record in self._publisher.hand_over():
            if record.acceptable(self._clock.now_ms(now_us)):
                effects += self._calls.call(("handoff", 0), contact, store_request(key, record), now_us)
        if self._publisher.handing_over:
            effects.append(_timer("hand_over", now_us + self._config.handoff_every_us))
        return effects

    # ---- records

    def _on_own_record(self, record: SignedRecord, now_us: int) -> list[Effect]:
        own = record.publisher == self._me and self._verified.fits(record)  # nobody would hold another encoder's
        if not own or not self._publisher.take(record):
            return [Count("dht_own_records_refused")]
        effects: list[Effect] = []
        if isinstance(record.value, PeerValue):
            usable = record.value.addrs and not record.withdrawal and len(record.wire) <= PEER_RECORD_BYTES_MAX
            self._own_peer = record if usable else None
            for peer in sorted(self._calls.linked):
                effects += self._introduce(peer)
        return effects + self._publish(now_us)

    def _publish(self, now_us: int) -> list[Effect]:
        if not self._joined:
            return []  # what is due stays due; joining publishes it
        effects: list[Effect] = []
        for put in self._publisher.take_due(now_us, self._clock.now_ms(now_us)):
            effects += self._lookups.begin(put, now_us)
        return effects

    def _on_serving(self, *, on: bool) -> list[Effect]:
        if on == self._serving:
            return []
        self._serving = on
        if not on:
            self.store.clear()
            self._publisher.forget_held()
            return []
        return [effect for peer in sorted(self._calls.linked) for effect in self._introduce(peer)]

    def _on_codebook(self, wire: bytes, now_us: int) -> list[Effect]:
        try:
            codebook = Codebook.from_wire(wire)
        except DecodeError:
            return [Count("dht_codebooks_refused")]
        if not self.directory.use(codebook):
            return []
        self._publisher.use_codebook()
        return self._publish(now_us)


def _timer(what: str, at_us: int) -> SetTimer:
    return SetTimer(TimerKey(MACHINE, what), at_us)
