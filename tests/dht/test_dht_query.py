"""Look-ups over a graph of who knows whom: exact where it is connected, within their caps, whoever lies or is gone."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st
from kademlia.crawling import NodeSpiderCrawl
from kademlia.node import Node

from dht.config import DhtConfig
from dht.key import distance, key_id, node_id
from dht.query import CANDIDATES_PER_NEED, Query, Shape
from dht.routing_table import Contact, Table
from protocol.peer import PeerID
from tests.dht.test_dht_routing_table import contact

ASKER = PeerID((10**6).to_bytes(32, "big"))
SHAPE = Shape(need=20, alpha=10, paths=1, rpcs_max=200, rounds_max=20)


@dataclass
class Graph:
    """Nodes with routing tables, without frames and time."""

    tables: dict[PeerID, Table]
    contacts: dict[PeerID, Contact]
    dead: set[PeerID] = field(default_factory=set)
    lies: dict[PeerID, list[Contact]] = field(default_factory=dict)

    def answer(self, peer: PeerID, target: bytes) -> list[Contact] | None:
        if peer in self.dead:
            return None
        return self.lies.get(peer) or self.tables[peer].neighbours(target, 20)


def graph(count: int, known: int, seed: int = 0) -> Graph:
    rng = random.Random(seed)
    contacts = {one.peer: one for one in map(contact, range(count))}
    ordered = list(contacts.values())
    tables = {}
    for peer in contacts:
        table = tables[peer] = Table(peer, DhtConfig(contacts_per_subnet_max=0))
        near = sorted(ordered, key=lambda one: distance(one.id, node_id(peer)))[1:21]
        for one in [*near, *rng.sample(ordered, known)]:
            table.offer(one, 0)
    return Graph(tables, contacts)


def run(world: Graph, query: Query, rng: random.Random) -> None:
    """Answers come back in any order."""
    flying: list[Contact] = []
    while not query.done:
        flying += query.take()
        assert len(flying) == len(query.in_flight) <= 10
        assert flying, "it waits for nobody and is not done"
        one = flying.pop(rng.randrange(len(flying)))
        closer = world.answer(one.peer, query.target)
        if closer is None:
            query.on_failure(one.peer)
        else:
            query.on_answer(one, closer)


def truth(world: Graph, target: bytes, count: int = 20) -> list[Contact]:
    alive = [one for one in world.contacts.values() if one.peer not in world.dead]
    return sorted(alive, key=lambda one: distance(one.id, target))[:count]


def seeds_of(world: Graph, target: bytes, peer: PeerID) -> list[Contact]:
    return world.tables[peer].neighbours(target, 20)


WORLD = graph(300, 60)


@pytest.mark.parametrize("paths", [1, 2, 4])
def test_a_look_up_finds_exactly_the_closest(paths: int) -> None:
    total = 0
    for number in range(40):
        target, rng = key_id(number.to_bytes(4, "big")), random.Random(number)
        start = list(WORLD.contacts)[number]
        shape = Shape(20, 10, paths, 200, 20)
        query = Query(target, seeds_of(WORLD, target, start), ASKER, shape)
        run(WORLD, query, rng)
        assert query.closest(20) == truth(WORLD, target)
        assert query.rounds <= 6
        total += query.rpcs
    assert total / 40 <= 25 + 8 * paths


def test_a_look_up_does_no_worse_than_the_packages_own_crawl() -> None:
    """The oracle of libp2p.md §8: the package's crawl over the same graph, with exact neighbours."""

    class Protocol:
        async def call_find_node(self, node: Contact, target: Node) -> tuple[bool, list[tuple[bytes, bytes, None]]]:
            found = WORLD.answer(PeerID(node.ip), target.id) or []
            return True, [(one.id, one.peer, None) for one in found]

    for number in range(20):
        target = key_id(number.to_bytes(4, "big"))
        seeds = seeds_of(WORLD, target, list(WORLD.contacts)[number])
        crawl = NodeSpiderCrawl(Protocol(), Node(target), list(seeds), 20, 3)
        theirs = [node.id for node in asyncio.run(crawl.find())]
        query = Query(target, seeds, ASKER, SHAPE)
        run(WORLD, query, random.Random(number))
        assert [one.id for one in query.closest(20)] == theirs


