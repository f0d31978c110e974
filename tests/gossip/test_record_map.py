"""The record map is a function of the records that arrived, and holds nothing that is over."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gossip.config import GossipConfig
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
from protocol import versions
from protocol.admission import MEMBER, issue
from protocol.capability import FUTURE_MS_MAX, RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, Value, make_record
from protocol.codec import encode
from protocol.identity import KeyPair
from protocol.machine import (
    ClockOffset,
    Hangup,
    Misbehaved,
    PeerUp,
    Persist,
    Received,
    Stopping,
    TimerFired,
    TimerKey,
    Writable,
)
from protocol.messages import RECORDS_MAX, RecordDigests, Records, message_id
from protocol.peer import PeerID
from protocol.store import RecordRow
from tests.gossip_world import (
    ADMIN,
    GENESIS,
    NOW_MS,
    MemoryStore,
    Node,
    World,
    chain_of,
    hello,
    losing,
    losing_nothing,
    seconds,
    verify,
)
from tests.strategies import case_lines, keypair

AUTHOR = keypair("author")
HOUR_MS = 3_600_000
# For runs of hours: records as ever, everything else at rest.
SLOW = GossipConfig(ping_every_us=seconds(1800), silent_after_us=seconds(7200), sync_every_us=seconds(3600))


def agent(name: str = "a", **changes: Any) -> AgentValue:
    return AgentValue(agent=name, roles=("analyst",), **changes)


def record(value: Value | None = None, keys: KeyPair = AUTHOR, **times: int) -> bytes:
    return make_record(keys, value or agent(), **{"seq": 1, "issued_ms": NOW_MS, **times})


def read(wire: bytes) -> SignedRecord:
    return SignedRecord.from_wire(wire, verify)


class Map:
    """A node with two linked peers, driven by hand; without features they are older ones, told by direct pushes.

    Two publishers were linked before, so they are known to be admitted.
    """

    def __init__(
        self, config: GossipConfig | None = None, store: MemoryStore | None = None, features: tuple[str, ...] = ()
    ) -> None:
        self.world = World(config or GossipConfig())
        self.node = self.world.add("node", store=store)
        self.source, self.other = PeerID(keypair("source").public), PeerID(keypair("other").public)
        for peer in ("source", "other"):
            self.node.handle(Linked(PeerID(keypair(peer).public), hello(keypair(peer), features=features)), 0)
        for known in (AUTHOR, keypair("second")):
            self.node.handle(Linked(PeerID(known.public), hello(known)), 0)
            self.node.handle(Unlinked(PeerID(known.public)), 0)

    @property
    def wires(self) -> list[bytes]:
        return [each.wire for each in self.node.records.live(self.world.now_us)]

    def give(self, *wires: bytes) -> list[Any]:
        effects = []
        for start in range(0, len(wires), RECORDS_MAX):
            frame = Records(wires[start : start + RECORDS_MAX])
            found = self.node.handle(Received(self.source, frame), self.world.now_us)
            for effect in found:
                if isinstance(effect, Persist):
                    self.node.store.apply(effect.rows)
            effects += found
        return effects

    def hear(self, *items: bytes) -> list[str]:
        """Messages of the mesh: their verdicts, `none` where there is none yet."""
        self.node.told.clear()
        self.node.handle(Arrived(self.source, "records", items), self.world.now_us)
        (judged,) = self.node.heard(Judged)
        assert judged.topic == "records"
        verdicts = dict(judged.verdicts)
        ids = list(dict.fromkeys(message_id("records", item) for item in items))
        assert list(verdicts) == [mid for mid in ids if mid in verdicts]
        return [verdicts.get(message_id("records", item), "none") for item in items]

    def expire(self) -> list[Any]:
        effects = self.node.handle(TimerFired(TimerKey("records", "minute")), self.world.now_us)
        for effect in effects:
            if isinstance(effect, Persist):
                self.node.store.apply(effect.rows)
        return effects


def pushed(effects: list[Any]) -> dict[bytes, list[bytes]]:
    """Records sent, by receiver."""
    found: dict[bytes, list[bytes]] = {}
    for effect in effects:
        frame = getattr(effect, "frame", None)
        if isinstance(frame, Records):
            found.setdefault(effect.peer, []).extend(frame.records)
    return found


# ---- one map whatever the order

contents = st.tuples(
    st.sampled_from(("a", "b")), st.sampled_from(("author", "second")), st.integers(1, 3), st.integers(0, 2),
    st.sampled_from((0, RECORD_TTL_MS, HOUR_MS)),
)  # fmt: skip


def wire_of(content: tuple[str, str, int, int, int]) -> bytes:
    name, publisher, seq, price, ttl = content
    return record(agent(name, price_micro_money=price), keypair(publisher), seq=seq, ttl_ms=ttl)


@given(st.lists(contents.map(wire_of), max_size=8), st.data())
def test_any_order_and_any_repetition_give_the_same_map(wires: list[bytes], data: st.DataObject) -> None:
    shuffled = (
        data.draw(st.permutations([*wires, *data.draw(st.lists(st.sampled_from(wires), max_size=4))])) if wires else []
    )
    one, other = Map(), Map()
    one.give(*wires)
    other.give(*shuffled)
    assert one.wires == other.wires
    assert list(one.node.store.records()) == list(other.node.store.records())
    slots: dict[tuple[bytes, bytes], SignedRecord] = {}
    for wire in wires:
        new = read(wire)
        old = slots.get((new.publisher, new.key))
        if old is None or new.version > old.version:
            slots[new.publisher, new.key] = new
    assert one.wires == [slots[slot].wire for slot in sorted(slots) if slots[slot].live(NOW_MS)]


@given(st.lists(contents.map(wire_of), max_size=8))
def test_a_record_is_forwarded_only_while_it_changes_the_map(wires: list[bytes]) -> None:
    """So a flood ends; and never back to where it came from."""
    here = Map()
    first = here.give(*wires)
    assert here.source not in pushed(first)
    assert len(set(pushed(first).get(here.other, []))) == len(pushed(first).get(here.other, []))
    again = here.give(*wires)
    assert not pushed(again)
    assert not [effect for effect in again if isinstance(effect, Persist)]


def test_a_flood_through_a_triangle_ends_and_all_have_the_record() -> None:
    world = World()
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "CA"):
        world.link(a, b)
    world.run(seconds(1))
    before = len(world.frames(Records))
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    maps = [[each.wire for each in node.records.live(world.now_us)] for node in world.nodes.values()]
    assert maps[0] == maps[1] == maps[2] != []
    assert len(world.frames(Records)) - before <= 4


# ---- D1: freshness

BASE_MS = NOW_MS - 1000  # the case's clock starts here


@pytest.mark.parametrize("line", range(5))
def test_d1_freshness(line: int) -> None:
    case = case_lines("D1_put_order.jsonl")[line]

    def wire(part: dict[str, int], price: int) -> bytes:
        value = agent(price_micro_money=price)
        return record(value, seq=part["seq"], issued_ms=BASE_MS, ttl_ms=part["expires"])

    same = case["stored"] == case["incoming"]
    stored, incoming = wire(case["stored"], 1), wire(case["incoming"], 1 if same else 2)
    here = Map()
    here.world.now_us = (case["now"] - 1000) * 1000
    here.give(stored)
    counters_before = dict(here.node.counters)
    effects = here.give(incoming)
    match case["expect"]:
        case "reject_older" | "accept_noop":
            assert here.wires == [stored]
            assert not effects
        case "accept_replace":
            assert here.wires == [incoming]
        case "reject_expired":
            assert here.wires == [stored]
            assert here.node.counters["records_expired"] == 1
        case "keep_greater_hash_and_count_equivocation":
            assert here.wires == [max((stored, incoming), key=lambda each: read(each).hash)]
            assert here.node.counters != counters_before
        case other:
            pytest.fail(f"unknown expectation {other}")


def test_two_contents_under_one_number_are_counted_in_either_order() -> None:
    pair = [record(agent(price_micro_money=price)) for price in (1, 2)]
    for first, second in itertools.permutations(pair):
        here = Map()
        here.give(first, second)
        here.give(first, second)
        assert here.node.counters["records_equivocated"] >= 1


# ---- S1: the same bytes


def test_s1_bytes_stay_the_same_through_store_restart_and_forwarding() -> None:
    world = World()
    for name in "ABC":
        world.add(name)
    world.link("A", "B")
    world.tell("A", Publish(agent(description="as signed")))
    world.run(seconds(1))
    (signed,) = [each.wire for each in world.nodes["A"].records.live(world.now_us)]
    store = world.stop("B")
    assert list(store.records()) == [signed]
    world.add("B", store=store, inst=2)
    world.link("B", "C")
    world.run(seconds(1))
    assert [each.wire for each in world.nodes["C"].records.live(world.now_us)] == [signed]


# ---- S3: bounds


def test_a_forged_record_leaves_no_trace_and_the_true_one_is_taken() -> None:
    """Case S2 for records."""
    true = record()
    body = true[:-65]
    here = Map()
    here.give(body + true[-65:-1] + bytes([true[-1] ^ 1]), b"\xc0", b"")
    assert here.node.counters["records_refused"] == 3
    assert list(here.node.store.records()) == []
    here.give(true)
    assert here.wires == [true]


def test_the_map_is_bounded_and_what_is_held_can_still_change() -> None:
    here = Map(GossipConfig(records_max=5))
    here.give(*[record(agent(), keypair(f"publisher {n}")) for n in range(20)])
    assert len(here.wires) == 5
    assert here.node.counters["records_full"] == 15
    newer = record(agent(), keypair("publisher 0"), seq=2)
    here.give(newer)
    assert newer in here.wires


def test_one_publisher_cannot_fill_the_map() -> None:
    """Case S3: a million record keys of one peer."""
    here = Map(GossipConfig(records_max=300))
    here.give(*[record(agent(f"agent {n}")) for n in range(400)])
    honest = record(agent(), keypair("honest"))
    here.give(honest)
    assert honest in here.wires


@pytest.mark.parametrize("frame", [Records((record(),))])
def test_records_of_a_peer_that_is_not_linked_are_not_taken(frame: Records) -> None:
    here = Map()
    here.node.handle(Unlinked(here.source), 0)
    assert not here.node.handle(Received(here.source, frame), 0)
    assert here.wires == []


# ---- time


def test_nothing_expired_is_taken_offered_or_used() -> None:
    here = Map()
    short = record(agent("short"), ttl_ms=HOUR_MS)
    here.give(short, record(agent("long")))
    here.give(record(agent("past"), issued_ms=NOW_MS - RECORD_TTL_MS))
    here.give(record(agent("future"), issued_ms=NOW_MS + FUTURE_MS_MAX + 1))
    assert len(here.wires) == 2
    here.world.now_us = HOUR_MS * 1000
    assert short not in here.wires
    late = PeerID(keypair("late").public)
    offered = pushed(here.node.handle(Linked(late, hello(keypair("late"))), here.world.now_us))
    assert offered == {late: here.wires}


def test_an_expired_record_is_told_once_leaves_the_disk_and_does_not_come_back() -> None:
    here = Map()
    here.give(wire := record(ttl_ms=HOUR_MS))
    ended = 0
    for minute in range(61, 8 * 60):
        here.world.now_us = minute * 60_000_000
        here.node.told.clear()
        here.expire()
        here.give(wire)
        ended += len(here.node.heard(RecordChanged))
        assert here.wires == []
    assert ended == 1
    assert list(here.node.store.records()) == []


def test_own_records_are_signed_anew_before_they_expire() -> None:
    world = World(SLOW, idle=frozenset({"repair"}))
    world.add("A")
    world.add("B")
    world.link("A", "B")
    world.tell("A", Publish(agent()))
    for _ in range(48):
        world.run(HOUR_MS * 500)
        assert [each.value for each in world.nodes["B"].records.live(world.now_us)] == [agent()]


def test_the_record_of_a_node_that_died_is_gone_everywhere_after_its_time() -> None:
    """Case D2."""
    world = World(SLOW, idle=frozenset({"repair"}))
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "CA"):
        world.link(a, b)
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    world.stop("A")
    world.run(RECORD_TTL_MS * 1000 + seconds(120))
    for node in world.nodes.values():
        assert node.records.live(world.now_us) == []
        assert list(node.store.records()) == []


# ---- publishing and withdrawing


def publish(node: Node, value: Value, now_us: int = 0) -> list[Any]:
    return node.handle(Publish(value), now_us)


def test_an_equal_value_is_not_signed_again_and_a_changed_one_replaces_it() -> None:
    here = Map()
    assert publish(here.node, agent())
    assert not publish(here.node, agent())
    assert publish(here.node, agent(price_micro_money=3))
    assert [each.value for each in here.node.records.live(0)] == [agent(price_micro_money=3)]


def test_a_new_record_wins_although_the_database_was_lost_or_the_clock_fell_back() -> None:
    here = Map()
    publish(here.node, agent())
    (old,) = here.node.records.live(0)
    lost = Map()
    publish(lost.node, agent(price_micro_money=1), seconds(1))
    assert lost.node.records.live(seconds(1))[0].version > old.version
    here.node.clock.set_wall_offset((NOW_MS - HOUR_MS) * 1000)
    publish(here.node, agent(price_micro_money=2))
    (new,) = here.node.records.live(0)
    assert new.version > old.version
    assert new.value == agent(price_micro_money=2)


def test_a_withdrawal_ends_the_record_and_it_does_not_come_back() -> None:
    world = World(SLOW, idle=frozenset({"repair"}))
    world.add("A")
    world.add("B")
    world.link("A", "B")
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    (live,) = world.nodes["B"].records.live(world.now_us)
    world.tell("A", Withdraw("a"))
    world.run(seconds(1))
    for _ in range(13):  # the old one is offered again and again, past the end of its life
        world.give("B", "A", Records((live.wire,)))
        assert world.nodes["B"].records.live(world.now_us) == []
        world.run(HOUR_MS * 500)
    assert list(world.nodes["B"].store.records()) == []


@pytest.mark.parametrize("refresh_us", [seconds(10), seconds(600)])
def test_a_withdrawal_outlives_what_it_withdraws_whatever_the_refresh(refresh_us: int) -> None:
    here = Map(GossipConfig(record_refresh_us=refresh_us))
    here.give(live := record(), record(seq=2, ttl_ms=0))
    for hour in range(7):
        here.world.now_us = hour * HOUR_MS * 1000
        here.expire()
        here.give(live)
        assert here.wires == [], f"back after {hour} h"


def test_who_missed_a_withdrawal_learns_of_it_from_anybody() -> None:
    """A withdraws while C is away; C links to B only."""
    world = World()
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "CA"):
        world.link(a, b)
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    world.unlink("C", "A")
    world.unlink("C", "B")
    world.tell("A", Withdraw("a"))
    world.run(seconds(1))
    world.stop("A")
    assert world.nodes["C"].records.live(world.now_us) != []
    world.link("B", "C")
    world.run(seconds(1))
    assert world.nodes["C"].records.live(world.now_us) == []


def test_stopping_withdraws_agents_and_addresses_and_publishes_nothing_more() -> None:
    """Else whoever joins dials those who left for hours."""
    here = Map()
    here_at = PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",))
    for value in (agent("a"), here_at, agent("b")):
        publish(here.node, value)
    effects = here.node.handle(Stopping(0), 1000)
    assert not here.node.records.live(1000)
    for peer in (here.source, here.other):
        sent = [read(wire) for wire in pushed(effects)[peer]]
        assert {each.value.agent for each in sent if isinstance(each.value, AgentValue)} == {"a", "b"}
        assert here_at in [each.value for each in sent]
        assert all(each.withdrawal for each in sent)
    publish(here.node, here_at, 2000)
    here.expire()
    assert not here.node.records.live(2000)
    assert here.node.records.publishers() == [here.node.me]


def test_who_left_in_order_is_dialled_by_nobody_and_offers_again_at_its_return() -> None:
    world = World()
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "CA"):
        world.link(a, b)
    value = PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",), cert=chain_of(keypair("A")))
    world.tell("A", Publish(value))
    world.run(seconds(1))
    me = world.nodes["A"].me
    assert me in world.nodes["B"].links.known()
    world.tell("A", Stopping(0))
    world.run(seconds(1))
    store = world.stop("A")
    assert all(me not in world.nodes[name].links.known() for name in "BC")
    world.add("A", store=store, inst=2)
    world.link("A", "B")
    world.tell("A", Publish(value))
    world.run(seconds(1))
    assert all(me in world.nodes[name].links.known() for name in "BC")


def test_who_stopped_uncleanly_stays_known_until_its_record_ends() -> None:
    world = World()
    for name in "AB":
        world.add(name)
    world.link("A", "B")
    world.tell("A", Publish(PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",), cert=chain_of(keypair("A")))))
    world.run(seconds(1))
    me = world.nodes["A"].me
    world.stop("A")
    world.run(seconds(60))
    assert me in world.nodes["B"].links.known()


def test_withdrawing_what_is_not_offered_does_nothing() -> None:
    here = Map()
    assert not here.node.handle(Withdraw("a"), 0)
    publish(here.node, agent())
    here.node.handle(Withdraw("a"), 1000)
    assert not here.node.handle(Withdraw("a"), 2000)
    publish(here.node, agent(), 3000)
    assert [each.value for each in here.node.records.live(3000)] == [agent()]


def test_a_new_life_does_not_go_on_offering_what_only_the_last_one_offered() -> None:
    """Case D2: the engine is gone after the restart, so nobody publishes the agent again."""
    here = Map()
    publish(here.node, agent())
    store = MemoryStore()
    store.apply(
        tuple(row for effect in publish(here.node, agent("x")) if isinstance(effect, Persist) for row in effect.rows)
    )
    world = World(SLOW, idle=frozenset({"repair"}))
    world.add("node", store=store, inst=2)
    world.add("B")
    world.link("node", "B")
    world.run(RECORD_TTL_MS * 1000 + seconds(120))
    assert world.nodes["B"].records.live(world.now_us) == []


# ---- start


def test_stored_records_are_back_after_a_restart_and_told() -> None:
    here = Map()
    here.give(*[record(agent(name)) for name in "abc"], record(agent("gone"), seq=2, ttl_ms=0))
    again = Map(store=here.node.store)
    assert again.wires == here.wires
    told = again.node.heard(RecordChanged)
    assert [each.record.wire for each in told if each.live] == here.wires


def test_a_stored_record_that_does_not_decode_does_not_stop_the_node() -> None:
    store = MemoryStore()
    store._records[b"p", b"k"] = encode((b"", b""))
    store._records[AUTHOR.public, b"k"] = record()
    assert Map(store=store).wires == [record()]


def test_a_new_link_gets_every_live_record_in_frames_within_bounds() -> None:
    world = World()
    world.add("A")
    world.add("B")
    for n in range(3 * RECORDS_MAX + 1):
        big = agent(description="d" * 1000, skills=("s" * 128,) * 32)
        world.nodes["A"].records._take(read(record(big, keypair(f"p{n}"))), None, 0)
    world.link("A", "B")
    world.run(seconds(1))
    assert len(world.nodes["B"].records.live(world.now_us)) == 3 * RECORDS_MAX + 1


def test_a_link_that_dropped_records_gets_them_when_it_has_room() -> None:
    world = World()
    world.add("A")
    world.add("B")
    world.link("A", "B")
    world.run(seconds(1))
    world.full = losing(Records)
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    world.full = losing_nothing
    world.tell("A", Writable(world.nodes["B"].me))
    world.run(seconds(1))
    assert world.nodes["B"].records.live(world.now_us) != []
    before = len(world.frames(Records))
    world.tell("A", Writable(world.nodes["B"].me))
    world.run(seconds(1))
    assert len(world.frames(Records)) == before  # nothing is owed any more


def test_own_records_that_were_lost_on_the_way_arrive_within_a_minute() -> None:
    """A frame that is lost without a word is found by the digests of the next round."""
    world = World()
    for name in "AB":
        world.add(name)
    world.links |= {("A", "B"), ("B", "A")}
    for one, other in ("AB", "BA"):
        node = world.nodes[other]
        world.tell(one, PeerUp(node.me, hello(node.keys, features=(versions.RECORD_SYNC,))))
    world.run(seconds(1))
    assert len(world.frames(RecordDigests)) == 2
    world.cut = losing(Records)
    world.tell("A", Publish(agent()))
    world.run(seconds(1))
    world.cut = losing_nothing
    world.run(seconds(60))
    assert [each.value for each in world.nodes["B"].records.live(world.now_us)] == [agent()]


# ---- the mesh

MESHED = (versions.MESH, versions.RECORD_SYNC)


@given(st.lists(contents.map(wire_of), max_size=8))
def test_a_message_is_accepted_exactly_when_it_changes_the_map(wires: list[bytes]) -> None:
    """So a flood ends; and the map is the same as if the records had been pushed."""
    here, other = Map(features=MESHED), Map()
    for wire in wires:
        before = [here.wires, [each.record.wire for each in here.node.heard(RecordChanged)]]
        (verdict,) = here.hear(wire)
        changed = [each.record.wire for each in here.node.heard(RecordChanged)]
        assert verdict == ("accept" if changed == [wire] else "ignore"), before
        assert here.hear(wire, wire) == ["ignore", "ignore"]
    other.give(*wires)
    assert here.wires == other.wires


@pytest.mark.parametrize(
    ("wire", "verdict", "counter"),
    [
        (b"", "reject", "records_refused"),
        (b"\xc0", "reject", "records_refused"),
        (record()[:-1] + bytes([record()[-1] ^ 1]), "reject", "records_refused"),
        (record(ttl_ms=RECORD_TTL_MS + 1), "reject", "records_refused"),  # wrong whatever the time is
        (record(issued_ms=NOW_MS - RECORD_TTL_MS), "ignore", "records_expired"),  # a slow path, or a replay
        (record(issued_ms=NOW_MS + FUTURE_MS_MAX + 1), "ignore", "records_expired"),  # whose clock is wrong?
        (record(agent(vector=b"x", encoder="other")), "ignore", "records_of_another_encoder"),
    ],
)
def test_only_what_anybody_can_see_is_wrong_is_blamed_on_who_brought_it(
    wire: bytes, verdict: Verdict, counter: str
) -> None:
    here = Map(features=MESHED)
    good = record(agent("good"))
    assert here.hear(wire, good) == [verdict, "accept"]
    assert here.node.counters[counter] == 1
    assert here.wires == [good]


def test_messages_of_other_topics_are_nothing_to_it() -> None:
    here = Map(features=MESHED)
    assert not here.node.records.handle(Arrived(here.source, "ops", (record(),)), 0)
    assert here.wires == []


def test_own_changes_are_broadcast_and_pushed_to_nobody_who_has_the_mesh() -> None:
    here = Map(features=MESHED)
    here.node.told.clear()
    effects = [
        *publish(here.node, agent()),
        *here.node.handle(TimerFired(TimerKey("records", "refresh")), 1000),
        *here.node.handle(Withdraw("a"), 2000),
    ]
    assert not pushed(effects)
    spread = [read(wire) for event in here.node.heard(Broadcast) for wire in event.items]
    assert [(each.seq, each.withdrawal) for each in spread] == [
        (NOW_MS, False), (NOW_MS + 1, False), (NOW_MS + 2, True)
    ]  # fmt: skip
    assert not [effect for effect in here.expire() if getattr(effect, "frame", None)]  # and not again every minute


def test_a_record_of_the_own_key_from_elsewhere_is_told_however_it_came() -> None:
    """Complaint 3: the other node with this key is known by its record."""
    for way in ("mesh", "push"):
        here = Map(features=MESHED)
        publish(here.node, PeerValue(addrs=()))
        here.node.told.clear()
        other = record(PeerValue(addrs=("/ip4/10.0.0.9/tcp/1",)), here.node.keys, seq=NOW_MS + 1)
        if way == "mesh":
            assert here.hear(other) == ["accept"]
        else:
            here.give(other)
        assert [event.newer for event in here.node.heard(OwnRecord)] == [True]


def test_members_are_known_by_their_link_or_their_certificate() -> None:
    here = Map(features=MESHED)
    member, thief = keypair("member"), keypair("thief")
    records = here.node.records
    assert all(records.is_member(key) for key in (here.node.me, here.source, here.other))
    assert not records.is_member(member.public)
    here.hear(record(agent(), member), record(PeerValue(addrs=(), cert=chain_of(member)), thief))
    assert not records.is_member(member.public)
    assert not records.is_member(thief.public)
    here.hear(record(PeerValue(addrs=(), cert=chain_of(member)), member))
    assert records.is_member(member.public)


def test_what_is_known_of_members_is_bounded_and_forgotten_in_the_order_of_hearing() -> None:
    here = Map(GossipConfig(record_members_max=4, records_of_strangers_max=3))
    keys = [keypair(f"member {n}") for n in range(6)]
    for each in keys:
        here.give(record(PeerValue(addrs=(), cert=chain_of(each)), each))
    assert [here.node.records.is_member(each.public) for each in keys] == [False, False, True, True, True, True]
    assert here.node.records.is_member(here.node.me)
    here.give(record(agent(), keypair("stranger")), record(agent(), keypair("one too many")))
    assert len(here.wires) == 7  # the records of two that are forgotten count as those of strangers
    here.give(record(PeerValue(addrs=(), cert=chain_of(keys[0])), keys[0], seq=2))
    assert here.node.records.is_member(keys[0].public)


def test_records_of_who_turns_out_to_be_a_member_leave_the_share_of_strangers() -> None:
    here = Map(GossipConfig(records_of_strangers_max=2))
    late = keypair("late")
    here.give(record(agent("a"), late), record(agent("b"), late), refused := record(agent(), keypair("stranger")))
    assert refused not in here.wires
    here.give(record(PeerValue(addrs=(), cert=chain_of(late)), late))
    here.give(refused)
    assert refused in here.wires


def test_the_map_is_complete_until_there_was_no_room_and_again_when_there_is() -> None:
    here = Map(GossipConfig(records_max=8))
    records = here.node.records
    here.give(*[record(agent(), keypair(f"publisher {n}"), ttl_ms=HOUR_MS) for n in range(8)])
    assert records.complete
    assert here.hear(late := record(agent(), keypair("late"))) == ["ignore"]
    assert not records.complete
    here.expire()
    assert not records.complete
    here.world.now_us = HOUR_MS * 1000
    here.expire()
    assert records.complete
    assert here.hear(late) == ["accept"]


def test_a_members_news_passes_through_a_full_table_and_its_old_records_do_not() -> None:
    here = Map(GossipConfig(records_max=2, record_pass_ms=60_000))
    late = keypair("late")
    here.give(*[record(PeerValue(addrs=(), cert=chain_of(keys)), keys) for keys in (keypair("one"), keypair("two"))])
    peer = record(PeerValue(addrs=(), cert=chain_of(late)), late)
    assert here.hear(peer) == ["accept"]
    assert peer not in here.wires
    assert here.node.records.is_member(late.public), "who was admitted is known though there is no room"
    assert here.hear(record(agent(), keypair("stranger"))) == ["ignore"]
    here.world.now_us += 61_000 * 1000
    assert here.hear(record(agent(), late, seq=1, issued_ms=NOW_MS)) == ["ignore"]


def test_a_record_of_a_kind_to_come_is_nobodys_fault() -> None:
    here = Map(GossipConfig())
    body = encode((bytes(20), "gadget", {}, AUTHOR.public, 1, NOW_MS, NOW_MS + 1000))
    assert here.hear(encode((body, AUTHOR.sign("record", body)))) == ["ignore"]


def test_strangers_and_the_greedy_do_not_make_the_map_incomplete() -> None:
    here = Map(GossipConfig(records_of_strangers_max=3, records_per_publisher_max=2))
    here.give(
        *[record(agent(), keypair(f"stranger {n}")) for n in range(9)], *[record(agent(str(n))) for n in range(9)]
    )
    assert here.node.counters["records_full"] > 0
    assert here.node.records.complete


def test_made_up_keys_do_not_take_the_room_of_members() -> None:
    """Keys are free, admission is not: strangers share a small table, whatever they publish."""
    here = Map(GossipConfig(records_of_strangers_max=5))
    here.give(*[record(agent(), keypair(f"stranger {n}")) for n in range(20)])
    assert len(here.wires) == 5
    member = keypair("member")
    admitted = record(PeerValue(addrs=(), cert=chain_of(member)), member)
    borrowed = record(PeerValue(addrs=(), cert=chain_of(member)), keypair("thief"))
    here.give(borrowed, admitted, record(agent(), member))
    assert borrowed not in here.wires
    assert len(here.wires) == 7


ENCODER = GENESIS.encoder


@pytest.mark.parametrize(
    "value",
    [
        agent(vector=bytes(ENCODER.dim), encoder="bge-m3"),
        agent(vector=bytes(ENCODER.dim), encoder=""),
        agent(vector=bytes(ENCODER.dim - 1), encoder=ENCODER.id),
        agent(vector=b"", encoder=ENCODER.id),
    ],
)
def test_a_vector_of_another_encoder_is_refused_on_every_hop(value: AgentValue) -> None:
    here = Map()
    effects = here.give(record(value))
    assert here.wires == []
    assert not pushed(effects)
    assert list(here.node.store.records()) == []
    assert here.node.counters["records_of_another_encoder"] == 1
    good = record(agent(vector=bytes(ENCODER.dim), encoder=ENCODER.id))
    bare = record(agent("b", encoder="bge-m3"))  # offers agents, and says nothing that would be compared
    here.give(good, bare)
    assert sorted(here.wires) == sorted([good, bare])


# ---- strangers


def test_what_a_stranger_offers_is_held_and_told_only_once_it_is_known_to_be_admitted() -> None:
    here, late = Map(features=MESHED), keypair("late")
    offers = [record(agent("a"), late), record(agent("b"), late)]
    assert here.hear(*offers) == ["accept", "accept"]
    assert not here.node.heard(RecordChanged), "anybody can make keys"
    assert here.wires == sorted(offers, key=lambda wire: read(wire).key)
    here.hear(peer := record(PeerValue(addrs=(), cert=chain_of(late)), late))
    assert sorted(each.record.wire for each in here.node.heard(RecordChanged)) == sorted([*offers, peer])


def test_a_link_tells_what_its_peer_had_published_before() -> None:
    here, late = Map(features=MESHED), keypair("late")
    here.hear(wire := record(agent(), late))
    here.node.told.clear()
    here.node.handle(Linked(PeerID(late.public), hello(late)), 0)
    assert [each.record.wire for each in here.node.heard(RecordChanged)] == [wire]


def test_one_peer_fills_a_part_of_the_share_of_strangers() -> None:
    here = Map(GossipConfig(record_strangers_per_peer_max=4), features=MESHED)
    wires = [record(agent(), keypair(f"made up {n}")) for n in range(9)]
    here.give(*wires)
    assert len(here.wires) == 4
    here.source = here.other
    here.give(*wires)
    assert len(here.wires) == 8


def test_a_newcomers_record_that_had_no_room_is_judged_when_it_comes_again() -> None:
    """It came before the certificate of its publisher, while strangers filled their share."""
    here, late = Map(GossipConfig(records_of_strangers_max=2), features=MESHED), keypair("late")
    here.give(*[record(agent(), keypair(f"made up {n}")) for n in range(3)])
    offer = record(agent(), late)
    assert here.hear(offer) == ["none"]
    assert here.hear(record(PeerValue(addrs=(), cert=chain_of(late)), late), offer) == ["accept", "accept"]


def test_a_member_takes_the_place_of_a_stranger_in_a_full_table() -> None:
    here = Map(GossipConfig(records_max=3), features=MESHED)
    strange = [record(agent(), keypair(f"made up {n}")) for n in range(3)]
    here.give(*strange)
    mine = record(agent())
    here.give(mine)
    assert here.node.records.complete
    assert {*here.wires} == {*strange[1:], mine}
    assert strange[0] not in list(here.node.store.records())


# ---- rates and blame


def test_a_publisher_that_changes_its_record_all_the_time_is_taken_at_a_bounded_rate() -> None:
    config = GossipConfig()
    here = Map(config, features=MESHED)
    flood = [record(seq=seq) for seq in range(1, 1_001)]
    verdicts = here.hear(*flood)
    assert verdicts.count("accept") == config.record_burst + 1  # the first one changes nothing
    assert here.node.counters["records_too_often"] == 1_000 - config.record_burst - 1
    other = record(agent(), keypair("second"))
    assert here.hear(other) == ["accept"], "it is one publisher's matter"
    assert here.hear(record(seq=2_000, ttl_ms=0)) == ["accept"], "its end is taken all the same"
    here.world.now_us += config.record_every_us
    assert here.hear(record(seq=2_001), record(seq=2_002)) == ["accept", "ignore"]


def test_records_that_end_at_once_are_changes_too() -> None:
    config = GossipConfig()
    here = Map(config, features=MESHED)
    taken = 0
    for n in range(300):
        here.world.now_us += 10_000
        taken += here.hear(record(issued_ms=NOW_MS + n * 10, ttl_ms=5)) == ["accept"]
        here.world.now_us += 10_000
        here.expire()
    assert taken <= config.record_burst + 2


def test_all_records_of_a_publisher_may_be_signed_anew_and_withdrawn_at_once() -> None:
    config = GossipConfig()
    here = Map(config, features=MESHED)
    names = [str(n) for n in range(config.records_per_publisher_max)]
    for seq, ttl_ms in ((1, RECORD_TTL_MS), (2, RECORD_TTL_MS), (3, 0)):
        verdicts = here.hear(*[record(agent(name), seq=seq, ttl_ms=ttl_ms) for name in names])
        assert verdicts == ["accept"] * len(names)


def test_who_pushes_bad_records_is_hung_up_and_who_pushes_old_ones_is_not() -> None:
    config = GossipConfig()
    here = Map(config, features=MESHED)
    here.give(*[record(issued_ms=NOW_MS - RECORD_TTL_MS)] * 200)
    assert not here.node.heard(Misbehaved)
    bad = record()[:-1] + bytes([record()[-1] ^ 1])
    here.give(*[bad] * config.record_junk_max)
    assert not here.node.heard(Misbehaved)
    assert [effect.peer for effect in here.give(bad) if isinstance(effect, Hangup)] == [here.source]


def test_what_is_known_late_or_replaced_costs_no_second_check_of_its_signature() -> None:
    here = Map(features=MESHED)
    checked: list[bytes] = []

    def counting(key: bytes, message: bytes, sig: bytes) -> bool:
        checked.append(sig)
        return verify(key, message, sig)

    here.node.records._verify = counting
    known = record(seq=2)
    here.give(known)
    assert len(checked) == 1
    vector = agent("v", vector=b"x", encoder="other")
    here.give(known, record(seq=1), record(agent("b"), issued_ms=NOW_MS - RECORD_TTL_MS), record(vector))
    assert len(checked) == 1
    here.give(known[:-1] + bytes([known[-1] ^ 1]))
    assert len(checked) == 2, "the same version with other bytes is checked, and refused"
    assert here.wires == [known]


# ---- clocks


@pytest.mark.parametrize("step_h", [-8, -1, 8])
def test_own_records_stay_live_for_everybody_when_the_clock_is_set(step_h: int) -> None:
    """The clock was wrong at boot and is set half a minute later."""
    world = World(SLOW, idle=frozenset({"repair"}))
    node = world.add("A", wall_off_ms=step_h * HOUR_MS)
    publish(node, agent(), world.now_us)
    world.run(seconds(30))
    world.tell("A", ClockOffset(NOW_MS * 1000))
    for _ in range(24 * 4):
        now_ms = NOW_MS + world.now_us // 1000
        (own,) = node.records.live(world.now_us)
        assert own.acceptable(now_ms)
        world.run(HOUR_MS * 250)


def test_an_own_record_that_is_over_is_signed_anew_when_it_is_swept() -> None:
    """Swarm time moved without a word of the own clock."""
    here = Map()
    publish(here.node, agent())
    here.node.clock.set_wall_offset((NOW_MS + 7 * HOUR_MS) * 1000)
    here.node.told.clear()
    here.expire()
    (own,) = here.node.records.live(0)
    assert own.issued_ms == NOW_MS + 7 * HOUR_MS
    assert [each.live for each in here.node.heard(RecordChanged)] == [True]


def test_stored_records_near_their_end_are_signed_anew_at_the_start() -> None:
    here = Map()
    value = PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",))
    store = MemoryStore()
    store.apply((RecordRow(here.node.me, read(publish_wire(here.node, value)).key, publish_wire(here.node, value)),))
    again = World()
    node = again.add("node", store=store, wall_off_ms=5 * HOUR_MS)
    publish(node, value)
    (own,) = node.records.live(0)
    assert own.issued_ms == NOW_MS + 5 * HOUR_MS


def publish_wire(node: Node, value: Value) -> bytes:
    """An own record in the form in which the last life stored it."""
    return make_record(node.keys, value, seq=1, issued_ms=NOW_MS)


def test_what_somebody_else_with_the_own_key_ended_is_offered_again() -> None:
    """A second node that was started with this key and stops withdraws what both offer."""
    here = Map(features=MESHED)
    publish(here.node, value := PeerValue(addrs=("/ip4/10.0.0.1/tcp/1",)))
    assert here.hear(record(value, here.node.keys, seq=NOW_MS + 1, ttl_ms=0)) == ["accept"]
    (own,) = here.node.records.live(0)
    assert own.seq > NOW_MS + 1
    assert (own.wire,) in [event.items for event in here.node.heard(Broadcast)]


# ---- admission ends


def short_chain(keys: KeyPair, until_ms: int) -> tuple[bytes, ...]:
    return (issue(ADMIN, GENESIS.swarm_id, keys.public, (MEMBER,), (NOW_MS - HOUR_MS, until_ms)),)


def test_a_certificate_that_is_over_or_to_come_admits_nobody() -> None:
    here = Map(features=MESHED)
    late, early = keypair("late"), keypair("early")
    here.hear(record(PeerValue(addrs=(), cert=short_chain(late, NOW_MS - 1)), late))
    here.hear(record(PeerValue(addrs=(), cert=chain_of(early, NOW_MS + HOUR_MS)), early))
    assert not here.node.records.is_member(late.public)
    assert not here.node.records.is_member(early.public)
    here.node.clock.set_wall_offset((NOW_MS + HOUR_MS + 1000) * 1000)
    here.node.handle(ClockOffset((NOW_MS + HOUR_MS + 1000) * 1000), 0)
    assert here.node.records.is_member(early.public), "the clock had been wrong"


def test_membership_ends_with_the_certificate_and_a_new_one_prolongs_it() -> None:
    here = Map(features=MESHED)
    one, two = keypair("one"), keypair("two")
    for each in (one, two):
        here.hear(record(PeerValue(addrs=(), cert=short_chain(each, NOW_MS + HOUR_MS)), each), record(agent(), each))
    here.hear(record(PeerValue(addrs=(), cert=chain_of(two)), two, seq=2))
    here.node.told.clear()
    here.world.now_us = (HOUR_MS + 1) * 1000
    here.expire()
    assert not here.node.records.is_member(one.public)
    assert here.node.records.is_member(two.public)
    ended = here.node.heard(RecordChanged)
    assert {(each.record.publisher, each.live) for each in ended} == {(one.public, False)}
    assert len(ended) == 2
