"""Case D1 (the newest stays, whatever comes in whatever order), case S3 (bounded by count and bytes), expiry."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dht.config import DhtConfig
from dht.record_store import RECORD_OVERHEAD_BYTES, RecordStore, Verdict
from protocol.capability import RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, make_record
from protocol.peer import PeerID
from tests.dht.dht_world import WALL_MS, read
from tests.strategies import case_lines, keypair

SOURCE = PeerID(keypair("bringer").public)
OTHER = PeerID(keypair("other bringer").public)


def peer_record(
    seq: int = 1, *, port: int = 1, name: str = "p", issued: int = WALL_MS, ttl: int = 1000
) -> SignedRecord:
    value = PeerValue(addrs=(f"/ip4/10.0.0.1/tcp/{port}",))
    return read(make_record(keypair(name), value, seq=seq, issued_ms=issued, ttl_ms=ttl))


def plain(number: int, *, publisher: bytes | None = None, size: int = 100) -> SignedRecord:
    """A record as it stands in the store, unsigned: the store takes verified ones and does not look at signatures."""
    peer = publisher or number.to_bytes(32, "big")
    wire = number.to_bytes(8, "big") + bytes(size - 8)
    value = AgentValue(agent=str(number), roles=())
    return SignedRecord(number.to_bytes(20, "big"), "agent", value, peer, 1, WALL_MS, WALL_MS + 1000, wire, wire)


VERDICTS = {
    "reject_older": Verdict.OLDER, "accept_noop": Verdict.KNOWN, "accept_replace": Verdict.REPLACED,
    "reject_expired": Verdict.EXPIRED, "keep_greater_hash_and_count_equivocation": Verdict.EQUIVOCATED,
}  # fmt: skip


@pytest.mark.parametrize("line", range(5))
def test_d1_each_line_of_the_case(line: int) -> None:
    case = case_lines("D1_put_order.jsonl")[line]
    start = WALL_MS - case["now"]
    stored, incoming = (
        peer_record(case[name]["seq"], issued=start, ttl=case[name]["expires"]) for name in ("stored", "incoming")
    )
    store = RecordStore(DhtConfig())
    assert store.offer(stored.key, stored, SOURCE, WALL_MS) is Verdict.NEW
    assert store.offer(incoming.key, incoming, SOURCE, WALL_MS) is VERDICTS[case["expect"]]
    kept = store.read(stored.key, WALL_MS)
    want = max(stored, incoming, key=lambda r: r.version) if incoming.acceptable(WALL_MS) else stored
    assert kept == [want]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=5))
def test_d1_the_same_record_stays_in_every_order(contents: list[tuple[int, int]]) -> None:
    records = [peer_record(seq, port=port) for seq, port in contents]
    kept = set()
    for order in itertools.permutations(records):
        store = RecordStore(DhtConfig())
        for record in order:
            store.offer(record.key, record, SOURCE, WALL_MS)
            version = store.read(record.key, WALL_MS)[0].version
            assert version >= record.version, "what was here is never replaced by less"
        kept.add(store.read(records[0].key, WALL_MS)[0].wire)
    assert kept == {max(records, key=lambda r: r.version).wire}


def test_a_withdrawal_keeps_what_it_ends_from_coming_back() -> None:
    store = RecordStore(DhtConfig())
    offer, end = peer_record(5, ttl=RECORD_TTL_MS), peer_record(6, issued=WALL_MS + 10, ttl=0)
    store.offer(offer.key, offer, SOURCE, WALL_MS)
    later = WALL_MS + 20
    assert store.offer(end.key, end, SOURCE, later) is Verdict.REPLACED
    assert store.offer(offer.key, offer, SOURCE, later) is Verdict.OLDER
    assert store.read(offer.key, later) == [end], "who asks must learn of the end"
    assert store.expire(WALL_MS + RECORD_TTL_MS - 1) == 0
    assert store.expire(WALL_MS + RECORD_TTL_MS + 10) == 1


def test_nothing_expired_is_given_or_taken_even_before_it_is_swept() -> None:
    store = RecordStore(DhtConfig())
    record = peer_record(ttl=1000)
    assert store.offer(record.key, record, SOURCE, WALL_MS + 999).holds
    assert store.read(record.key, WALL_MS + 999) == [record]
    assert store.read(record.key, WALL_MS + 1000) == []
    assert store.offer(record.key, record, SOURCE, WALL_MS + 1000) is Verdict.EXPIRED
    assert store.count == 1
    assert store.expire(WALL_MS + 1000) == 1
    assert (store.count, store.bytes, store.keys()) == (0, 0, [])
    assert store.offer(peer_record(ttl=RECORD_TTL_MS + 1).key, peer_record(ttl=RECORD_TTL_MS + 1), SOURCE, WALL_MS) is (
        Verdict.EXPIRED
    )


# ---- S3


def test_s3_a_million_keys_of_one_peer_stay_within_its_quota() -> None:
    config = DhtConfig()
    store = RecordStore(config)
    for number in range(20_000):
        record = plain(number, size=1024)
        store.offer(record.key, record, SOURCE, WALL_MS)
    assert store.count == config.records_per_source_max
    assert store.bytes < 32 * 1024 * 1024
    honest = plain(30_000)
    assert store.offer(honest.key, honest, OTHER, WALL_MS) is Verdict.NEW, "and nobody else is kept out"


def test_s3_one_key_that_grows_is_bounded_by_count_and_bytes() -> None:
    for config, bound in (
        (DhtConfig(records_per_key_max=50, records_per_source_max=10**6), 50),
        (DhtConfig(records_per_key_bytes_max=40 * (1024 + RECORD_OVERHEAD_BYTES), records_per_source_max=10**6), 40),
    ):
        store = RecordStore(config)
        verdicts = Counter(store.offer(b"k" * 20, plain(n, size=1024), SOURCE, WALL_MS) for n in range(1_000))
        assert verdicts == {Verdict.NEW: bound, Verdict.FULL: 1_000 - bound}


def test_s3_all_peers_together_are_bounded_and_one_publisher_too() -> None:
    store = RecordStore(DhtConfig(records_max=100))
    for number in range(300):
        record = plain(number)
        store.offer(record.key, record, PeerID(number.to_bytes(32, "big")), WALL_MS)
    assert store.count == 100
    store = RecordStore(DhtConfig(records_bytes_max=10 * (100 + RECORD_OVERHEAD_BYTES)))
    for number in range(300):
        store.offer(plain(number).key, plain(number), PeerID(number.to_bytes(32, "big")), WALL_MS)
    assert store.count == 10
    store = RecordStore(DhtConfig())
    one = keypair("greedy").public
    verdicts = Counter(store.offer(plain(n).key, plain(n, publisher=one), SOURCE, WALL_MS) for n in range(200))
    assert verdicts == {Verdict.NEW: 64, Verdict.QUOTA: 136}


def test_a_full_store_still_takes_newer_versions_and_has_room_after_expiry() -> None:
    store = RecordStore(DhtConfig(records_max=1))
    one, newer, late = peer_record(1), peer_record(2), peer_record(1, name="q", issued=WALL_MS + 900)
    assert store.offer(one.key, one, SOURCE, WALL_MS) is Verdict.NEW
    assert store.offer(late.key, late, SOURCE, WALL_MS) is Verdict.FULL
    assert store.offer(newer.key, newer, SOURCE, WALL_MS) is Verdict.REPLACED
    store.expire(WALL_MS + 1000)
    assert store.offer(late.key, late, SOURCE, WALL_MS + 1000) is Verdict.NEW


def test_a_replacement_that_grows_beyond_the_bytes_is_refused_and_the_old_one_stays() -> None:
    small, large = (
        read(make_record(keypair("g"), AgentValue(agent="a", roles=(), description=text), seq=seq, issued_ms=WALL_MS))
        for seq, text in ((1, ""), (2, "x" * 900))
    )
    store = RecordStore(DhtConfig(records_bytes_max=len(small.wire) + RECORD_OVERHEAD_BYTES + 10))
    assert store.offer(small.key, small, SOURCE, WALL_MS) is Verdict.NEW
    assert store.offer(large.key, large, SOURCE, WALL_MS) is Verdict.FULL
    assert store.read(small.key, WALL_MS) == [small]


class StoreMachine(RuleBasedStateMachine):
    """Counts and bytes are those of what is held, in any order of offers, expiry and clearing."""

    @initialize()
    def begin(self) -> None:
        self.config = DhtConfig(
            records_max=8, records_per_key_max=4, records_per_publisher_max=3, records_per_source_max=5
        )
        self.store = RecordStore(self.config)
        self.now = WALL_MS

    @rule(key=st.integers(0, 3), number=st.integers(0, 9), who=st.integers(0, 3), source=st.integers(0, 2))
    def offer(self, key: int, number: int, who: int, source: int) -> None:
        record = plain(number, publisher=bytes([who]) * 32, size=50 + number)
        before = self.store.count
        verdict = self.store.offer(bytes([key]) * 20, record, PeerID(bytes([source]) * 32), self.now)
        assert (self.store.count > before) == (verdict is Verdict.NEW)

    @rule(ms=st.integers(0, 400))
    def time(self, ms: int) -> None:
        self.now += ms
        self.store.expire(self.now)

    @rule()
    def clear(self) -> None:
        self.store.clear()

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "store"):
            return
        keys = self.store.keys()
        held = [self.store.get(key, slot) for key in keys for slot in self.store.slots(key)]
        records = [record for record in held if record is not None]
        assert len(records) == len(held) == self.store.count <= self.config.records_max
        assert self.store.bytes == sum(len(r.wire) + RECORD_OVERHEAD_BYTES for r in records)
        per_publisher = Counter(r.publisher for r in records)
        assert dict(per_publisher) == self.store._per_publisher
        assert sum(self.store._per_source.values()) == len(records)
        assert max(per_publisher.values(), default=0) <= 3
        assert max(self.store._per_source.values(), default=0) <= 5
        assert all(r.acceptable(self.now) for r in records)


TestStoreMachine: Any = StoreMachine.TestCase