@given(st.integers(0, 2**32), st.integers(0, 60), st.sampled_from([1, 3]))
def test_the_dead_cost_requests_and_nothing_else(seed: int, percent: int, paths: int) -> None:
    rng = random.Random(seed)
    dead = set(rng.sample(list(WORLD.contacts), len(WORLD.contacts) * percent // 100))
    world = Graph(WORLD.tables, WORLD.contacts, dead)
    target = key_id(seed.to_bytes(8, "big"))
    start = rng.choice([peer for peer in world.contacts if peer not in dead])
    query = Query(target, seeds_of(world, target, start), ASKER, Shape(20, 10, paths, 200, 20))
    run(world, query, rng)
    assert query.rpcs <= 200
    found = query.closest(20)
    assert not {one.peer for one in found} & dead
    named = {one for answerer in query._answered for one in world.answer(answerer, target) or []}
    living = {one.id: one for one in named if one.peer not in dead}
    if percent <= 30:  # all that anybody who answered knows of; tables that lost a third need not know of everybody
        assert found == sorted(living.values(), key=lambda one: distance(one.id, target))[:20]
        assert len(set(truth(world, target)) & set(found)) >= 15


def liars(world: Graph, share: float, target: bytes, rng: random.Random) -> Graph:
    """So many nodes name only invented ones, as near to the target as they come, who answer nothing."""
    ghosts = sorted(map(contact, range(50_000, 53_000)), key=lambda one: distance(one.id, target))[:60]
    lying = rng.sample(list(world.contacts), int(share * len(world.contacts)))
    dead = {one.peer for one in ghosts}
    return Graph(world.tables, world.contacts, dead, {peer: rng.sample(ghosts, 20) for peer in lying})


def test_who_names_ghosts_bends_no_look_up_and_keeps_it_within_its_caps() -> None:
    for number in range(6):
        rng, target = random.Random(number), key_id(number.to_bytes(4, "big"))
        world = liars(WORLD, 0.2, target, rng)
        start = next(peer for peer in world.contacts if peer not in world.lies)
        query = Query(target, seeds_of(world, target, start), ASKER, SHAPE)
        run(world, query, rng)
        assert query.rpcs <= 200
        assert {one.peer for one in query.closest(20)} >= {o.peer for o in truth(world, target, 10)}


def test_no_node_is_asked_on_two_paths_nor_twice() -> None:
    target = key_id(b"paths")
    query = Query(target, list(WORLD.contacts.values())[:40], ASKER, Shape(20, 12, 4, 200, 20))
    asked: list[PeerID] = []
    while not query.done:
        for one in query.take():
            asked.append(one.peer)
            query.on_answer(one, WORLD.tables[one.peer].neighbours(target, 20))
    assert len(asked) == len(set(asked)) == query.rpcs


def test_an_endless_chain_ends_at_the_cap_of_rounds() -> None:
    """Each node names one that is nearer: a look-up that follows would never end."""
    target = key_id(b"chain")
    chain = sorted(map(contact, range(400)), key=lambda one: -distance(one.id, target))
    query = Query(target, chain[:1], ASKER, SHAPE)
    at = {one.peer: index for index, one in enumerate(chain)}
    while not query.done:
        for one in query.take():
            query.on_answer(one, chain[at[one.peer] + 1 : at[one.peer] + 2])
    assert query.rounds == 20
    assert query.rpcs == 20


def test_a_flood_of_names_ends_at_the_cap_of_requests_and_is_not_kept() -> None:
    target = key_id(b"flood")
    pool = sorted(map(contact, range(6_000)), key=lambda one: -distance(one.id, target))
    given_out = iter(pool[10:])
    query = Query(target, pool[:10], ASKER, SHAPE)
    while not query.done:
        for one in query.take():
            query.on_answer(one, [next(given_out) for _ in range(20)])
    assert query.rpcs == 200
    assert all(len(path.heap) <= 20 * CANDIDATES_PER_NEED for path in query._paths)


def test_without_anybody_to_ask_it_is_done_at_once() -> None:
    assert Query(key_id(b"x"), [], ASKER, SHAPE).done
    me = contact(int.from_bytes(ASKER, "big"))
    query = Query(key_id(b"x"), [me], ASKER, SHAPE)
    assert query.done
    assert query.take() == []


def test_it_never_asks_itself_though_others_name_it() -> None:
    me, a = contact(int.from_bytes(ASKER, "big")), contact(1)
    query = Query(me.id, [a], ASKER, SHAPE)
    assert query.take() == [a]
    query.on_answer(a, [me])
    assert query.done
    assert query.take() == []


def test_a_slow_node_that_answers_after_all_counts() -> None:
    target = key_id(b"slow")
    near, far = sorted(map(contact, range(2)), key=lambda one: distance(one.id, target))
    query = Query(target, [near, far], ASKER, SHAPE)
    query.take()
    query.on_slow(near.peer)
    assert not query.done
    query.on_answer(near, [])
    query.on_answer(far, [])
    assert query.done
    assert query.closest(20) == [near, far]
    one = Query(target, [near], ASKER, SHAPE)
    one.take()
    one.on_slow(near.peer)
    assert not one.done, "all are slow: the network is"
    one.on_failure(near.peer)
    assert one.done


def test_answers_nobody_waits_for_change_nothing() -> None:
    a, b, c = map(contact, range(3))
    query = Query(key_id(b"x"), [a], ASKER, SHAPE)
    query.on_answer(b, [c])
    query.on_failure(c.peer)
    assert query.take() == [a]
    query.on_answer(a, [])
    query.on_answer(a, [b])
    assert query.done
    assert query.closest(20) == [a]


def test_a_far_straggler_is_not_waited_for() -> None:
    target = key_id(b"far")
    near, *rest = sorted(map(contact, range(30)), key=lambda one: distance(one.id, target))
    query = Query(target, [*rest[-3:]], ASKER, Shape(2, 3, 1, 200, 20))
    first = query.take()
    assert len(first) == 2, "only the closest that are needed"
    query.on_answer(first[0], [near, rest[0]])
    for one in query.take():
        query.on_answer(one, [])
    assert query.done
    assert query.in_flight == [first[1].peer]
