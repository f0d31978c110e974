"""The machine among a few others: joining, losing, publishing, serving nobody, and peers that lie or are overrun."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dht import events as e
from dht.behaviour import Dht
from dht.config import DhtConfig
from dht.key import distance, key_id, node_id
from dht.placement import Codebook, train
from dht.server import CLIENT_RETRY_MS
from protocol import messages as m
from protocol.capability import PeerValue, SignedRecord, record_key
from protocol.clock import SwarmClock
from protocol.errors import PeerUnreachable, Refused, RemoteFailure
from protocol.machine import (
    Boot,
    Count,
    Dial,
    DialFailed,
    Effect,
    Local,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.peer import PeerID
from protocol.transport import Lane
from tests.dht.dht_world import SECOND, WALL_MS, Node, World, peer_wire, swarm, terms
from tests.dht.test_dht_placement import VECTORS
from tests.strategies import keypair

BOOK = train(VECTORS, encoder="enc", made_ms=WALL_MS, count=8, rng=random.Random(0))


def holders(world: World, key: bytes, record: SignedRecord | None = None) -> list[Node]:
    now_ms = WALL_MS + world.now_us // 1000
    nodes = [node for node in world.nodes.values() if node.alive and node.dht.store.read(key, now_ms)]
    return [n for n in nodes if record is None or record in n.dht.store.read(key, now_ms)]


def closest(world: World, key: bytes, count: int) -> list[Node]:
    alive = [node for node in world.nodes.values() if node.alive]
    return sorted(alive, key=lambda node: distance(node_id(node.peer), key_id(key)))[:count]


def slot(node: Node) -> bytes:
    return record_key(node.peer, "peer")


# ---- joining and being alone


def test_a_node_alone_is_up_says_so_and_finds_nobody() -> None:
    world = World()
    node = world.add("alone")
    world.run(3_600)
    assert not node.dht.joined
    assert node.dht.status()["contacts"] == 0
    lookup = world.answer(node, lambda r: e.Lookup(r, b"key"))
    assert (lookup.peers, type(lookup.error)) == ((), PeerUnreachable)
    get = world.answer(node, lambda r: e.Get(r, slot(node)))
    assert (get.record, type(get.error)) == (None, PeerUnreachable)
    put = world.answer(node, lambda r: e.Put(r, world.agent(node, "a", b"\x01")))
    assert (put.asked, put.confirmed, put.error) == (1, 1, None), "it serves, so it holds its own"
    client = world.add("alone client", DhtConfig(server=False))
    put = world.answer(client, lambda r: e.Put(r, world.agent(client, "a", b"\x01")))
    assert isinstance(put.error, PeerUnreachable)


def test_d3_what_was_to_be_published_alone_is_published_on_joining() -> None:
    world = World()
    early = world.add("early")
    record = world.agent(early, "a", b"\x01")
    world.give(early, e.OwnRecord(record))
    world.run(300)
    late = world.add("late")
    world.link(early, late)
    world.run(60)
    assert early.dht.joined
    assert late.dht.joined
    assert late in holders(world, record.key, record)
    world.unlink(early, late)
    assert not early.dht.joined
    world.run(300)
    world.link(early, late)
    world.run(60)
    assert early.dht.joined, "and joins anew when somebody comes back"


def test_two_nodes_find_each_other_through_a_third() -> None:
    world = World()
    a, hub, b = (world.add(name) for name in ("a", "hub", "b"))
    world.link(a, hub)
    world.link(b, hub)
    world.run(10)
    done = world.answer(a, lambda r: e.Get(r, slot(b)))
    assert done.record.value == PeerValue(addrs=b.addrs)
    assert b.peer in a.linked, "and dialled what it signed"


# ---- who is there


def test_who_is_merely_named_is_no_contact_until_it_answers() -> None:
    world = swarm(6)
    node = next(iter(world.nodes.values()))
    ghost = keypair("named ghost")
    ghost_wire = peer_wire(ghost, ("/ip4/10.9.9.9/tcp/1",))
    liar = world.nodes[node.dht.table.contacts()[0].peer]
    world.add("named ghost").alive = False
    world.nodes[PeerID(ghost.public)].addrs = ("/ip4/10.9.9.9/tcp/1",)
    request = world.ask(node, lambda r: e.Lookup(r, b"k"))
    req = max(node.dht._calls._of_peer[liar.peer])
    world.give(node, Received(liar.peer, m.FoundNodes(req, (ghost_wire,))))
    assert node.dht.table.get(PeerID(ghost.public)) is None
    world.until(lambda: request in node.done)
    assert PeerID(ghost.public) not in node.done[request].peers
    assert node.dht.table.get(PeerID(ghost.public)) is None


def test_an_introduction_under_another_name_is_refused() -> None:
    world = World()
    a, b = world.add("a"), world.add("b", DhtConfig(server=False))
    world.link(a, b)
    for wire in (peer_wire(keypair("c"), ("/ip4/10.0.0.9/tcp/1",)), b"junk", world.agent(b, "x", b"\x01").wire):
        world.give(a, Received(b.peer, m.Introduce(wire)))
    assert len(a.dht.table) == 0
    assert world.counts["dht_introductions_refused"] == 3


def test_frames_of_who_is_not_linked_are_not_looked_at() -> None:
    world = World()
    a, b = world.add("a"), world.add("b")
    wire = peer_wire(b.keys, b.addrs)
    for frame in (m.Introduce(wire), m.FindNode(1, b"k" * 20), m.StoreRecord(1, slot(b), wire), m.Busy(1, 1)):
        assert a.dht.handle(Received(b.peer, frame), world.now_us) == []
    assert len(a.dht.table) == 0
    assert a.dht.store.count == 0


def test_d2_who_leaves_is_evicted_at_once_and_who_comes_back_is_back() -> None:
    world = swarm(5)
    first, *rest, last = world.nodes.values()
    for _ in range(20):
        world.kill([last])
        world.notice([last])
        assert all(node.dht.table.get(last.peer) is None for node in (first, *rest))
        world.restart(last)
        world.link(first, last)
        world.run(2)
    world.run(30)
    assert {len(node.dht.table) for node in world.nodes.values()} == {4}
    assert {node.dht.store.count for node in world.nodes.values()} == {5}


def test_a_silent_peer_is_evicted_after_a_request_and_a_ping() -> None:
    world = swarm(5)
    first, *_, mute = world.nodes.values()
    world.kill([mute])
    world.ask(first, lambda r: e.Lookup(r, b"k"))
    world.run(3.2)
    assert first.dht.table.get(mute.peer) is not None, "one lost request is no proof"
    world.run(3.2)
    assert first.dht.table.get(mute.peer) is None
    assert world.counts["dht_calls_timeout"] == 2


def test_one_lost_request_costs_nobody_its_place() -> None:
    world = swarm(5)
    first, *_, slow = world.nodes.values()
    lost: list[m.Frame] = []

    def cut(source: PeerID, target: PeerID, frame: m.Frame) -> bool:
        if (source, target) == (first.peer, slow.peer) and isinstance(frame, m.FindNode) and not lost:
            lost.append(frame)
            return True
        return False

    world.cut = cut
    done = world.answer(first, lambda r: e.Lookup(r, b"k"))
    assert lost
    assert slow.peer not in done.peers
    world.run(10)
    assert first.dht.table.get(slow.peer) is not None
    assert slow.peer in world.answer(first, lambda r: e.Lookup(r, b"k")).peers, "its pong ended the suspicion"


def test_who_cannot_be_dialled_is_evicted_and_asked_by_no_look_up_for_a_while() -> None:
    world = swarm(12)
    nodes = list(world.nodes.values())
    dead = nodes[-1]
    world.kill([dead])
    for node in nodes[:-1]:
        node.linked.pop(dead.peer, None)
        node.dht._calls.linked.pop(dead.peer, None)
    asker = next(node for node in nodes if node.dht.table.get(dead.peer))
    world.answer(asker, lambda r: e.Lookup(r, b"k"))
    assert asker.dht.table.get(dead.peer) is None
    before = world.counts["dht_calls_unreachable"]
    world.answer(asker, lambda r: e.Lookup(r, b"k"))
    assert world.counts["dht_calls_unreachable"] == before, "others still name it"


def test_a_contact_whose_record_has_run_out_goes() -> None:
    world = swarm(3)
    node = next(iter(world.nodes.values()))
    assert len(node.dht.table) == 2
    world.run(5.9 * 3_600)
    assert len(node.dht.table) == 2
    world.run(0.2 * 3_600)
    assert len(node.dht.table) == 0


def test_a_peer_whose_link_is_let_go_in_order_stays_a_contact_and_is_asked_again() -> None:
    world = swarm(30, DhtConfig(k=4))
    asker = next(iter(world.nodes.values()))
    known = len(asker.dht.table)
    for peer in list(asker.linked):
        world.unlink(asker, world.nodes[peer], in_order=True)
    assert len(asker.dht.table) == known
    assert world.answer(asker, lambda r: e.Lookup(r, b"key")).peers


# ---- serving nobody


def test_complaint_15_a_client_finds_and_publishes_but_holds_nothing_and_stands_in_no_table() -> None:
    world = swarm(12)
    servers = list(world.nodes.values())
    clients = [world.add(f"client {n}", DhtConfig(server=False)) for n in range(4)]
    for client in clients:
        world.link(client, servers[0])
        world.link(client, servers[1])
    world.link(clients[0], clients[1])
    record = world.agent(clients[0], "a", b"\x01")
    world.give(clients[0], e.OwnRecord(record))
    world.run(60)
    assert all(client.dht.joined for client in clients)
    assert world.answer(clients[1], lambda r: e.Get(r, record.key)).record == record
    for server in servers:
        assert world.answer(server, lambda r: e.Get(r, record.key)).record == record
        assert not {c.peer for c in server.dht.table.contacts()} & {c.peer for c in clients}
    assert all(client.dht.store.count == 0 for client in clients)
    assert all(client.served["StoreRecord"] == client.served["FindNode"] == 0 for client in clients)
    put = world.answer(clients[2], lambda r: e.Put(r, world.agent(clients[2], "b", b"\x01")))
    assert (put.confirmed, put.asked) == (12, 12)
    assert all(client.dht.store.count == 0 for client in clients)


def test_a_client_that_is_asked_says_that_it_serves_nobody_and_leaves_the_table_of_who_asked() -> None:
    world = swarm(6)
    first, *_, last = world.nodes.values()
    assert last.dht.store.count > 0
    world.give(last, e.Serving(on=False))
    assert last.dht.store.count == 0
    done = world.answer(first, lambda r: e.Lookup(r, b"k"), seconds=1)
    assert last.peer not in done.peers
    assert first.dht.table.get(last.peer) is None
    world.run(60)
    assert last.dht.store.count == 0
    assert len(holders(world, slot(last))) == 5, "what it published stays found"
    world.give(last, e.Serving(on=True))
    world.run(60)
    assert first.dht.table.get(last.peer) is not None
    assert last.dht.store.count > 0, "and is given what belongs to it again"


# ---- records


def test_complaint_13_a_record_is_found_by_who_joined_before_and_after() -> None:
    world = swarm(10)
    publisher, *others = world.nodes.values()
    record = world.agent(publisher, "a", b"\x01")
    done = world.answer(publisher, lambda r: e.Put(r, record))
    assert (done.confirmed, done.asked, done.error) == (10, 10, None)
    late = world.add("late")
    world.link(late, others[3])
    world.run(5)
    for node in (*others, late):
        found = world.answer(node, lambda r: e.Get(r, record.key))
        assert (found.record, found.error) == (record, None)


def test_a_put_that_too_few_confirm_is_an_error_with_the_count() -> None:
    world = swarm(10)
    node = next(iter(world.nodes.values()))
    rest = [other.peer for other in world.nodes.values() if other is not node]
    world.cut = lambda _s, target, frame: isinstance(frame, m.StoreRecord) and target in rest[:7]
    done = world.answer(node, lambda r: e.Put(r, world.agent(node, "a", b"\x01")))
    assert (done.confirmed, done.asked) == (3, 10)
    assert isinstance(done.error, RemoteFailure)
    assert "3 of 10" in done.error.message
    world.cut = lambda _s, target, frame: isinstance(frame, m.StoreRecord) and target in rest[:4]
    done = world.answer(node, lambda r: e.Put(r, world.agent(node, "b", b"\x01")))
    assert (done.confirmed, done.asked, done.error) == (6, 10, None)


def test_an_own_record_that_too_few_confirmed_is_put_again() -> None:
    world = swarm(10)
    node = next(iter(world.nodes.values()))
    record = world.agent(node, "a", b"\x01")
    world.cut = lambda _s, _t, frame: isinstance(frame, m.StoreRecord)
    world.give(node, e.OwnRecord(record))
    world.run(8)
    assert world.counts["dht_puts_short"] == 1
    assert holders(world, record.key) == [node]
    world.cut = lambda _s, _t, _f: False
    world.run(60)
    assert len(holders(world, record.key, record)) == 10


def test_d1_a_read_takes_the_newest_of_a_quorum_and_repairs_who_holds_less() -> None:
    world = swarm(30, DhtConfig(k=8))
    nodes = list(world.nodes.values())
    old, new = (world.agent(nodes[0], "a", bytes([seq]), seq=seq) for seq in (1, 2))
    world.answer(nodes[0], lambda r: e.Put(r, old))
    near = closest(world, old.key, 8)
    for node in near[1:3]:
        assert node.dht.store.offer(new.key, new, node.peer, WALL_MS + world.now_us // 1000).holds
    reader = next(n for n in nodes if n not in near)
    # the reader's own copy is a candidate, never the answer
    reader.dht.store.offer(old.key, old, reader.peer, WALL_MS + world.now_us // 1000)
    assert world.answer(reader, lambda r: e.Get(r, old.key)).record == new
    world.run(1)
    assert set(map(id, closest(world, old.key, 5))) <= set(map(id, holders(world, new.key, new)))
    assert reader.dht.store.read(old.key, WALL_MS + world.now_us // 1000) == [new]


def test_a_withdrawn_record_is_found_by_nobody_even_where_a_holder_missed_it() -> None:
    world = swarm(12)
    nodes = list(world.nodes.values())
    offer = world.agent(nodes[0], "a", b"\x01", seq=1)
    world.give(nodes[0], e.OwnRecord(offer))
    world.run(2)
    missed = closest(world, offer.key, 12)[0]
    world.cut = lambda _s, target, frame: isinstance(frame, m.StoreRecord) and target == missed.peer
    end = world.sign(nodes[0], offer.value, seq=2, ttl_ms=0)
    world.give(nodes[0], e.OwnRecord(end))
    world.run(5)
    world.cut = lambda _s, _t, _f: False
    assert missed in holders(world, offer.key, offer)
    for node in nodes:
        done = world.answer(node, lambda r: e.Get(r, offer.key))
        assert (done.record, done.error) == (None, None)
    world.run(1)
    assert missed in holders(world, end.key, end)


def test_records_of_others_reach_a_newcomer_that_is_closest_to_them() -> None:
    world = swarm(40, DhtConfig(k=6))
    nodes = list(world.nodes.values())
    client = world.add("dying publisher", DhtConfig(k=6, server=False))
    for node in nodes[:3]:
        world.link(client, node)
    world.run(20)
    record = world.agent(client, "a", b"\x01")
    world.answer(client, lambda r: e.Put(r, record))  # not an own record: nobody puts it again
    near = closest(world, record.key, 6)
    assert set(map(id, holders(world, record.key))) == set(map(id, near))
    place = key_id(record.key)
    third = distance(node_id(near[2].peer), place)
    names = (f"newcomer {n}" for n in range(10_000))
    fresh = [name for name in names if distance(node_id(keypair(name).public), place) < third][:2]
    for name in fresh:
        newcomer = world.add(name, DhtConfig(k=6))
        world.link(newcomer, nodes[5])
        world.run(60)
    now_near = closest(world, record.key, 6)
    assert {PeerID(keypair(name).public) for name in fresh} < {node.peer for node in now_near}
    assert all(n in holders(world, record.key, record) for n in now_near)


def test_records_of_others_move_up_when_holders_are_gone() -> None:
    world = swarm(40, DhtConfig(k=6))
    nodes = list(world.nodes.values())
    client = world.add("gone publisher", DhtConfig(k=6, server=False))
    for node in nodes[:3]:
        world.link(client, node)
    world.run(20)
    record = world.agent(client, "a", b"\x01")
    world.answer(client, lambda r: e.Put(r, record))
    for _ in range(3):
        gone = closest(world, record.key, 2)
        world.kill(gone)
        world.notice(gone)
        world.run(40)
    assert len(holders(world, record.key, record)) >= 6
    assert closest(world, record.key, 1)[0] in holders(world, record.key, record)


def test_own_records_are_put_again_at_a_third_of_their_life() -> None:
    world = swarm(6)
    nodes = list(world.nodes.values())
    world.run(1_800)
    for node in nodes:
        node.dht.store.clear()
    world.run(7_300)
    assert all(node.dht.store.count == 6 for node in nodes)


def test_only_newer_own_records_are_taken_and_only_so_many() -> None:
    world = World()
    node = world.add("own", DhtConfig(own_records_max=3))
    other = world.add("other")
    new, old = world.agent(node, "a", b"\x01", seq=2), world.agent(node, "a", b"\x01", seq=1)
    refused = 0
    for record, taken in [(new, 1), (old, 0), (new, 0), (world.agent(other, "a", b"\x01"), 0)]:
        world.give(node, e.OwnRecord(record))
        refused += not taken
        assert world.counts["dht_own_records_refused"] == refused
    for number in range(5):
        world.give(node, e.OwnRecord(world.agent(node, str(number), b"\x01")))
    assert node.dht.status()["own_records"] == 3


# ---- peers that lie, peers that are overrun


def forging(world: World, liar: Node, forge: Any) -> None:
    """The liar answers FindValue and FindNode with what `forge` makes of the request id."""

    def handle(event: object, now_us: int) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.frame, m.FindValue | m.FindNode):
            return [Send(event.peer, Lane.CONTROL, forge(event.frame))]
        return honest(event, now_us)

    honest = liar.dht.handle
    liar.dht.handle = handle  # type: ignore[method-assign]


def test_forged_answers_are_refused_and_their_sender_loses_its_place() -> None:
    forged_value = PeerValue(addrs=("/ip4/6.6.6.6/tcp/6",))

    def variants(node: Node, world: World) -> list[Any]:
        good = peer_wire(node.keys, node.addrs, seq=WALL_MS + 10**6)
        broken = good[:-1] + bytes([good[-1] ^ 1])
        stranger = world.sign(world.add("stranger"), forged_value, seq=2**60).wire
        return [
            lambda f: m.FoundValue(f.req, (broken,), ()),
            lambda f: m.FoundValue(f.req, (stranger,), ()),
            lambda f: m.FoundNodes(f.req, (broken,)),
            lambda f: m.Stored(f.req, ok=True, reason="", retry_after_ms=0),
        ]

    for number in range(4):
        world = swarm(8)
        first, target, *_, liar = world.nodes.values()
        forging(world, liar, variants(target, world)[number])
        done = world.answer(first, lambda r, t=target: e.Get(r, slot(t)))
        assert done.record is not None
        assert done.record.value == PeerValue(addrs=target.addrs)
        if number < 3:
            assert world.counts["dht_answers_forged"] == 1
            assert first.dht.table.get(liar.peer) is None


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    world = swarm(4)
    first, second, third, _ = world.nodes.values()
    request = world.ask(first, lambda r: e.Get(r, slot(third)))
    req = max(first.dht._calls._of_peer[second.peer])
    forged = world.sign(third, PeerValue(addrs=("/ip4/10.6.6.6/tcp/6",)), seq=2**60)
    for frame in (m.FoundValue(req, (forged.wire,), ()), m.Busy(req, 1), m.FoundNodes(5, ())):
        world.give(first, Received(third.peer, frame))
    assert world.counts["dht_answers_unasked"] == 3
    world.until(lambda: request in first.done)
    assert first.done[request].record.value == PeerValue(addrs=third.addrs)


def test_an_overrun_peer_is_asked_again_after_the_time_it_named() -> None:
    config = DhtConfig(rpcs_per_peer_s=2)
    world = swarm(3, config)
    first = next(iter(world.nodes.values()))
    world.run(10)
    requests = [world.ask(first, lambda r, n=n: e.Lookup(r, bytes([n]))) for n in range(4)]
    world.until(lambda: all(request in first.done for request in requests))
    assert world.counts["dht_answers_busy"] > 0
    assert world.counts["dht_calls_retried"] > 0
    assert all(len(first.done[request].peers) == 2 for request in requests)
    assert len(first.dht.table) == 2, "busy is not gone"


def test_a_busy_peer_is_given_up_after_its_retries_and_keeps_its_place() -> None:
    world = swarm(3)
    first, *_, busy = world.nodes.values()
    forging(world, busy, lambda f: m.Busy(f.req, 50))
    done = world.answer(first, lambda r: e.Lookup(r, b"k"))
    assert busy.peer not in done.peers
    assert world.counts["dht_calls_busy"] == 1
    assert world.counts["dht_calls_retried"] == first.dht._config.busy_retries_max
    assert first.dht.table.get(busy.peer) is not None
    forging(world, busy, lambda f: m.Busy(f.req, CLIENT_RETRY_MS))
    world.answer(first, lambda r: e.Lookup(r, b"k"))
    assert first.dht.table.get(busy.peer) is None


def test_a_frame_that_found_no_room_fails_its_request_at_once() -> None:
    world = swarm(3)
    first, second, _ = world.nodes.values()
    request = world.ask(first, lambda r: e.Lookup(r, b"k"))
    req = max(first.dht._calls._of_peer[second.peer])
    world.give(first, SendDropped(second.peer, "FindNode", ("dht", req)))
    world.give(first, SendDropped(second.peer, "FindNode", ("dht", req)))
    world.give(first, SendDropped(second.peer, "FindNode", None))
    world.until(lambda: request in first.done, 1)
    assert second.peer not in first.done[request].peers
    assert first.dht.table.get(second.peer) is not None, "our queue was full, it is not to blame"


def lone(config: DhtConfig, contacts: int) -> tuple[Dht, list[PeerID]]:
    """A machine with linked contacts that answer nothing."""
    dht = Dht(PeerID(keypair("lone").public), SwarmClock(WALL_MS * 1000), config, random.Random(1), terms=terms(1))
    dht.handle(Boot(1, WALL_MS * 1000, clean=True), 0)
    peers = []
    for number in range(contacts):
        keys = keypair(f"lone contact {number}")
        peers.append(PeerID(keys.public))
        dht.handle(e.PeerSeen(peers[-1]), 0)
        dht.handle(Received(peers[-1], m.Introduce(peer_wire(keys, ("/ip4/10.0.0.1/tcp/1",)))), 0)
    return dht, peers


def test_look_ups_waiting_and_open_requests_are_bounded_and_full_is_told() -> None:
    config = DhtConfig(queries_max=3, waiting_max=5)
    dht, _ = lone(config, 12)
    done: dict[int, Any] = {}
    timers: dict[TimerKey, int] = {}

    def take(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Local):
                done[effect.event.request] = effect.event  # type: ignore[attr-defined]
            elif isinstance(effect, SetTimer):
                timers[effect.key] = effect.at_us

    for number in range(20):
        take(dht.handle((e.Lookup(number, b"k"), e.Get(number, b"k" * 20))[number % 2], 0))
    assert dht.status()["lookups"] == 3 + 5
    assert dht.status()["requests_open"] == 3 * config.alpha
    assert sorted(done) == list(range(8, 20))
    assert all(isinstance(one.error, Refused) for one in done.values())
    while len(done) < 20:  # nobody answers: every look-up ends all the same, without a livelock
        key = min((k for k in timers if k.what == "call"), key=lambda k: (timers[k], k.ref))
        take(dht.handle(TimerFired(key), timers.pop(key)))
    assert all(call.owner == ("ping", 0) for call in dht._calls._calls.values())


def test_requests_of_its_own_beyond_the_bound_fail_and_are_counted() -> None:
    dht, _ = lone(DhtConfig(calls_max=15, alpha=10), 12)
    effects = [effect for number in range(3) for effect in dht.handle(e.Lookup(number, bytes([number])), 0)]
    assert sum(isinstance(effect, Send) for effect in effects) == 15
    assert Count("dht_calls_full") in effects
    assert dht.status()["requests_open"] == 15


def test_a_thousand_waiting_look_ups_of_a_node_that_lost_everybody_end_in_one_step() -> None:
    dht, peers = lone(DhtConfig(queries_max=1, waiting_max=1_000), 1)
    for number in range(900):
        dht.handle(e.Lookup(number, bytes(4)), 0)
    effects = dht.handle(e.PeerGone(peers[0]), 1)
    assert sum(isinstance(effect, Local) for effect in effects) == 900


def test_a_flood_of_peers_leaves_no_state_behind() -> None:
    """S3: what is kept per peer goes with its link; what is kept of records is bounded by the store."""
    dht, peers = lone(DhtConfig(), 300)
    for peer in peers:
        dht.handle(Received(peer, m.FindNode(1, b"k" * 20)), 1)
    for peer in peers:
        dht.handle(e.PeerGone(peer), 2)
    assert len(dht.table) == 0
    assert dht._server._buckets == {}
    assert dht._around._introduced == {}
    assert dht._calls.linked == {}
    assert len(dht._around._shunned) <= dht._config.shunned_max


def test_a_key_of_another_length_is_refused() -> None:
    world = World()
    assert isinstance(world.answer(world.add("a"), lambda r: e.Get(r, b"short")).error, Refused)


def test_events_of_others_are_nothing_to_it() -> None:
    dht, _ = lone(DhtConfig(), 0)
    peer = PeerID(bytes(32))
    for event in (
        object(), DialFailed(peer, "x"), TimerFired(TimerKey("links", "ping")), TimerFired(TimerKey("dht", "no such")),
        TimerFired(TimerKey("dht", "call", 5)), SendDropped(peer, "Ping", ("other", 1)), e.PeerGone(peer),
    ):  # fmt: skip
        assert dht.handle(event, 0) == []


# ---- the directory

DIM = len(VECTORS[0])


def agents(world: World, nodes: list[Node], vectors: list[bytes], books: tuple[bytes, ...] = ()) -> list[SignedRecord]:
    records = []
    for number, vector in enumerate(vectors):
        node = nodes[number % len(nodes)]
        records.append(world.agent(node, f"agent {number}", vector, books=books))
        world.give(node, e.OwnRecord(records[-1]))
    return records


def with_codebook(world: World, book: Codebook) -> None:
    for node in world.nodes.values():
        world.give(node, e.UseCodebook(book.wire))


def test_agents_are_found_by_meaning_with_exact_scores_best_first() -> None:
    world = swarm(10, dim=DIM)
    nodes = list(world.nodes.values())
    with_codebook(world, BOOK)
    records = agents(world, nodes, VECTORS[:30])
    world.run(20)
    done = world.answer(nodes[3], lambda r: e.Find(r, "enc", VECTORS[7], 5))
    assert done.error is None
    assert done.found[0] == (1_000_000, records[7])
    scores = [score for score, _ in done.found]
    assert scores == sorted(scores, reverse=True)
    assert len({(r.publisher, r.key) for _, r in done.found}) == len(done.found) == 5


def test_without_a_codebook_for_the_encoder_a_search_is_refused() -> None:
    world = swarm(3)
    node = next(iter(world.nodes.values()))
    for encoder, probe in (("enc", VECTORS[0]), ("other", VECTORS[0]), ("enc", b"\x01")):
        done = world.answer(node, lambda r, enc=encoder, p=probe: e.Find(r, enc, p, 5))
        assert isinstance(done.error, Refused)
        with_codebook(world, BOOK)
    world.give(node, e.UseCodebook(b"junk"))
    assert world.counts["dht_codebooks_refused"] == 1


def test_an_agent_that_changes_or_leaves_is_found_as_it_is_now() -> None:
    world = swarm(10, dim=DIM)
    nodes = list(world.nodes.values())
    with_codebook(world, BOOK)
    first = world.agent(nodes[0], "a", VECTORS[0], seq=1)
    world.give(nodes[0], e.OwnRecord(first))
    world.run(10)
    far = next(v for v in VECTORS if not set(BOOK.keys_for(v, 4)) & set(BOOK.keys_for(VECTORS[0], 4)))
    moved = world.agent(nodes[0], "a", far, seq=2)
    world.give(nodes[0], e.OwnRecord(moved))
    world.run(10)
    assert world.answer(nodes[5], lambda r: e.Find(r, "enc", far, 3)).found == ((1_000_000, moved),)
    old = [record for _, record in world.answer(nodes[5], lambda r: e.Find(r, "enc", VECTORS[0], 3)).found]
    assert first not in old, "its old shard holds the new version"
    world.give(nodes[0], e.OwnRecord(world.sign(nodes[0], moved.value, seq=3, ttl_ms=0)))
    world.run(10)
    for probe in (far, VECTORS[0]):
        assert world.answer(nodes[5], lambda r, p=probe: e.Find(r, "enc", p, 3)).found == ()


def test_moving_to_a_new_codebook_loses_nobody_on_the_way() -> None:
    world = swarm(10, dim=DIM)
    nodes = list(world.nodes.values())
    with_codebook(world, BOOK)
    newer = train(VECTORS, encoder="enc", made_ms=WALL_MS + 5, count=8, rng=random.Random(9))
    records = agents(world, nodes, VECTORS[:20], (BOOK.name, newer.name))
    world.run(20)
    for node in nodes[:5]:
        world.give(node, e.UseCodebook(newer.wire))
    world.run(20)
    asker = nodes[-1]  # has not heard of the new one
    for number in (0, 7, 13):
        done = world.answer(asker, lambda r, n=number: e.Find(r, "enc", VECTORS[n], 1))
        assert done.found[0][1] == records[number]
    for node in nodes[5:]:
        world.give(node, e.UseCodebook(newer.wire))
    world.run(20)
    for number in (0, 7, 13):
        done = world.answer(asker, lambda r, n=number: e.Find(r, "enc", VECTORS[n], 1))
        assert done.found[0][1] == records[number]


def test_a_search_asks_more_shards_when_the_first_give_too_little() -> None:
    world = swarm(10, dim=DIM)
    nodes = list(world.nodes.values())
    with_codebook(world, BOOK)
    near = BOOK.keys_for(VECTORS[0], 4)
    placed = {vector: set(BOOK.keys_for(vector, 2)) for vector in VECTORS}
    third = next(v for v, keys in placed.items() if keys & set(near[2:]) and not keys & set(near[:2]))
    record = agents(world, nodes, [third])[0]
    world.run(10)
    assert world.answer(nodes[5], lambda r: e.Find(r, "enc", VECTORS[0], 1)).found[0][1] == record


@pytest.mark.parametrize("client", [False, True])
def test_the_effects_are_a_function_of_events_and_seed(client: bool) -> None:  # noqa: FBT001 - a parameter
    def run() -> tuple[Any, ...]:
        world = swarm(12, DhtConfig(server=not client) if client else None, seed=5)
        node = next(iter(world.nodes.values()))
        done = world.answer(node, lambda r: e.Lookup(r, b"k"))
        return (world.now_us, dict(world.sent), dict(world.counts), done.peers)

    assert run() == run()


def test_a_suspect_is_pinged_once_however_many_wait_for_it() -> None:
    dht, _ = lone(DhtConfig(), 1)
    effects = [effect for number in range(3) for effect in dht.handle(e.Lookup(number, bytes([number])), 0)]
    calls = [effect.key for effect in effects if isinstance(effect, SetTimer) and effect.key.what == "call"]
    assert len(calls) == 3
    for at_us in (SECOND, 3 * SECOND):
        effects = [effect for key in calls for effect in dht.handle(TimerFired(key), at_us)]
    assert sum(isinstance(effect, Send) and isinstance(effect.frame, m.Ping) for effect in effects) == 1


def test_a_peer_is_dialled_once_however_many_requests_wait() -> None:
    dht, peers = lone(DhtConfig(), 2)
    dht._calls.linked.clear()
    effects = [effect for number in range(3) for effect in dht.handle(e.Lookup(number, bytes([number])), 0)]
    assert sorted(effect.info.peer for effect in effects if isinstance(effect, Dial)) == sorted(peers)
    sent = [effect for effect in dht.handle(e.PeerSeen(peers[0]), 1) if isinstance(effect, Send)]
    assert len(sent) == 3, "and all that waited is sent when the link is open"


def test_a_dial_that_fails_beside_an_open_link_costs_nothing() -> None:
    dht, peers = lone(DhtConfig(), 1)
    dht.handle(e.Lookup(1, b"k"), 0)
    assert dht.handle(DialFailed(peers[0], "our own dial lost the race"), 1) == []
    assert dht.table.get(peers[0]) is not None


def test_an_expired_version_hides_no_live_one() -> None:
    world = swarm(8)
    first, publisher, *_, liar = world.nodes.values()
    live = world.agent(publisher, "a", b"\x01", seq=1)
    world.answer(publisher, lambda r: e.Put(r, live))
    expired = world.sign(publisher, live.value, seq=2, ttl_ms=1000)
    world.run(2)
    asker = world.add("expired asker", DhtConfig(server=False))  # it holds no copy of its own
    world.link(asker, first)
    world.run(5)
    forging(world, liar, lambda f: m.FoundValue(f.req, (expired.wire,), ()))
    assert world.answer(asker, lambda r: e.Get(r, live.key)).record == live


def test_a_ping_carries_the_own_wall_clock() -> None:
    """Links take every ping as a sample of its sender's clock."""
    dht, _ = lone(DhtConfig(), 1)
    timers = [effect for effect in dht.handle(e.Lookup(1, b"k"), 10 * SECOND) if isinstance(effect, SetTimer)]
    call = next(timer for timer in timers if timer.key.what == "call")
    assert call.at_us == 11 * SECOND
    assert not any(isinstance(effect, Send) for effect in dht.handle(TimerFired(call.key), 11 * SECOND))
    pings = [effect.frame for effect in dht.handle(TimerFired(call.key), 13 * SECOND) if isinstance(effect, Send)]
    assert pings == [m.Ping(2**31 + 2, WALL_MS + 13_000)]


