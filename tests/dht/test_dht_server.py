"""A serving node answers every request, and nobody makes it work or hold more than its bounds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from dht.config import DhtConfig
from dht.directory import Directory
from dht.key import distance, key_id
from dht.placement import scores_ppm
from dht.record_store import RecordStore
from dht.routing_table import Table
from dht.server import ANSWER_BYTES_MAX, CLIENT_RETRY_MS, STORE_RETRY_MS, VALUES_BYTES_MAX, Held, Server, ranked
from dht.terms import Terms
from dht.verified import VerifiedRecords
from protocol import messages as m
from protocol.capability import AgentValue, PeerValue, SignedRecord, make_record
from protocol.peer import PeerID
from protocol.transport import Lane
from tests.dht.dht_world import WALL_MS, peer_wire, read, terms, verify
from tests.dht.test_dht_placement import BOOK, VECTORS
from tests.dht.test_dht_record_store import peer_record
from tests.dht.test_dht_routing_table import ME, contact
from tests.strategies import keypair

ASKER = PeerID(keypair("asker").public)
OTHER = PeerID(keypair("other asker").public)
KEY = b"k" * 20
DIM = len(VECTORS[0])
TERMS = terms(DIM)


def server(config: DhtConfig | None = None, swarm: Terms = TERMS) -> tuple[Server, Held]:
    config = config or DhtConfig()
    held = Held(Table(ME, config), RecordStore(config), Directory(config), VerifiedRecords(swarm, 100))
    return Server(held, config), held


def agent(name: str, number: int = 0, *, vector: bytes | None = None, seq: int = 1, text: str = "") -> SignedRecord:
    vector = VECTORS[number] if vector is None else vector
    value = AgentValue(agent=str(number), roles=(), vector=vector, encoder="enc", description=text)
    return read(make_record(keypair(name), value, seq=seq, issued_ms=WALL_MS))


def store(one: Server, key: bytes, wire: bytes, *, peer: PeerID = ASKER) -> m.Stored:
    answer = one.answer(peer, m.StoreRecord(7, key, wire), 0, WALL_MS)
    assert isinstance(answer, m.Stored)
    assert answer.req == 7
    m.decode_frame(m.encode_frame(answer), Lane.CONTROL)
    return answer


def test_find_node_names_the_closest_but_not_the_asker() -> None:
    one, held = server()
    wires = {}
    for number in range(40):
        keys = keypair(f"server contact {number}")
        wire = peer_wire(keys, (f"/ip4/10.0.0.{number + 1}/tcp/1",))
        found = held.verified.contact(wire, WALL_MS)
        assert found is not None
        held.table.offer(found, 0)
        wires[found.peer] = (distance(found.id, KEY), wire)
    asker = min(wires, key=lambda peer: wires[peer])
    answer = one.answer(asker, m.FindNode(3, KEY), 0, WALL_MS)
    want = sorted(wires[c.peer] for c in held.table.contacts() if c.peer != asker)[:20]
    assert answer == m.FoundNodes(3, tuple(wire for _, wire in want))


def test_a_peer_beyond_its_rate_is_told_when_to_come_back_and_then_served() -> None:
    one, _ = server(DhtConfig(rpcs_per_peer_s=10))
    kinds = Counter(type(one.answer(ASKER, m.FindNode(n, KEY), 0, WALL_MS)).__name__ for n in range(25))
    assert kinds == {"FoundNodes": 10, "Busy": 15}
    busy = one.answer(ASKER, m.FindNode(99, KEY), 0, WALL_MS)
    assert busy == m.Busy(99, 100)
    assert isinstance(one.answer(OTHER, m.FindNode(1, KEY), 0, WALL_MS), m.FoundNodes), "others do not pay for it"
    assert isinstance(one.answer(ASKER, m.FindNode(1, KEY), 99_999, WALL_MS), m.Busy)
    assert isinstance(one.answer(ASKER, m.FindNode(1, KEY), 100_000, WALL_MS), m.FoundNodes)


def test_all_peers_together_are_bounded_and_state_goes_with_the_link() -> None:
    one, _ = server(DhtConfig(rpcs_per_peer_s=10, rpcs_per_s=100))
    peers = [PeerID(number.to_bytes(32, "big")) for number in range(30)]
    kinds = Counter(type(one.answer(p, m.FindNode(n, KEY), 0, WALL_MS)).__name__ for n in range(10) for p in peers)
    assert kinds == {"FoundNodes": 100, "Busy": 200}
    for peer in peers:
        one.forget(peer)
    assert one._buckets == {}


@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=60), st.integers(1, 20))
def test_no_pattern_of_asking_gets_more_than_the_rate(waits: list[int], rate: int) -> None:
    one, _ = server(DhtConfig(rpcs_per_peer_s=rate))
    now = served = 0
    for wait in waits:
        now += wait
        answer = one.answer(ASKER, m.FindNode(1, KEY), now, WALL_MS)
        served += isinstance(answer, m.FoundNodes)
        if isinstance(answer, m.Busy):
            assert 1 <= answer.retry_after_ms <= 1000
    assert served <= rate + now * rate // 1_000_000 + 1


def test_a_busy_wait_is_never_that_of_a_client() -> None:
    assert CLIENT_RETRY_MS > 1000


def test_forged_misplaced_and_expired_records_are_refused_with_a_reason() -> None:
    one, held = server()
    held.directory.use(BOOK)
    good = peer_record(5, ttl=6 * 3_600_000)
    forged = bytearray(good.wire)
    forged[-1] ^= 1
    assert store(one, good.key, bytes(forged)) == m.Stored(7, ok=False, reason="invalid", retry_after_ms=0)
    assert store(one, KEY, good.wire).reason == "wrong_key", "a peer record has one slot"
    assert store(one, good.key, peer_record(5, issued=WALL_MS - 2000).wire).reason == "reject_expired"
    wrong = BOOK.keys_for(VECTORS[0], 8)[-1]
    assert store(one, wrong, agent("a").wire).reason == "wrong_key", "not its shard"
    assert held.store.count == 0
    assert store(one, good.key, good.wire) == m.Stored(7, ok=True, reason="accept_new", retry_after_ms=0)
    assert store(one, good.key, peer_record(4, ttl=6 * 3_600_000).wire).ok, "a greater one is held"
    assert one.verdicts["invalid"] == 1
    assert held.store.read(good.key, WALL_MS) == [good]


def test_an_agent_that_moved_leaves_nothing_stale_in_its_old_shard() -> None:
    one, held = server()
    held.directory.use(BOOK)
    shard = BOOK.keys_for(VECTORS[0], 1)[0]
    far = next(v for v in VECTORS if shard not in BOOK.keys_for(v, 2))
    old, new = agent("a", 0), agent("a", 0, vector=far, seq=2)
    assert store(one, shard, old.wire).ok
    assert store(one, shard, new.wire).ok, "misplaced, but it replaces an older one"
    assert held.store.read(shard, WALL_MS) == [new]
    assert not store(one, shard, agent("b", 0, vector=far).wire).ok


def test_a_full_store_names_a_time_to_come_back() -> None:
    one, _ = server(DhtConfig(records_max=1))
    first, second = peer_record(1), peer_record(1, name="q")
    assert store(one, first.key, first.wire).ok
    assert store(one, second.key, second.wire) == m.Stored(7, ok=False, reason="full", retry_after_ms=STORE_RETRY_MS)


def test_a_node_far_from_a_key_does_not_hold_it() -> None:
    one, held = server(DhtConfig(k=2, close_factor=2, contacts_per_subnet_max=0))
    records = [peer_record(1, name=f"far {n}", ttl=10_000) for n in range(40)]
    for number in range(60):
        held.table.offer(contact(number), 0)
    for record in records:
        closer = held.table.closer_than_me(key_id(record.key))
        assert store(one, record.key, record.wire).ok == (closer < 4)


def test_an_answer_takes_the_nearest_to_a_probe_and_leaves_room_for_peers() -> None:
    one, held = server(DhtConfig(records_per_source_max=10_000))
    for number in range(60):
        record = agent(f"publisher {number}", number, text="x" * 600)
        assert held.store.offer(KEY, record, ASKER, WALL_MS).holds
        found = held.verified.contact(peer_wire(keypair(f"near {number}"), ("/ip4/10.0.0.1/tcp/1",)), WALL_MS)
        assert found is not None
        held.table.offer(found, 0)
    answer = one.answer(ASKER, m.FindValue(1, KEY, VECTORS[3]), 0, WALL_MS)
    assert isinstance(answer, m.FoundValue)
    m.decode_frame(m.encode_frame(answer), Lane.CONTROL)
    vectors = [held.verified.read(wire).value.vector or b"" for wire in answer.records]  # type: ignore[union-attr]
    everyone = sorted(scores_ppm(VECTORS[3], VECTORS[:60]), reverse=True)
    assert scores_ppm(VECTORS[3], vectors) == everyone[: len(vectors)]
    assert 10 <= len(vectors) <= 16
    assert sum(map(len, answer.records)) <= VALUES_BYTES_MAX
    assert len(answer.peers) >= 10
    assert sum(map(len, [*answer.records, *answer.peers])) <= ANSWER_BYTES_MAX


def test_without_a_probe_the_answer_is_a_sample_that_sees_everybody_in_time() -> None:
    one, held = server(DhtConfig(records_per_source_max=10_000))
    for number in range(60):
        held.store.offer(KEY, agent(f"publisher {number}", number), ASKER, WALL_MS)
    for number in range(60, 100):
        held.store.offer(KEY, agent("loud", number), ASKER, WALL_MS)
    seen: Counter[bytes] = Counter()
    for req in range(60):
        answer = one.answer(ASKER, m.FindValue(req, KEY, b""), req * 10_000, WALL_MS)
        assert isinstance(answer, m.FoundValue)
        publishers = [held.verified.read(wire).publisher for wire in answer.records]
        assert len(set(publishers)) == len(publishers), "nobody twice while others wait"
        seen.update(publishers)
    assert len(seen) == 61
    assert seen[keypair("loud").public] <= 30, "forty records give no more chance than one"
    again = one.answer(ASKER, m.FindValue(1, KEY, b""), 10**7, WALL_MS)
    assert again == one.answer(ASKER, m.FindValue(1, KEY, b""), 10**7, WALL_MS), "the same request, the same answer"


def test_ranking_is_total_whatever_the_order_of_storing() -> None:
    records = [agent(f"publisher {number}", number) for number in range(10)]
    for probe in (b"", VECTORS[0]):
        assert ranked(records, probe, b"s") == ranked(records[::-1], probe, b"s")


def test_a_verified_record_is_verified_once_and_the_cache_is_bounded() -> None:
    calls: Counter[bytes] = Counter()

    def counting(public: bytes, message: bytes, signature: bytes) -> bool:
        calls[signature] += 1
        return verify(public, message, signature)

    cache = VerifiedRecords(terms(DIM, verify=counting), 5)
    wires = [peer_wire(keypair(f"cached {n}"), ("/ip4/10.0.0.1/tcp/1",)) for n in range(8)]
    for wire in wires[:5] * 3:
        assert cache.read(wire).wire == wire
        assert cache.contact(wire, WALL_MS) is cache.contact(wire, WALL_MS)
    assert set(calls.values()) == {1}
    for wire in wires:
        cache.contact(wire, WALL_MS)
    assert len(cache._known) == len(cache._contacts) == 5
    blind = read(make_record(keypair("blind"), PeerValue(addrs=()), seq=1, issued_ms=WALL_MS))
    assert cache.contact(blind.wire, WALL_MS) is None
    assert cache.contact(agent("a").wire, WALL_MS) is None
    assert cache.contact(wires[0], WALL_MS + 6 * 3_600_000) is None, "it has run out"


@pytest.mark.parametrize("rate", [1, 200])
def test_the_wait_that_busy_names_is_enough(rate: int) -> None:
    one, _ = server(DhtConfig(rpcs_per_peer_s=rate))
    now = 0
    for _ in range(5 * rate):
        answer = one.answer(ASKER, m.FindNode(1, KEY), now, WALL_MS)
        if isinstance(answer, m.Busy):
            now += answer.retry_after_ms * 1000
            assert isinstance(one.answer(ASKER, m.FindNode(1, KEY), now, WALL_MS), m.FoundNodes)
