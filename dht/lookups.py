"""Look-ups in progress: what is wanted, whom it asks, and what follows when the answer stands.

    look-up   the k closest nodes
    get       the greatest version that a quorum of the closest holds, the own copy being a candidate and no more;
              holders with less are given it (read repair)
    put       a look-up, then the record to each of the closest; a majority must confirm
    find      one look-up per shard, merged (dht/directory.py)

A majority that confirmed a write and a majority that is asked by a read share a node, so a read sees the newest
confirmed version while holders do not all change between the two. At most `queries_max` run at once; more wait, in
order; a full waiting line is an error to who asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from dht.aims import Aim, Finished, OwnPut, Probe, Refresh, World
from dht.calls import Answered, Failed, Make
from dht.config import DhtConfig
from dht.directory import Search
from dht.events import Cost, Done, Find, FindDone, Get, GetDone, Lookup, LookupDone, Put, PutDone
from dht.key import ID_BYTES, key_id
from dht.query import Query, Shape
from dht.record_store import Slot
from dht.routing_table import Contact
from protocol.capability import AgentValue, SignedRecord
from protocol.errors import PeerUnreachable, Refused, RemoteFailure, SwarmError
from protocol.machine import Count, Effect, Local
from protocol.messages import FindNode, FindValue, Stored, StoreRecord
from protocol.peer import PeerID

NOBODY = "no node that serves the DHT answered"


@dataclass(slots=True)
class _Running:
    aim: Aim
    query: Query
    make: Make
    found: dict[Slot, SignedRecord] = field(default_factory=dict)
    told: dict[PeerID, tuple[int, bytes]] = field(default_factory=dict)  # version of a slot that a holder gave


@dataclass(slots=True)
class _Storing:
    aim: Put | OwnPut
    asked: int
    confirmed: int
    open: int
    cost: Cost


class Lookups:
    """All of them."""

    def __init__(self, world: World, config: DhtConfig) -> None:
        self._world = world
        self._config = config
        self._running: dict[int, _Running] = {}
        self._storing: dict[int, _Storing] = {}
        self._waiting: deque[Aim] = deque()
        self._next = 0
        self.finished: deque[Finished] = deque()  # what the owner of the machine asked for itself

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    # ---- begin

    def begin(self, aim: Aim | Find, now_us: int) -> list[Effect]:
        """Start, or wait for a place."""
        if isinstance(aim, Find):
            return self._begin_search(aim, now_us)
        if isinstance(aim, Get) and len(aim.key) != ID_BYTES:
            error = Refused(f"a key has {ID_BYTES} bytes, got {len(aim.key)}")
            return _tell(GetDone(aim.request, None, 0, Cost(0, 0), error))
        if len(self._running) < self._config.queries_max:
            return self._launch(aim, now_us)
        if len(self._waiting) < self._config.waiting_max:
            self._waiting.append(aim)
            return []
        return [Count("dht_lookups_full"), *self._give_up(aim, now_us)]

    def _give_up(self, aim: Aim, now_us: int) -> list[Effect]:
        error = Refused("too many look-ups wait already", hint="ask again in a few seconds")
        none = Cost(0, 0)
        match aim:
            case Refresh():
                self.finished.append((aim, 0))
                return []
            case OwnPut():
                self.finished.append((aim, False))
                return []
            case Lookup(request):
                return _tell(LookupDone(request, (), none, error))
            case Put(request):
                return _tell(PutDone(request, 0, 0, none, error))
            case Get(request):
                return _tell(GetDone(request, None, 0, none, error))
            case Probe(search):
                return self._probe_done(search, now_us)
            case _:
                assert_never(aim)

    def _begin_search(self, find: Find, now_us: int) -> list[Effect]:
        now, later = self._world.directory.shards_for(find.encoder, find.probe, self._world.now_ms(now_us))
        if not now:
            error = Refused(f"no codebook for encoder {find.encoder!r} and {len(find.probe)} dimensions")
            return _tell(FindDone(find.request, (), Cost(0, 0), error))
        search = Search(find.request, find.encoder, find.probe, find.limit, later, open=len(now))
        return self._ask_shards(search, now, now_us)

    def _ask_shards(self, search: Search, keys: list[bytes], now_us: int) -> list[Effect]:
        return [effect for key in keys for effect in self.begin(Probe(search, key), now_us)]

    def _launch(self, aim: Aim, now_us: int) -> list[Effect]:
        target, need, make = self._plan(aim)
        seeds = self._world.table.neighbours(target, self._config.k)
        config = self._config
        shape = Shape(need, config.alpha, config.paths, config.rpcs_max, config.rounds_max)
        self._next += 1
        self._running[self._next] = _Running(aim, Query(target, seeds, self._world.me, shape), make)
        return self._step(self._next, now_us)

    def _plan(self, aim: Aim) -> tuple[bytes, int, Make]:
        """(where, how many of the closest must answer, the request)."""
        config = self._config
        match aim:
            case Refresh(target):
                return target, config.k, lambda req: FindNode(req, target)
            case Lookup(_, key):
                place = key_id(key)
                return place, config.k, lambda req: FindNode(req, place)
            case Put(_, record):
                place = key_id(record.key)
                return place, config.k, lambda req: FindNode(req, place)
            case OwnPut(key, _, replicas):
                place = key_id(key)
                return place, replicas, lambda req: FindNode(req, place)
            case Get(_, key):
                return key_id(key), config.quorum, lambda req: FindValue(req, key, b"")
            case Probe(search, key):
                return key_id(key), config.centroid_quorum, lambda req: FindValue(req, key, search.probe)
            case _:
                assert_never(aim)

    def _step(self, number: int, now_us: int) -> list[Effect]:
        running = self._running[number]
        effects: list[Effect] = []
        for contact in running.query.take():
            effects += self._world.calls.call(("query", number), contact, running.make, now_us)
        if running.query.done:
            del self._running[number]
            effects += self._finish(running, now_us)
        return effects

    @property
    def can_admit(self) -> bool:
        """True if something waits and there is room for it."""
        return bool(self._waiting) and len(self._running) < self._config.queries_max

    def admit(self, now_us: int) -> list[Effect]:
        """Start what waits, as far as there is room; the owner calls it after each step."""
        effects: list[Effect] = []
        while self.can_admit:
            effects += self._launch(self._waiting.popleft(), now_us)
        return effects

    # ---- answers

    def on_nodes(self, number: int, contact: Contact, closer: list[Contact], now_us: int) -> list[Effect]:
        """A node of a look-up answered; `closer` is checked, and holds nobody who just failed."""
        running = self._running.get(number)
        if running is None:
            return []  # it answered after the look-up was over
        running.query.on_answer(contact, closer)
        return self._step(number, now_us)

    def on_records(self, number: int, contact: Contact, records: list[SignedRecord]) -> bool:
        """What a node gave under the key; False if a record has no business there."""
        running = self._running.get(number)
        if running is None:
            return True
        aim = running.aim
        for record in records:
            if isinstance(aim, Get) and record.key != aim.key:
                return False
            if isinstance(aim, Probe) and not isinstance(record.value, AgentValue):
                return False
            slot = (record.publisher, record.key)
            old = running.found.get(slot)
            running.told[contact.peer] = record.version
            if old is None or record.version > old.version:
                running.found[slot] = record
        return True

    def on_slow(self, number: int, peer: PeerID, now_us: int) -> list[Effect]:
        """A node of a look-up takes long."""
        running = self._running.get(number)
        if running is None:
            return []
        running.query.on_slow(peer)
        return self._step(number, now_us)

    def on_failure(self, number: int, peer: PeerID, now_us: int) -> list[Effect]:
        """A node of a look-up did not answer, or not in order."""
        running = self._running.get(number)
        if running is None:
            return []
        running.query.on_failure(peer)
        return self._step(number, now_us)

    def on_stored(self, number: int, outcome: Answered | Failed) -> list[Effect]:
        """A node took a record, refused it, or failed."""
        storing = self._storing.get(number)
        if storing is None:
            return []
        storing.open -= 1
        match outcome:
            case Answered(frame=Stored(ok=True)):
                storing.confirmed += 1
            case Answered() | Failed():
                pass
            case _:
                assert_never(outcome)
        return self._stored(number)

    # ---- ends

    def _finish(self, running: _Running, now_us: int) -> list[Effect]:
        query, aim = running.query, running.aim
        cost = Cost(query.rpcs, query.rounds)
        match aim:
            case Refresh():
                self.finished.append((aim, len(query.closest(self._config.k))))
                return []
            case Lookup(request):
                peers = tuple(contact.peer for contact in query.closest(self._config.k))
                error = None if peers else PeerUnreachable(NOBODY)
                return _tell(LookupDone(request, peers, cost, error))
            case Put(_, record):
                return self._store(aim, query, (record.key, record, self._config.k), now_us)
            case OwnPut(key, record, replicas):
                return self._store(aim, query, (key, record, replicas), now_us)
            case Get():
                return self._finish_get(aim, running, now_us)
            case Probe(search, key):
                search.take(self._world.store.read(key, self._world.now_ms(now_us)))
                search.take(list(running.found.values()))
                search.rpcs += query.rpcs
                search.rounds = max(search.rounds, query.rounds)
                search.heard = search.heard or bool(query.closest(1))
                return self._probe_done(search, now_us)
            case _:
                assert_never(aim)

    def _probe_done(self, search: Search, now_us: int) -> list[Effect]:
        search.open -= 1
        if search.open:
            return []
        now_ms = self._world.now_ms(now_us)
        if search.wants_more(self._config.low_score_ppm, now_ms):
            keys, search.later = search.later, []
            search.open = len(keys)
            return self._ask_shards(search, keys, now_us)
        found = search.result(now_ms)
        error = None if search.heard or found else PeerUnreachable(NOBODY)
        return _tell(FindDone(search.request, found, Cost(search.rpcs, search.rounds), error))

    def _finish_get(self, aim: Get, running: _Running, now_us: int) -> list[Effect]:
        now_ms = self._world.now_ms(now_us)
        known = [*running.found.values(), *self._world.store.read(aim.key, now_ms)]
        candidates = [record for record in known if record.key == aim.key and record.acceptable(now_ms)]
        best = max(candidates, key=lambda record: record.version, default=None)
        answered = running.query.closest(self._config.quorum)
        effects: list[Effect] = []
        if best is not None:
            effects += self._repair(best, answered, running, now_us)
        error = None if answered or best is not None else PeerUnreachable(NOBODY)
        record = best if best is not None and best.live(now_ms) else None
        cost = Cost(running.query.rpcs, running.query.rounds)
        return effects + _tell(GetDone(aim.request, record, len(answered), cost, error))

    def _repair(self, best: SignedRecord, answered: list[Contact], running: _Running, now_us: int) -> list[Effect]:
        """Give the newest version to who answered with less."""
        if self._world.serves():
            slot = (best.publisher, best.key)
            if self._world.store.get(best.key, slot) is not None:
                self._world.store.offer(best.key, best, self._world.me, self._world.now_ms(now_us))
        stale = [contact for contact in answered if running.told.get(contact.peer, (-1, b"")) < best.version]
        effects: list[Effect] = [Count("dht_repairs", len(stale))] if stale else []
        for contact in stale:
            effects += self._world.calls.call(("repair", 0), contact, store_request(best.key, best), now_us)
        return effects

    # ---- put

    def _store(
        self, aim: Put | OwnPut, query: Query, what: tuple[bytes, SignedRecord, int], now_us: int
    ) -> list[Effect]:
        key, record, replicas = what
        targets = query.closest(replicas)
        kept = self._keep(query, key, record, replicas, now_us)
        if kept:
            targets = targets[: replicas - 1]
        cost = Cost(query.rpcs + len(targets), query.rounds + 1)
        self._next += 1
        number = self._next
        self._storing[number] = _Storing(aim, len(targets) + kept, kept, len(targets), cost)
        effects: list[Effect] = []
        for contact in targets:
            effects += self._world.calls.call(("put", number), contact, store_request(key, record), now_us)
        return effects if targets else effects + self._stored(number)

    def _keep(self, query: Query, key: bytes, record: SignedRecord, replicas: int, now_us: int) -> int:
        """1 if this node is among the closest itself and holds the record now, else 0."""
        world = self._world
        place = int.from_bytes(key_id(key), "big")
        mine = int.from_bytes(world.place, "big") ^ place
        closer = sum(contact.long_id ^ place < mine for contact in query.closest(replicas))
        if not world.serves() or closer >= replicas:
            return 0
        return int(world.store.offer(key, record, world.me, world.now_ms(now_us)).holds)

    def _stored(self, number: int) -> list[Effect]:
        storing = self._storing[number]
        if storing.open:
            return []
        del self._storing[number]
        enough = storing.confirmed > storing.asked // 2
        aim = storing.aim
        if isinstance(aim, OwnPut):
            self.finished.append((aim, enough))
            return [] if enough else [Count("dht_puts_short")]
        error: SwarmError | None = None
        if not storing.asked:
            error = PeerUnreachable(NOBODY, hint="the node is alone; it publishes again when it has joined")
        elif not enough:
            error = RemoteFailure(f"{storing.confirmed} of {storing.asked} nodes hold the record")
        return _tell(PutDone(aim.request, storing.confirmed, storing.asked, storing.cost, error))


def _tell(done: Done) -> list[Effect]:
    return [Local(done)]


def store_request(key: bytes, record: SignedRecord) -> Make:
    """The request to hold a record under a key."""
    return lambda req: StoreRecord(req, key, record.wire)