def test_a_look_up_does_not_wait_for_who_is_slow_unless_everybody_is() -> None:
    world = swarm(12)
    first, *rest = world.nodes.values()
    slow = {node.peer for node in rest[:3]}
    honest = world.latency
    world.latency = lambda one, other: 800_000 if {one, other} & slow else honest(one, other)  # type: ignore[method-assign]
    start = world.now_us
    done = world.answer(first, lambda r: e.Lookup(r, b"k"))
    assert world.now_us - start < 1.5 * SECOND
    assert len(done.peers) == 8
    world.run(10)
    assert all(first.dht.table.get(peer) is not None for peer in slow), "slow is not gone"
    world.latency = lambda _one, _other: 800_000  # type: ignore[method-assign]
    assert len(world.answer(first, lambda r: e.Lookup(r, b"k")).peers) >= 6


def test_a_peer_that_no_dial_reaches_or_fails_in_time_is_given_up() -> None:
    world = swarm(3)
    first, second, third = world.nodes.values()
    for node in (first, third):
        world.unlink(first, node)
    world.link(first, second)
    world._dial = lambda _node, _target: None  # type: ignore[method-assign]
    world.run(1)
    start = world.now_us
    done = world.answer(first, lambda r: e.Lookup(r, b"k"))
    assert done.peers == (second.peer,)
    assert world.now_us - start <= first.dht._config.slow_us + SECOND
    world.run(10)
    assert first.dht.status()["requests_open"] == 0


def test_only_the_vocabulary_of_machines_leaves_it() -> None:
    dht, _ = lone(DhtConfig(), 3)
    effects = dht.handle(e.Lookup(1, b"k"), 0)
    assert {type(effect) for effect in effects} == {Send, SetTimer}
    assert [effect.ref for effect in effects if isinstance(effect, Send)] == [("dht", 2**31 + n) for n in (1, 2, 3)]
