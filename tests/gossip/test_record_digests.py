"""Tables of records that are linked end equal, at the price of digests once they are, and nobody is pushed for ever."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count, permutations
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.config import GossipConfig
from gossip.context import Context
from gossip.events import Arrived, Broadcast, Judged, Linked, Publish, Unlinked
from gossip.record_digests import BUCKETS_MIN, LEAVES, Fingerprints, bucket_count, leaf_of
from gossip.record_map import RecordMap
from gossip.record_table import RecordTable
from protocol import versions
from protocol.capability import RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, Value, key_of
from protocol.clock import SwarmClock
from protocol.codec import encode
from protocol.errors import DecodeError
from protocol.identity import digest
from protocol.machine import (
    Boot,
    Count,
    JobIds,
    Local,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
    Writable,
)
from protocol.messages import (
    FINGERPRINT_BYTES,
    RECORD_BUCKETS_MAX,
    RECORDS_MAX,
    Frame,
    RecordDigests,
    Records,
    decode_frame,
    encode_frame,
    message_id,
)
from protocol.peer import PeerID
from protocol.store import RecordRow
from protocol.transport import QUEUE_FRAMES_MAX, Lane
from tests.gossip_world import GENESIS, NOW_MS, MemoryStore, chain_of, hello, seconds
from tests.strategies import keypair

HOUR_MS = 3_600_000
LATENCY_US = 20_000
SYNCING = (versions.MESH, versions.RECORD_SYNC)
# Made-up keys are all strangers.
WIDE = GossipConfig(records_of_strangers_max=100_000, record_strangers_per_peer_max=100_000)
ROUND_US = seconds(23)  # the longest pause between two rounds, and the exchange itself


def key(name: str) -> bytes:
    return digest("test", name.encode())


def record(value: Value | None = None, publisher: str = "p", **times: int) -> bytes:
    """A record under a signature that these maps take for good: thousands are made here."""
    value, public = value or agent(), key(publisher)
    seq, issued_ms, ttl_ms = times.get("seq", 1), times.get("issued_ms", NOW_MS), times.get("ttl_ms", RECORD_TTL_MS)
    kind = "agent" if isinstance(value, AgentValue) else "peer"
    body = encode((key_of(public, value), kind, value.model_dump(), public, seq, issued_ms, issued_ms + ttl_ms))
    return encode((body, bytes(64)))


def agent(name: str = "a", price: int = 0, text: str = "") -> AgentValue:
    return AgentValue(agent=name, roles=("analyst",), price_micro_money=price, description=text)


def read(wire: bytes) -> SignedRecord:
    return SignedRecord.from_wire(wire, lambda *_: True)


def stored(wires: Iterable[bytes]) -> MemoryStore:
    store = MemoryStore()
    store.apply(tuple(RecordRow(each.publisher, each.key, each.wire) for each in map(read, wires)))
    return store


def winners(*tables: Iterable[bytes]) -> list[bytes]:
    """What last writer wins makes of these tables, in slot order."""
    best: dict[tuple[bytes, bytes], SignedRecord] = {}
    for each in (read(wire) for wires in tables for wire in wires):
        old = best.get((each.publisher, each.key))
        if old is None or each.version > old.version:
            best[each.publisher, each.key] = each
    return [best[slot].wire for slot in sorted(best)]


@dataclass
class Net:
    """Record maps alone, joined by queues in virtual time. There is no mesh: exchanges have to do all the work."""

    now_us: int = 0
    maps: dict[str, RecordMap] = field(default_factory=dict)
    sent: list[tuple[int, str, str, Frame]] = field(default_factory=list)
    told: list[tuple[str, object]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    lose: Callable[[], bool] = lambda: False  # on the way, without a word
    refuse: Callable[[Frame], bool] = lambda _frame: False  # by the queue of the link
    _names: dict[PeerID, str] = field(default_factory=dict)
    _features: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _links: set[tuple[str, str]] = field(default_factory=set)
    _agenda: list[tuple[int, int, str, object]] = field(default_factory=list)
    _timers: dict[tuple[str, TimerKey], int] = field(default_factory=dict)
    _ticket: Iterable[int] = field(default_factory=count)

    def add(
        self,
        name: str,
        wires: Iterable[bytes] = (),
        config: GossipConfig = WIDE,
        features: tuple[str, ...] = SYNCING,
        off_ms: int = 0,
    ) -> RecordMap:
        keys, clock = keypair(name), SwarmClock(0)
        clock.set_wall_offset((NOW_MS + off_ms) * 1000)
        ctx = Context(
            keys, GENESIS, chain_of(keys), clock, config, JobIds(), store=stored(wires), verify=lambda *_: True
        )
        self._names[PeerID(keys.public)] = name
        self._features[name] = features
        self.maps[name] = RecordMap(ctx, random.Random(name))
        self.tell(name, Boot(1, (NOW_MS + off_ms) * 1000, clean=True))
        return self.maps[name]

    def id(self, name: str) -> PeerID:
        return PeerID(keypair(name).public)

    def link(self, a: str, b: str) -> None:
        self._links |= {(a, b), (b, a)}
        for one, other in ((a, b), (b, a)):
            self.tell(one, Linked(self.id(other), hello(keypair(other), features=self._features[other])))

    def unlink(self, a: str, b: str) -> None:
        self._links -= {(a, b), (b, a)}
        for one, other in ((a, b), (b, a)):
            self.tell(one, Unlinked(self.id(other)))

    def open(self, a: str, b: str) -> None:
        """An exchange of these two now, opened by the first."""
        self.tell(a, TimerFired(TimerKey("records", "again", self.id(b))))

    def tell(self, name: str, event: object) -> list[object]:
        effects = self.maps[name].handle(event, self.now_us)
        for effect in effects:
            match effect:
                case Send(peer, lane, frame, ref):
                    assert lane is Lane.BULK
                    target = self._names[peer]
                    if self.refuse(frame):
                        self._at(0, name, SendDropped(peer, type(frame).__name__, ref))
                        continue
                    self.sent.append((self.now_us, name, target, frame))
                    if not self.lose() and (name, target) in self._links:
                        frame = decode_frame(encode_frame(frame), lane)
                        self._at(LATENCY_US, target, Received(self.id(name), frame))
                case SetTimer(timer, at_us):
                    self._timers[name, timer] = at_us
                    self._at(at_us - self.now_us, name, timer)
                case Local(inner):
                    self.told.append((name, inner))
                case Count(what, n):
                    self.counters[what] += n
                case _:
                    pass
        return list(effects)

    def _at(self, in_us: int, name: str, event: object) -> None:
        heapq.heappush(self._agenda, (self.now_us + in_us, next(iter(self._ticket)), name, event))

    def run(self, us: int) -> None:
        until = self.now_us + us
        while self._agenda and self._agenda[0][0] <= until:
            at_us, _, name, event = heapq.heappop(self._agenda)
            self.now_us = at_us
            if not isinstance(event, TimerKey):
                self.tell(name, event)
            elif self._timers.get((name, event)) == at_us:
                self.tell(name, TimerFired(event))
        self.now_us = until

    def live(self, name: str) -> list[bytes]:
        return [each.wire for each in self.maps[name].live(self.now_us)]

    def frames(self, kind: type[Any] = Records, source: str | None = None, target: str | None = None) -> list[Any]:
        return [
            frame for _, one, other, frame in self.sent
            if isinstance(frame, kind) and source in (None, one) and target in (None, other)
        ]  # fmt: skip

    def pushed(self, source: str | None = None, target: str | None = None) -> list[bytes]:
        return [wire for frame in self.frames(Records, source, target) for wire in frame.records]

    def heard(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.told if isinstance(event, kind)]


# ---- fingerprints

hashes = st.lists(
    st.tuples(st.integers(0, LEAVES - 1), st.integers(0, 99).map(lambda n: digest("test", bytes([n])))),
    max_size=12,
    unique=True,
)
powers = st.sampled_from([1 << n for n in range(4, 11)])


@given(hashes, hashes, powers, st.data())
def test_fingerprints_say_what_is_in_the_set_whatever_happened_before(
    kept: list[tuple[int, bytes]], gone: list[tuple[int, bytes]], buckets: int, data: st.DataObject
) -> None:
    one, other = Fingerprints(), Fingerprints()
    for leaf, each in (*gone, *kept):
        one.add(leaf, each)
    for leaf, each in data.draw(st.permutations(gone)):
        one.remove(leaf, each)
    for leaf, each in data.draw(st.permutations(kept)):
        other.add(leaf, each)
    assert one.frame(buckets) == other.frame(buckets)
    assert one.differing(other.frame(buckets)) == []


@given(hashes, hashes, powers)
def test_differing_leaves_are_exactly_the_buckets_whose_sets_differ(
    ours: list[tuple[int, bytes]], theirs: list[tuple[int, bytes]], buckets: int
) -> None:
    one, other = Fingerprints(), Fingerprints()
    for fingerprints, held in ((one, ours), (other, theirs)):
        for leaf, each in held:
            fingerprints.add(leaf, each)
    width = LEAVES // buckets
    told = {leaf // width for leaf, _ in set(ours) ^ set(theirs)}
    expected = [leaf for leaf in range(LEAVES) if leaf // width in told]
    assert one.differing(other.frame(buckets)) == expected
    assert other.differing(one.frame(buckets)) == expected


@given(st.integers(0, 100_000))
def test_the_number_of_buckets_fits_the_frame_and_the_records(records: int) -> None:
    buckets = bucket_count(records)
    assert BUCKETS_MIN <= buckets <= RECORD_BUCKETS_MAX
    assert buckets & (buckets - 1) == 0
    assert buckets in (BUCKETS_MIN, LEAVES) or buckets**2 // 4 < 16 * records + 64 <= buckets**2 + 8 * buckets + 80


@pytest.mark.parametrize("size", [1, 7, 8, 8 * 8, 8 * 15, 8 * 16 + 1, 8 * 17, 8 * 24, 8 * 1000, 8 * 2048])
def test_a_frame_that_is_no_power_of_two_of_buckets_is_none(size: int) -> None:
    with pytest.raises(DecodeError):
        Fingerprints().differing(bytes(size))


def test_keys_spread_evenly_over_the_leaves() -> None:
    held = Counter(leaf_of(read(record(agent(str(n)))).key) for n in range(4 * LEAVES))
    assert len(held) > LEAVES * 0.95
    assert max(held.values()) < 20


def test_versions_that_are_replaced_leave_nothing_behind() -> None:
    table = RecordTable(key("me"), GENESIS, WIDE)
    for seq in range(2_000):
        table.put(read(record(seq=seq, ttl_ms=HOUR_MS - seq)), None)
    assert len(table) == 1
    assert len(table._ends) <= 100
    table.now_ms = NOW_MS + HOUR_MS - 2_000
    assert not table.expire()
    table.now_ms += 1
    assert [each.seq for each in table.expire()] == [1_999]
    assert table.frame() == RecordTable(key("me"), GENESIS, WIDE).frame()


# ---- equal after an exchange

Content = tuple[str, str, int, int, int]
contents = st.tuples(
    st.sampled_from("abcdef"), st.sampled_from(("p", "q", "r")), st.integers(1, 3), st.integers(0, 2),
    st.sampled_from((0, HOUR_MS, RECORD_TTL_MS)),
)  # fmt: skip
tables = st.lists(contents, max_size=12)


def wires_of(table: list[Content]) -> list[bytes]:
    return [
        record(agent(name, price), publisher, seq=seq, ttl_ms=ttl_ms) for name, publisher, seq, price, ttl_ms in table
    ]


@given(tables, tables)
@settings(deadline=None)
def test_two_maps_are_equal_after_one_exchange_and_then_say_no_more_than_digests(
    ours: list[Content], theirs: list[Content]
) -> None:
    net = Net()
    one, other = winners(wires_of(ours)), winners(wires_of(theirs))
    net.add("A", one)
    net.add("B", other)
    net.link("A", "B")
    net.run(seconds(1))
    expected = winners(one, other)
    assert net.live("A") == net.live("B") == [wire for wire in expected if not read(wire).withdrawal]
    assert len(net.frames(RecordDigests)) == 2
    net.run(seconds(2))
    net.sent.clear()
    net.open("A", "B")
    net.run(seconds(1))
    assert [type(frame) for _, _, _, frame in net.sent] == [RecordDigests]  # which is not answered
    net.run(seconds(300))
    assert not net.pushed()
    assert all(size == BUCKETS_MIN * 8 for size in map(len, (frame.buckets for frame in net.frames(RecordDigests))))
    assert 1 < len(net.frames(RecordDigests)) <= 2 * 300 / 7.5  # no answers: one from each round of each


@given(tables, tables, tables, st.sampled_from(list(permutations(("AB", "BC", "CA"), 2))))
@settings(deadline=None)
def test_three_maps_are_equal_after_two_exchanges_along_a_line_and_back(
    a: list[Content], b: list[Content], c: list[Content], line: tuple[str, str]
) -> None:
    net = Net()
    held = {name: winners(wires_of(table)) for name, table in zip("ABC", (a, b, c), strict=True)}
    for name, wires in held.items():
        net.add(name, wires)
    first, second = line
    for pair in line:
        net.link(*pair)
        net.run(seconds(3))
    net.open(*first)
    net.run(seconds(3))
    expected = [wire for wire in winners(*held.values()) if not read(wire).withdrawal]
    for name in "ABC":
        assert net.live(name) == expected, (name, second)


@given(
    tables,
    tables,
    st.lists(st.booleans(), max_size=30),
    st.sampled_from(("silent", "refused")),
    st.integers(0, 2 * HOUR_MS),
)
@settings(deadline=None, max_examples=60)
def test_whatever_frames_are_lost_later_rounds_repair_it_also_while_records_expire(
    ours: list[Content], theirs: list[Content], lost: list[bool], loss: str, start_ms: int
) -> None:
    net = Net(now_us=0)
    one, other = winners(wires_of(ours)), winners(wires_of(theirs))
    net.add("A", one)
    net.add("B", other)
    net.run(start_ms * 500)  # so that what lives an hour may be over before, or in between
    net.sent.clear()
    fate = iter(lost)
    if loss == "refused":
        net.refuse = lambda _frame: next(fate, False)
    else:
        net.lose = lambda: next(fate, False)
    net.link("A", "B")
    net.run(30 * ROUND_US)
    net.refuse, net.lose = (lambda _frame: False), (lambda: False)
    for a, b in ("AB", "BA"):
        net.tell(a, Writable(net.id(b)))
    net.run(70 * ROUND_US)
    now_ms = NOW_MS + net.now_us // 1000
    fit = [[wire for wire in wires if read(wire).acceptable(NOW_MS + start_ms // 2)] for wires in (one, other)]
    assert net.live("A") == net.live("B")
    assert {wire for wire in winners(*fit) if read(wire).live(now_ms)} <= set(net.live("A")) <= {*one, *other}
    net.sent.clear()
    net.run(2 * ROUND_US)
    assert not net.pushed()


def test_a_withdrawal_reaches_who_holds_the_record_and_nothing_brings_it_back() -> None:
    live, gone = record(seq=1), record(seq=2, ttl_ms=0)
    for first, second in permutations(((live,), (gone,)), 2):
        net = Net()
        net.add("A", first)
        net.add("B", second)
        net.link("A", "B")
        net.run(4 * ROUND_US)
        assert net.live("A") == net.live("B") == []
        net.run(RECORD_TTL_MS * 1000)
        assert net.live("A") == net.live("B") == []


def test_maps_whose_clocks_disagree_do_not_push_for_ever_what_is_over_for_one() -> None:
    net = Net()
    wires = [record(agent(str(n)), f"p{n % 5}", ttl_ms=HOUR_MS) for n in range(100)]
    net.add("A", wires)
    net.add("B", wires, off_ms=9 * 60_000)
    net.link("A", "B")
    net.run((HOUR_MS - 9 * 60_000) * 1000 + seconds(1))
    net.sent.clear()
    net.run(8 * 60 * 1_000_000)
    assert net.live("B") == []
    assert len(net.live("A")) == 100
    assert len(net.pushed("A", "B")) <= 100 * 7  # at once, after 15 s, 30 s, 1, 2 and 4 minutes


def test_what_is_over_is_in_no_digests_whenever_it_was_swept_last() -> None:
    net = Net()
    net.add("A", [over := record(agent("over"), ttl_ms=1_000), record()])
    net.add("B", [record()])
    net.run(seconds(1))
    for peer, handler in (("B", "A"), ("A", "B")):
        assert over not in net.live(handler)
        net.maps[handler].handle(Linked(net.id(peer), hello(keypair(peer), features=SYNCING)), net.now_us)
    equal = net.maps["B"]._table.frame()
    assert net.maps["A"]._table.frame() == equal
    net.maps["A"]._take(read(record(agent("soon"), issued_ms=NOW_MS + 1_000, ttl_ms=500)), None, net.now_us)
    net.now_us += seconds(3)
    effects = net.tell("A", Received(net.id("B"), RecordDigests(equal)))
    assert not [effect for effect in effects if isinstance(effect, Send)]


def test_a_node_that_joined_later_finds_what_was_published_before() -> None:
    """Complaint 13, without any mesh: before and after the link, and through a node between."""
    net = Net()
    for name in "ABC":
        net.add(name)
    net.link("A", "B")
    net.tell("A", Publish(agent("before")))
    net.run(2 * ROUND_US)
    net.link("B", "C")
    net.tell("A", Publish(agent("after")))
    net.run(12 * ROUND_US)
    assert [each.value.agent for each in net.maps["C"].live(net.now_us) if isinstance(each.value, AgentValue)] == [
        each.value.agent for each in net.maps["A"].live(net.now_us) if isinstance(each.value, AgentValue)
    ]
    assert len(net.live("C")) == 2


# ---- the price


@pytest.mark.slow
@pytest.mark.parametrize(("records", "quiet_max", "changed_max"), [(1_000, 1_100, 9_000), (10_000, 4_200, 23_000)])
def test_one_changed_record_costs_digests_and_its_bucket(records: int, quiet_max: int, changed_max: int) -> None:
    text = "d" * 330
    wires = [record(agent(str(n % 32), text=text), f"p{n // 32}") for n in range(records)]
    assert 650 < len(wires[0]) < 750
    net = Net()
    config = replace(WIDE, records_max=2 * records)
    net.add("A", wires, config)
    net.add("B", wires, config)
    net.link("A", "B")
    net.run(seconds(3))
    net.sent.clear()
    net.open("A", "B")
    net.run(seconds(3))
    quiet = sum(len(encode_frame(frame)) for _, _, _, frame in net.sent)
    for opener, answerer in ("AB", "BA"):
        newer = record(agent("0", text=text), "p7", seq=2 + (opener == "B"))
        net.maps["A"]._take(read(newer), None, net.now_us)
        net.sent.clear()
        net.open(opener, answerer)
        net.run(seconds(3))
        changed = sum(len(encode_frame(frame)) for _, _, _, frame in net.sent)
        assert newer in net.live("B")
        assert quiet <= quiet_max, quiet
        assert changed <= changed_max, (opener, quiet, changed)


def test_a_push_is_bounded_and_goes_on_until_all_is_there() -> None:
    config = replace(WIDE, records_push_max=3)
    wires = [record(agent(str(n % 30)), f"p{n // 30}") for n in range(600)]
    net = Net()
    net.add("A", wires, config)
    net.add("B", (), config)
    net.link("A", "B")
    net.run(config.record_sync_min_us * 60)
    assert net.live("B") == sorted(wires, key=lambda wire: (read(wire).publisher, read(wire).key))
    at = Counter(at_us for at_us, source, _, frame in net.sent if isinstance(frame, Records))
    assert max(at.values()) <= 3
    assert len(net.pushed("A", "B")) <= 2 * len(wires)
    net.sent.clear()
    net.run(10 * ROUND_US)
    assert not net.pushed()


def test_two_newcomers_linked_to_several_are_told_different_parts_first() -> None:
    config = replace(WIDE, records_push_max=4)
    wires = [record(agent(str(n % 30)), f"p{n // 30}") for n in range(600)]
    net = Net()
    net.add("new", (), config)
    for name in ("A", "B", "C", "D"):
        net.add(name, wires, config)
        net.link("new", name)
    net.run(seconds(1))
    assert len(net.live("new")) > 2 * 4 * RECORDS_MAX


@pytest.mark.parametrize("kinds", [(Records,), (RecordDigests,), (Records, RecordDigests)])
def test_what_a_full_queue_refused_is_made_good_as_soon_as_it_has_room(kinds: tuple[type[Any], ...]) -> None:
    net = Net()
    net.add("A", [record(agent(str(n))) for n in range(30)])
    net.add("B")
    net.refuse = lambda frame: isinstance(frame, kinds)
    net.link("A", "B")
    net.run(seconds(3))
    assert net.live("B") == []
    net.refuse = lambda _frame: False
    for a, b in ("AB", "BA"):
        net.tell(a, Writable(net.id(b)))
    net.run(seconds(1))
    assert len(net.live("B")) == 30


def test_the_default_push_leaves_room_in_the_queue() -> None:
    assert GossipConfig().records_push_max * 8 <= QUEUE_FRAMES_MAX


# ---- hostile peers


def hostile() -> Net:
    net = Net()
    net.add("A", [record(agent(str(n))) for n in range(20)])
    net.add("H")
    net.link("A", "H")
    net.run(seconds(10))
    net.sent.clear()
    return net


@pytest.mark.parametrize("size", [1, 7, 8, 8 * 15, 8 * 17, 8 * 1000, RECORD_BUCKETS_MAX * 8 - 1])
def test_digests_of_a_wrong_length_are_counted_and_not_answered(size: int) -> None:
    net = hostile()
    net.tell("A", Received(net.id("H"), RecordDigests(bytes(size))))
    assert net.counters["record_digests_refused"] == 1
    assert not net.sent


def test_digests_that_are_too_long_are_no_frame() -> None:
    with pytest.raises(DecodeError):
        decode_frame(encode((34, bytes(RECORD_BUCKETS_MAX * FINGERPRINT_BYTES + 8))), Lane.BULK)


def test_a_peer_that_asks_all_the_time_is_answered_at_a_bounded_rate() -> None:
    net = hostile()
    for n in range(1000):
        net.now_us += 10_000
        net.tell("A", Received(net.id("H"), RecordDigests(random.Random(n).randbytes(128))))
    assert len(net.frames(RecordDigests, "A")) <= 6  # in 10 s
    assert len(net.pushed("A")) <= 3 * 20
    assert net.counters["record_digests_early"] >= 980


def test_a_peer_that_changes_what_it_says_all_the_time_is_not_pushed_more() -> None:
    net = Net()
    net.add("A", [record(agent(str(n))) for n in range(20)] + [record(PeerValue(addrs=()), f"q{n}") for n in range(20)])
    net.add("H")
    net.link("A", "H")
    net.run(seconds(10))
    net.sent.clear()
    net.open("A", "H")
    (equal,) = net.frames(RecordDigests, "A")
    for n in range(300):
        net.now_us += seconds(3)
        for frame in (RecordDigests(b""), equal, RecordDigests(bytes([n % 256]) * 128)):
            net.now_us += seconds(1)
            net.tell("A", Received(net.id("H"), frame))
    assert len(net.pushed("A")) <= 20 + 40 * 8  # in half an hour


def test_digests_of_a_peer_that_is_not_linked_are_nothing() -> None:
    net = hostile()
    net.unlink("A", "H")
    assert not net.tell("A", Received(net.id("H"), RecordDigests(bytes(128))))


def test_a_peer_that_refuses_everything_is_pushed_less_and_less() -> None:
    """It lies, or its bounds are others: in 2 hours a leaf is pushed ten times, not in each of 480 rounds."""
    net = Net()
    wires = [record(agent(str(n)), "greedy") for n in range(30)]
    net.add("A", wires)
    net.add("B", (), GossipConfig(records_per_publisher_max=1))
    net.link("A", "B")
    net.run(2 * HOUR_MS * 1000)
    assert len(net.live("B")) == 1
    assert len(net.pushed("A", "B")) <= 30 * 11
    assert net.maps["B"].complete  # the share of one publisher is no sign of a full table
    newer = record(agent("0", 1), "greedy", seq=2)
    net.sent.clear()
    net.maps["A"].handle(Arrived(net.id("B"), "records", (newer,)), net.now_us)
    net.run(2 * ROUND_US)
    assert net.pushed("A", "B").count(newer) == 1  # what changed is pushed in the next round


# ---- who does not take part


def test_a_full_table_is_not_complete_and_is_pushed_nothing_until_it_has_room() -> None:
    small = replace(WIDE, records_max=50)
    net = Net()
    wires = [record(agent(str(n % 10)), f"p{n // 10}", ttl_ms=HOUR_MS) for n in range(100)]
    net.add("A", wires)
    full = net.add("B", (), small)
    net.link("A", "B")
    net.run(seconds(3))
    assert len(net.live("B")) == 50
    assert not full.complete
    net.sent.clear()
    net.run(50 * 60 * 1_000_000)
    assert not net.pushed("A", "B")
    assert len(net.pushed("B", "A")) <= 50 * 10
    net.run(20 * 60 * 1_000_000)  # all of these are over
    assert full.complete
    net.tell("A", Publish(agent("fresh")))
    net.run(4 * ROUND_US)
    assert len(net.live("B")) == 1


def test_who_pushes_an_old_version_is_given_what_replaced_it() -> None:
    """Also a node that takes part in no exchange, as its table is full."""
    small = replace(WIDE, records_max=5)
    net = Net()
    old = [record(agent(str(n))) for n in range(6)]
    net.add("A", [record(agent("0", 7), seq=2), *old[1:]])
    net.add("B", old[:5], small)
    net.link("A", "B")
    net.run(seconds(3))
    net.tell("B", Received(net.id("A"), Records((old[5],))))  # one more than fits
    assert not net.maps["B"].complete
    newest = record(agent("1", 7), seq=2)
    net.maps["A"].handle(Arrived(net.id("B"), "records", (newest,)), net.now_us)
    net.run(3 * ROUND_US)
    assert newest in net.live("B")
    assert len(net.live("B")) == 5


LIGHT = GossipConfig(light_index=True)


def test_a_light_node_is_given_peer_records_once_and_its_own_reach_everybody() -> None:
    net = Net()
    peers = [record(PeerValue(addrs=()), f"p{n}") for n in range(20)]
    agents = [record(agent(str(n % 30)), f"q{n // 30}") for n in range(300)]
    light = net.add("L", [record(agent("old"), "q0")], LIGHT)
    assert net.live("L") == []  # what a former, larger index held is gone
    net.tell("L", Publish(agent("mine")))
    for name in "AB":
        net.add(name, [*peers, *agents])
        net.link("L", name)
    net.link("A", "B")
    net.run(seconds(3))
    assert len(net.live("L")) == 21
    assert not light.complete
    for name in "AB":
        assert set(net.pushed(name, "L")) == set(peers)
        assert len(net.live(name)) == 321
    assert len(net.pushed(target="L")) == 40
    net.sent.clear()
    net.run(HOUR_MS * 1000)
    assert not net.pushed(target="L")
    assert len(net.pushed("L")) <= 2 * 9
    assert not net.frames(RecordDigests, target="L")  # it has no use for them
    newer = record(PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",)), "p3", seq=2)
    net.tell("A", Received(net.id("B"), Records((newer, record(agent("new"), "q9")))))
    net.run(8 * ROUND_US)
    assert newer in net.live("L")
    assert len(net.live("L")) == 21


def test_light_nodes_tell_each_other_peer_records_only_and_are_bounded() -> None:
    net = Net()
    config = GossipConfig(light_index=True, records_light_max=10, records_of_strangers_max=100)
    net.add("L", [record(PeerValue(addrs=()), f"p{n}") for n in range(20)], config)
    net.add("M", (), config)
    assert len(net.live("L")) == 10
    net.tell("L", Publish(agent("mine")))
    net.tell("L", Publish(PeerValue(addrs=())))
    net.link("L", "M")
    net.run(seconds(3))
    net.run(20 * ROUND_US)
    assert len(net.live("M")) == 10
    assert not [each for each in net.maps["M"].live(net.now_us) if isinstance(each.value, AgentValue)]
    assert len(net.pushed("L", "M")) <= 11
    assert not net.pushed("M", "L")


# ---- older peers, and peers without the mesh


def test_an_older_peer_is_told_everything_once_within_the_bound_and_sent_no_digests() -> None:
    config = replace(WIDE, records_push_max=2)
    net = Net()
    wires = [record(agent(str(n % 30)), f"p{n // 30}") for n in range(100)]
    net.add("A", wires, config)
    net.add("old", (), config, features=())
    net.link("A", "old")
    net.tell("A", Publish(agent("more")))
    net.run(20 * config.record_sync_min_us)
    assert Counter(net.pushed("A", "old")) == Counter([*wires, *net.pushed("A", "old")[-1:]])
    assert not net.frames(RecordDigests, "A", "old")
    assert len(net.live("old")) == 101
    at = Counter(at_us for at_us, source, _, frame in net.sent if isinstance(frame, Records) and source == "A")
    assert max(at.values()) <= 2


def test_a_change_goes_straight_to_peers_without_mesh_and_to_no_others() -> None:
    net = Net()
    net.add("A")
    for name, features in (
        ("old", ()),
        ("digests", (versions.RECORD_SYNC,)),
        ("mesh", (versions.MESH,)),
        ("new", SYNCING),
    ):
        net.add(name, features=features)
        net.link("A", name)
    net.run(seconds(1))
    net.sent.clear()
    net.tell("A", Publish(agent()))
    assert {target for _, _, target, frame in net.sent if isinstance(frame, Records)} == {"old", "digests"}
    assert [event.topic for event in net.heard(Broadcast)] == ["records"]


def test_changes_that_were_too_many_at_once_are_found_by_a_later_exchange() -> None:
    net = Net()
    net.add("A")
    net.add("B", (), replace(WIDE, record_burst=2))
    net.link("A", "B")
    versions_of_one = tuple(record(seq=seq) for seq in range(1, 21))
    for name, other in ("AB", "BA"):
        net.tell(name, Arrived(net.id(other), "records", versions_of_one))
    assert net.live("A") == [versions_of_one[-1]]
    assert net.live("B") == [versions_of_one[2]]
    net.run(4 * ROUND_US)
    assert net.live("B") == [versions_of_one[-1]]


def test_who_pushes_an_old_version_again_and_again_is_told_once() -> None:
    net = Net()
    net.add("A")
    net.add("B", [record(seq=9)])
    net.link("A", "B")
    net.sent.clear()
    for _ in range(50):
        net.tell("B", Received(net.id("A"), Records((record(seq=1),))))
    assert len(net.pushed("B", "A")) <= 1


# ---- the mesh


def test_what_an_exchange_brings_is_broadcast_only_if_it_was_signed_just_now() -> None:
    net = Net()
    stale = [record(agent(str(n)), f"p{n % 5}", issued_ms=NOW_MS - 60_000) for n in range(50)]
    fresh = record(agent("fresh"), issued_ms=NOW_MS - 1000)
    net.add("A", [*stale, fresh])
    net.add("B")
    net.link("A", "B")
    net.run(seconds(1))
    assert len(net.live("B")) == 51
    assert [event.items for event in net.heard(Broadcast)] == [(fresh,)]
    net.tell("B", Received(net.id("A"), Records((fresh,))))
    assert len(net.heard(Broadcast)) == 1  # it is known here


def test_records_that_come_through_the_mesh_are_not_broadcast_anew() -> None:
    net = Net()
    net.add("A")
    net.add("B")
    net.link("A", "B")
    wire = record()
    net.tell("A", Arrived(net.id("B"), "records", (wire, wire)))
    assert net.heard(Judged) == [Judged("records", ((message_id("records", wire), "accept"),))]
    assert not net.heard(Broadcast)
    assert net.live("A") == [wire]
