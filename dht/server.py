"""What a serving node answers: every request is answered, by what was asked or by `Busy` with a time.

A token bucket per linked peer and one for all of them bound the work that others can cause; both are counted in exact
integers. State of a peer goes with its link. A record of another encoder is refused; one of a publisher whose admission
is not known here has a small share of the store, unless it is the publisher who brings it: links are admitted. A record
is held only under a key where it belongs: the slot it names, or a centroid that a codebook in force puts its vector
under; and only if this node is not far from that key, as far as it knows. A misplaced record may still replace an older
one of its slot, so that nothing stale stays behind when an agent moves to another shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dht.config import DhtConfig
from dht.directory import Directory, tie
from dht.key import key_id
from dht.placement import scores_ppm
from dht.record_store import RecordStore, Verdict
from dht.routing_table import Contact, Table
from dht.verified import VerifiedRecords
from protocol.capability import AgentValue, SignedRecord
from protocol.errors import DecodeError
from protocol.identity import h64
from protocol.messages import (
    DHT_PEERS_MAX,
    DHT_RECORDS_MAX,
    Busy,
    FindNode,
    FindValue,
    FoundNodes,
    FoundValue,
    Stored,
    StoreRecord,
)
from protocol.peer import PeerID

ANSWER_BYTES_MAX: Final = 15 * 1024  # of records; the rest of the frame is tags and lengths
VALUES_BYTES_MAX: Final = 11 * 1024  # of them at most so much under the key, so that peers have room too
CLIENT_RETRY_MS: Final = 3_600_000  # what a client tells who takes it for a server; nobody else names such a time
STORE_RETRY_MS: Final = 60_000  # a full store may have room when something expired
_ITEM_BYTES: Final = 3  # length prefix of a record in a frame
_US_PER_S: Final = 1_000_000

Request = FindNode | FindValue | StoreRecord
Response = FoundNodes | FoundValue | Stored | Busy


@dataclass(slots=True)
class _TokenBucket:
    """`rate` per second, saved up for a second; the level counts millionths of a request."""

    rate: int
    level: int
    at_us: int

    def take(self, now_us: int) -> int:
        """0 if a request may be served now, else the milliseconds until one may."""
        self.level = min(self.rate * _US_PER_S, self.level + self.rate * (now_us - self.at_us))
        self.at_us = now_us
        if self.level >= _US_PER_S:
            self.level -= _US_PER_S
            return 0
        return -(-(_US_PER_S - self.level) // (self.rate * 1000))


@dataclass(frozen=True, slots=True)
class Held:
    """What a server reads and writes."""

    table: Table
    store: RecordStore
    directory: Directory
    verified: VerifiedRecords


class Server:
    """Answers requests of linked peers."""

    def __init__(self, held: Held, config: DhtConfig) -> None:
        self._held = held
        self._config = config
        self._buckets: dict[PeerID, _TokenBucket] = {}
        self._all = _TokenBucket(config.rpcs_per_s, config.rpcs_per_s * _US_PER_S, 0)
        self.verdicts: dict[str, int] = {}

    def forget(self, peer: PeerID) -> None:
        """A peer is gone, and with it what was kept about it."""
        self._buckets.pop(peer, None)

    def answer(self, peer: PeerID, request: Request, now_us: int, now_ms: int) -> Response:
        """The answer to a request of a linked peer."""
        rate = self._config.rpcs_per_peer_s
        bucket = self._buckets.setdefault(peer, _TokenBucket(rate, rate * _US_PER_S, now_us))
        wait_ms = bucket.take(now_us) or self._all.take(now_us)
        if wait_ms:
            return Busy(request.req, wait_ms)
        match request:
            case FindNode(req, target):
                return FoundNodes(req, self._closest(target, peer, ANSWER_BYTES_MAX))
            case FindValue(req, key, probe):
                return self._found(req, key, probe, peer, now_ms)
            case StoreRecord(req, key, wire):
                return self._stored(req, key, wire, peer, now_ms)

    def _closest(self, target: bytes, asker: PeerID, room: int) -> tuple[bytes, ...]:
        contacts: list[Contact] = self._held.table.neighbours(target, DHT_PEERS_MAX, exclude=asker)
        return _fitting([contact.record.wire for contact in contacts], room)

    def _found(self, req: int, key: bytes, probe: bytes, asker: PeerID, now_ms: int) -> FoundValue:
        records = ranked(self._held.store.read(key, now_ms), probe, req.to_bytes(4, "big") + asker)
        wires = _fitting([record.wire for record in records[:DHT_RECORDS_MAX]], VALUES_BYTES_MAX)
        room = ANSWER_BYTES_MAX - sum(len(wire) + _ITEM_BYTES for wire in wires)
        return FoundValue(req, wires, self._closest(key_id(key), asker, room))

    def _stored(self, req: int, key: bytes, wire: bytes, source: PeerID, now_ms: int) -> Stored:
        try:
            record = self._held.verified.read(wire)
        except DecodeError:
            return self._refusal(req, "invalid")
        if not self._held.verified.fits(record):
            return self._refusal(req, "wrong_encoder")
        misplaced = self._misplaced(key, record)
        if misplaced and self._held.store.get(key, (record.publisher, record.key)) is None:
            return self._refusal(req, misplaced)
        is_stranger = record.publisher != source and not self._held.verified.of_member(record, now_ms)
        verdict = self._held.store.offer(key, record, source, now_ms, stranger=is_stranger)
        self._note(verdict)
        if verdict.holds:
            return Stored(req, ok=True, reason=verdict.value, retry_after_ms=0)
        wait_ms = STORE_RETRY_MS if verdict is Verdict.FULL else 0
        return Stored(req, ok=False, reason=verdict.value, retry_after_ms=wait_ms)

    def _misplaced(self, key: bytes, record: SignedRecord) -> str:
        """Why a record does not belong here; empty if it does."""
        if record.key != key and not (
            isinstance(record.value, AgentValue) and self._held.directory.may_hold(key, record.value)
        ):
            return "wrong_key"
        bound = self._config.close_factor * self._config.k
        return "not_close" if self._held.table.closer_than_me(key_id(key)) >= bound else ""

    def _refusal(self, req: int, reason: str) -> Stored:
        self._note(reason)
        return Stored(req, ok=False, reason=reason, retry_after_ms=0)

    def _note(self, verdict: str) -> None:
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1


def ranked(records: list[SignedRecord], probe: bytes, salt: bytes) -> list[SignedRecord]:
    """Records in the order in which an answer takes them.

    With a probe by score, of equals standard before demo and then a sample, so that the holders of a shard of equals
    give different ones; without a probe sampled, one of each publisher before a second of any (libp2p.md §8, rule 6).
    The sample hangs on the request, so that askers share the load and repeated asking sees everybody.
    """
    if probe:
        vectors = [record.value.vector or b"" if isinstance(record.value, AgentValue) else b"" for record in records]
        scores = scores_ppm(probe, vectors)
        order = {i: (-scores[i], tie(records[i])[0], h64(salt, records[i].hash)) for i in range(len(records))}
        return [records[i] for i in sorted(order, key=order.__getitem__)]
    turn: dict[bytes, int] = {}
    taken: list[tuple[int, int, SignedRecord]] = []
    for record in sorted(records, key=lambda record: h64(salt, record.hash)):
        taken.append((turn.get(record.publisher, 0), h64(salt, record.publisher), record))
        turn[record.publisher] = turn.get(record.publisher, 0) + 1
    return [record for _, _, record in sorted(taken, key=lambda entry: entry[:2])]


def _fitting(wires: list[bytes], room: int) -> tuple[bytes, ...]:
    """The longest beginning that fits a number of bytes."""
    taken: list[bytes] = []
    for wire in wires:
        room -= len(wire) + _ITEM_BYTES
        if room < 0:
            break
        taken.append(wire)
    return tuple(taken)
