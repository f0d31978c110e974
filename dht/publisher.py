"""Keeping records where they belong: the own ones published anew, those of others handed to newcomers.

An own record stands under its slot, and an agent's also under the shards of its vector. It is put again at a third of
its life, when a put found no majority, and when the k closest nodes of one of its keys changed. A newer version goes
to the keys of the older one too, so that no shard keeps offering what is no longer so; a withdrawal likewise.

What is held for others is handed over when membership changes (libp2p.md §8, rule 4): of a key, the `handoff_rank`
closest holders give its records to each node that came in among the k closest, and for each that left to one that
moved up. Changes are gathered for a while first; a hand-over then goes through the store in small steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dht.aims import OwnPut
from dht.config import DhtConfig
from dht.directory import Directory
from dht.key import distance, key_id
from dht.record_store import RecordStore, Slot
from dht.routing_table import Contact, Table
from protocol.capability import AgentValue, SignedRecord


@dataclass(slots=True)
class _Own:
    record: SignedRecord
    keys: dict[bytes, None]
    due: dict[bytes, None]  # keys at which this version has to be put
    put_us: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Changes:
    """Places of nodes that came or left."""

    came: dict[bytes, None] = field(default_factory=dict)
    left: dict[bytes, None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.came or self.left)


class Publisher:
    """What has to be put or handed over. It names the work; the machine does it."""

    def __init__(self, table: Table, store: RecordStore, directory: Directory, config: DhtConfig) -> None:
        self._table = table
        self._store = store
        self._directory = directory
        self._config = config
        self._own: dict[bytes, _Own] = {}
        self._puts_short = False
        self._changes = _Changes()
        self._sweep = _Changes()  # those that the hand-over under way is about
        self._keys: deque[bytes] = deque()
        self._sends: deque[tuple[Contact, bytes, Slot]] = deque()

    def __len__(self) -> int:
        return len(self._own)

    # ---- own records

    def take(self, record: SignedRecord) -> bool:
        """A version of an own record; False if it is no newer one, or there are too many."""
        old = self._own.get(record.key)
        if old is None and len(self._own) >= self._config.own_records_max:
            return False
        if old is not None and record.version <= old.record.version:
            return False
        keys = dict.fromkeys([*self._keys_for(record), *(old.keys if old else ())])
        self._own[record.key] = _Own(record, keys, dict(keys))
        return True

    def _keys_for(self, record: SignedRecord) -> list[bytes]:
        shards = self._directory.keys_for(record.value) if isinstance(record.value, AgentValue) else []
        return [record.key, *shards]

    def use_codebook(self) -> None:
        """The codebooks changed: agents are due under the shards that are new to them."""
        for own in self._own.values():
            fresh = [key for key in self._keys_for(own.record) if key not in own.keys]
            own.keys |= dict.fromkeys(fresh)
            own.due |= dict.fromkeys(fresh)

    def all_due(self, before_us: int) -> None:
        """Everything that was not put since then is due."""
        for own in self._own.values():
            own.due |= {key: None for key in own.keys if own.put_us.get(key, before_us) <= before_us}

    def take_due(self, now_us: int, now_ms: int) -> list[OwnPut]:
        """The puts to start now. What has ended is forgotten."""
        ended = [key for key, own in self._own.items() if not own.record.acceptable(now_ms)]
        for key in ended:
            del self._own[key]
        puts: list[OwnPut] = []
        for own in self._own.values():
            for key in own.due:
                own.put_us[key] = now_us
                puts.append(OwnPut(key, own.record, self._replicas(key, own.record.key)))
            own.due = {}
        return puts

    def _replicas(self, key: bytes, slot_key: bytes) -> int:
        return self._config.k if key == slot_key else self._config.centroid_replicas

    def on_put(self, put: OwnPut, *, enough: bool) -> None:
        """A put ended; without a majority it is due again, unless a newer version is."""
        own = self._own.get(put.record.key)
        if enough or own is None or own.record.wire != put.record.wire:
            return
        own.due[put.key] = None
        self._puts_short = True

    @property
    def restless(self) -> bool:
        """True if `settle` would find something to do."""
        return self._puts_short or bool(self._changes)

    # ---- changes of membership

    def came(self, contact: Contact) -> None:
        """A contact is new."""
        if len(self._changes.came) < self._config.changes_max:
            self._changes.came[contact.id] = None

    def left(self, place: bytes) -> None:
        """A contact was evicted."""
        if len(self._changes.left) < self._config.changes_max:
            self._changes.left[place] = None

    def settle(self) -> None:
        """Work out what the gathered changes ask for: own records that are due, and a hand-over."""
        self._puts_short = False
        changes, self._changes = self._changes, _Changes()
        if not changes:
            return
        for own in self._own.values():
            for key in own.keys:
                if self._touched(key, self._replicas(key, own.record.key), changes):
                    own.due[key] = None
        self._sweep.came |= changes.came
        self._sweep.left |= changes.left
        self._keys = deque(self._store.keys())

    def _touched(self, key: bytes, replicas: int, changes: _Changes) -> bool:
        place = key_id(key)
        closest = self._table.neighbours(place, replicas)
        if len(closest) < replicas:
            return True
        radius = distance(closest[-1].id, place)
        return any(distance(other, place) <= radius for other in [*changes.came, *changes.left])

    # ---- handing over

    def hand_over(self) -> list[tuple[Contact, bytes, SignedRecord]]:
        """The next step: to whom which record under which key, in the version held now."""
        looked = 0
        while self._keys and looked < self._config.handoff_keys_max:
            if len(self._sends) >= self._config.handoff_sends_max:
                break
            looked += 1
            self._look_at(self._keys.popleft())
        if not self._keys:
            self._sweep = _Changes()
        sends: list[tuple[Contact, bytes, SignedRecord]] = []
        for _ in range(min(len(self._sends), self._config.handoff_sends_max)):
            contact, key, slot = self._sends.popleft()
            record = self._store.get(key, slot)
            if record is not None:
                sends.append((contact, key, record))
        return sends

    @property
    def handing_over(self) -> bool:
        """True while a hand-over is not through."""
        return bool(self._keys or self._sends)

    def _look_at(self, key: bytes) -> None:
        place = key_id(key)
        replicas = self._config.centroid_replicas if self._directory.is_shard(key) else self._config.k
        closest = self._table.neighbours(place, replicas - 1)  # beside this node, which is one of them
        if not closest or self._rank(place) >= self._config.handoff_rank:
            return
        radius = distance(closest[-1].id, place)
        came = [contact for contact in closest if contact.id in self._sweep.came]
        gone = sum(distance(other, place) <= radius for other in self._sweep.left)
        moved_up = [contact for contact in closest[len(closest) - min(gone, len(closest)) :] if contact not in came]
        for contact in [*came, *moved_up]:
            self._sends.extend((contact, key, slot) for slot in self._hands_on(key))

    def _hands_on(self, key: bytes) -> list[Slot]:
        """What is held under a key, but for what strangers signed: it would use up this node's share elsewhere."""
        return [slot for slot in self._store.slots(key) if not self._store.is_stranger(key, slot)]

    def _rank(self, place: bytes) -> int:
        """How many contacts that were here before stand closer to a place than this node."""
        mine = distance(self._table.place, place)
        known = self._table.neighbours(place, self._config.handoff_rank + len(self._sweep.came))
        return sum(distance(other.id, place) < mine for other in known if other.id not in self._sweep.came)

    def forget_held(self) -> None:
        """This node serves no more."""
        self._keys.clear()
        self._sends.clear()
        self._sweep = _Changes()
