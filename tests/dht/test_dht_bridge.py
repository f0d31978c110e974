"""What membership says of a peer reaches the routing table: the dead are evicted at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dht.config import DhtConfig
from gossip.events import Linked, MemberDown, MemberUp, Unlinked
from node.dht_bridge import DhtBridge
from protocol import versions
from protocol.clock import SwarmClock
from protocol.machine import Boot, Received
from protocol.messages import Introduce
from protocol.peer import PeerID
from tests.dht.dht_world import WALL_MS, peer_wire, terms
from tests.gossip_world import hello
from tests.strategies import keypair

ME = PeerID(keypair("bridge").public)
KEYS = keypair("bridged")
PEER = PeerID(KEYS.public)


@pytest.fixture
def bridge() -> DhtBridge:
    """With one contact, over a link."""
    made = DhtBridge(ME, SwarmClock(WALL_MS * 1000), DhtConfig(), random.Random(1), terms=terms(1))
    made.handle(Boot(1, WALL_MS * 1000, clean=True), 0)
    meet(made)
    return made


def meet(bridge: DhtBridge) -> None:
    bridge.handle(Linked(PEER, hello(KEYS, features=versions.FEATURES)), 0)
    bridge.handle(Received(PEER, Introduce(peer_wire(KEYS, ("/ip4/10.0.0.1/tcp/1",)))), 0)
    assert is_contact(bridge)


def is_contact(bridge: DhtBridge) -> bool:
    return bridge.dht.table.get(PEER) is not None


@pytest.mark.parametrize("why", ["link lost", "no answer", "suspected by oVg9gbaR", "left", "silent"])
def test_a_member_that_is_down_and_not_linked_is_evicted_at_once_and_back_when_heard(
    bridge: DhtBridge, why: str
) -> None:
    bridge.handle(Unlinked(PEER, in_order=True), 0)
    assert is_contact(bridge), "it was let go, and is as good as before"
    bridge.handle(MemberDown(PEER, why), 0)
    assert not is_contact(bridge)
    bridge.handle(MemberUp(PEER), 0)
    meet(bridge)


def test_a_linked_peer_stays_while_its_link_does(bridge: DhtBridge) -> None:
    bridge.handle(MemberDown(PEER, "suspected by oVg9gbaR"), 0)
    assert is_contact(bridge)
    bridge.handle(Unlinked(PEER, in_order=False), 0)
    assert not is_contact(bridge)


@pytest.mark.parametrize(
    ("news", "stays"),
    [
        ([lambda: MemberDown(PEER, "no answer")], False),
        ([lambda: MemberDown(PEER, "no answer"), lambda: MemberUp(PEER)], True),
        ([], True),
    ],
)
def test_a_link_that_is_let_go_in_order_keeps_whom_membership_has_up(
    bridge: DhtBridge, news: list[Callable[[], object]], *, stays: bool
) -> None:
    for event in news:
        bridge.handle(event(), 0)
    bridge.handle(Unlinked(PEER, in_order=True), 0)
    assert is_contact(bridge) == stays


def test_news_of_who_is_no_contact_is_nothing(bridge: DhtBridge) -> None:
    stranger = PeerID(keypair("bridge stranger").public)
    before = bridge.dht.status()
    for event in (MemberDown(stranger, "dead"), MemberUp(stranger), Unlinked(stranger, in_order=False)):
        assert bridge.handle(event, 0) == []
    assert bridge.dht.status() == before
