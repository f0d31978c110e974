"""What look-ups are for, and what they work on; the vocabulary of dht/lookups.py and who feeds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dht.calls import Calls
from dht.directory import Directory, Search
from dht.events import Get, Lookup, Put
from dht.record_store import RecordStore
from dht.routing_table import Table
from protocol.capability import SignedRecord
from protocol.peer import PeerID


@dataclass(frozen=True, slots=True)
class Refresh:
    """Look around a place to fill the routing table; nobody waits for it. `own`: the look-up of the own place."""

    target: bytes
    own: bool = False


@dataclass(frozen=True, slots=True)
class OwnPut:
    """Publish an own record under a key, at so many nodes."""

    key: bytes
    record: SignedRecord
    replicas: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask one shard of a search."""

    search: Search
    key: bytes


Aim = Refresh | OwnPut | Lookup | Put | Get | Probe
Finished = tuple[Refresh, int] | tuple[OwnPut, bool]  # how many answered; whether a majority confirmed


@dataclass(frozen=True, slots=True)
class World:
    """What look-ups work on. `now_ms` is swarm time at a boot time; `serves` is False in client mode."""

    me: PeerID
    place: bytes
    table: Table
    store: RecordStore
    directory: Directory
    calls: Calls
    now_ms: Callable[[int], int]
    serves: Callable[[], bool]
