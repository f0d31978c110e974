"""Disjoint paths, as open swarms look up (replication.md §9): all is found, and a liar bends one path only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dht import events as e
from dht.config import DhtConfig
from dht.key import distance, key_id, node_id
from protocol import messages as m
from protocol.machine import Received
from protocol.peer import PeerID
from tests.dht.dht_world import Node, World, swarm

OPEN = DhtConfig(paths=4)


@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_with_four_paths_everything_is_found_within_the_caps_however_few_nodes_there_are(count: int) -> None:
    world = swarm(count, OPEN)
    nodes = list(world.nodes.values())
    record = world.agent(nodes[0], "a", b"\x01")
    put = world.answer(nodes[0], lambda r: e.Put(r, record))
    assert (put.confirmed, put.error) == (min(count, 20), None)
    for node in nodes:
        done = world.answer(node, lambda r: e.Get(r, record.key))
        assert done.record == record
        assert done.cost.rpcs <= min(OPEN.rpcs_max, count - 1)
    place = key_id(b"key")
    for node in nodes[:10]:
        want = sorted((other.peer for other in nodes if other is not node), key=lambda p: distance(node_id(p), place))
        done = world.answer(node, lambda r: e.Lookup(r, b"key"))
        assert list(done.peers) == want[:20]


def asked_by(world: World, node: Node, what: Callable[[], object]) -> list[PeerID]:
    """Whom a node asks in the course of something."""
    asked: list[PeerID] = []

    def note(source: PeerID, target: PeerID, frame: m.Frame) -> bool:
        if source == node.peer and isinstance(frame, m.FindNode | m.FindValue):
            asked.append(target)
        return False

    world.cut = note
    what()
    return asked


def test_with_four_paths_nobody_is_asked_twice() -> None:
    world = swarm(40, OPEN)
    node = next(iter(world.nodes.values()))
    asked = asked_by(world, node, lambda: world.answer(node, lambda r: e.Lookup(r, b"key")))
    assert len(asked) == len(set(asked)) >= 20


def test_liars_that_stand_closest_and_name_each_other_alone_hide_a_record_from_nobody() -> None:
    """Half of the holders of a key hold nothing any more."""
    world = swarm(40, DhtConfig(paths=4, k=8))
    nodes = list(world.nodes.values())
    record = world.agent(nodes[0], "a", b"\x01")
    assert world.answer(nodes[0], lambda r: e.Put(r, record)).error is None
    place = key_id(record.key)
    liar, *friends = sorted(nodes, key=lambda node: distance(node_id(node.peer), place))[:4]
    wires = tuple(friend.dht._own_peer.wire for friend in friends if friend.dht._own_peer is not None)
    for bad in (liar, *friends):
        bad.dht.store.clear()

        def lie(event: object, now_us: int, bad: Node = bad, honest: Callable[..., object] = bad.dht.handle) -> object:
            match event:
                case Received(peer, m.FindValue(req)):
                    world._send(bad, world.nodes[peer], m.FoundValue(req, (), wires))
                    return []
                case _:
                    return honest(event, now_us)

        bad.dht.handle = lie  # type: ignore[method-assign, assignment]
    for node in nodes:
        if node not in (liar, *friends):
            assert world.answer(node, lambda r: e.Get(r, record.key)).record == record
