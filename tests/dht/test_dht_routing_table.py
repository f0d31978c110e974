"""The routing table against brute force: exact neighbours, every id in its bucket, bounds, diversity."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kademlia.node import Node
from kademlia.routing import RoutingTable

from dht.config import DhtConfig
from dht.key import ID_BYTES, distance, key_id, node_id, random_id
from dht.routing_table import Contact, Table
from protocol.capability import PeerValue, SignedRecord
from protocol.peer import PeerID
from tests.dht.dht_world import WALL_MS, peer_wire, read
from tests.strategies import keypair

ME = PeerID(keypair("table owner").public)
LAB = DhtConfig(contacts_per_subnet_max=0)
SMALL = DhtConfig(k=3, contacts_per_subnet_max=2)


def contact(name: int | bytes, addr: str = "/ip4/10.0.0.1/tcp/1", *, seq: int = 1) -> Contact:
    """A contact whose record is not signed: the table takes verified ones and looks at no signature."""
    peer = name if isinstance(name, bytes) else name.to_bytes(32, "big")
    wire = peer + repr((addr, seq)).encode()
    value = PeerValue(addrs=(addr,))
    return Contact(SignedRecord(bytes(20), "peer", value, peer, seq, WALL_MS, WALL_MS + 1000, wire, wire))


def at_place(place: int) -> Contact:
    """A contact that stands at a place of our choice."""
    found = contact(place)
    found.id = place.to_bytes(ID_BYTES, "big")
    found.long_id = place
    return found


def table_of(count: int, config: DhtConfig = LAB) -> tuple[Table, list[Contact]]:
    table = Table(ME, config)
    contacts = [contact(number) for number in range(count)]
    for one in contacts:
        table.offer(one, 0)
    return table, contacts


@pytest.mark.parametrize("count", [1, 30, 100, 600])
def test_neighbours_are_those_of_brute_force(count: int) -> None:
    table, _ = table_of(count)
    known = table.contacts()
    for number in range(50):
        target = key_id(number.to_bytes(4, "big"))
        want = sorted(known, key=lambda one: distance(one.id, target))
        assert table.neighbours(target, 20) == want[:20]
        without = [one for one in want if one is not want[0]]
        assert table.neighbours(target, 20, exclude=want[0].peer) == without[:20]
        mine = distance(node_id(ME), target)
        assert table.closer_than_me(target) == sum(distance(one.id, target) < mine for one in known)


def test_the_packages_own_neighbours_are_not_exact() -> None:
    """Why `neighbours` is our own (P21). If this fails the package was repaired: measure again."""
    theirs = RoutingTable(None, 20, Node(node_id(ME), ME))
    contacts = [contact(number) for number in range(100)]
    for one in contacts:
        index = theirs.get_bucket_for(one)
        while not theirs.buckets[index].add_node(one) and theirs.buckets[index].has_in_range(theirs.node):
            theirs.split_bucket(index)
            index = theirs.get_bucket_for(one)
    known = [node for bucket in theirs.buckets for node in bucket.get_nodes()]
    found = exact = 0
    for number in range(50):
        target = Node(key_id(number.to_bytes(4, "big")))
        want = {n.id for n in sorted(known, key=target.distance_to)[:20]}
        found += len(want & {n.id for n in theirs.find_neighbors(target, 20)})
        exact += len(want)
    assert found / exact < 0.97


@given(st.lists(st.integers(0, 2**160 - 1), unique=True, min_size=1, max_size=60), st.integers(1, 4))
def test_every_contact_is_in_the_bucket_of_its_range_and_nowhere_else(places: list[int], k: int) -> None:
    table = Table(ME, DhtConfig(k=k, contacts_per_subnet_max=0))
    for place in places:
        table.offer(at_place(place), 0)
    low = 0
    for bucket in table.buckets:
        assert bucket.range[0] == low
        low = bucket.range[1] + 1
        for one in [*bucket.nodes.values(), *bucket.replacement_nodes.values()]:
            assert bucket.range[0] <= one.long_id <= bucket.range[1]
            assert table.buckets[table.get_bucket_for(one)] is bucket
        assert not bucket.nodes.keys() & bucket.replacement_nodes.keys()
    assert low >= 2**160


def test_an_id_at_the_upper_end_of_a_bucket_belongs_to_it() -> None:
    table = Table(ME, DhtConfig(k=2, contacts_per_subnet_max=0))
    for number in range(40):
        table.offer(contact(number), 0)
    assert len(table.buckets) > 2
    for bucket in table.buckets[:-1]:
        edge = at_place(bucket.range[1])
        assert table.buckets[table.get_bucket_for(edge)] is bucket


def test_the_own_id_other_lengths_and_no_address_are_refused() -> None:
    table = Table(ME, LAB)
    short, blind = contact(1), contact(3, "/ip4/0.0.0.0/tcp/1")
    short.id = short.id[:19]
    for one in (contact(ME), short, blind):
        assert not table.offer(one, 0).is_new
    assert len(table) == 0


def test_a_full_bucket_asks_for_a_ping_of_its_head_and_a_dead_head_gives_way() -> None:
    table, _ = table_of(400)
    full = next(one for one in map(contact, range(1000, 2000)) if table.offer(one, 1).ping is not None)
    bucket = table.buckets[table.get_bucket_for(full)]
    head = bucket.head()
    assert table.offer(full, 2).ping is head
    assert table.get(full.peer) is None
    table.offer(head, 3)  # it is alive
    assert bucket.head() is not head
    dead = bucket.head()
    assert table.remove(dead.peer)
    assert table.get(dead.peer) is None
    assert table.get(full.peer) is full, "the replacement heard last moves up"
    assert not table.remove(dead.peer)


def test_time_is_that_of_the_calls() -> None:
    table = Table(ME, DhtConfig(lonely_after_us=100, contacts_per_subnet_max=0))
    for number in range(60):
        table.offer(contact(number), 1000)
    assert table.lonely(1099) == []
    assert table.lonely(1100) == table.buckets, "never heard of counts from the start, split or not"
    one = table.contacts()[0]
    table.offer(one, 1050)
    assert table.buckets[table.get_bucket_for(one)] not in table.lonely(1100)


@given(st.integers(0, 2**32))
def test_a_random_id_of_a_bucket_lies_in_it(seed: int) -> None:
    table, _ = table_of(60)
    for bucket in table.buckets:
        place = int.from_bytes(random_id(*bucket.range, random.Random(seed)), "big")
        assert bucket.range[0] <= place <= bucket.range[1]


def test_the_newest_record_of_a_contact_is_kept_whoever_brought_which() -> None:
    table = Table(ME, LAB)
    old, new = contact(1, seq=1), contact(1, "/ip4/10.0.0.2/tcp/2", seq=2)
    for order in ((old, new), (new, old)):
        for one in order:
            table.offer(one, 0)
        kept = table.get(old.peer)
        assert kept is not None
        assert kept.addrs == new.addrs


def test_the_table_is_bounded() -> None:
    table, _ = table_of(3_000, DhtConfig(buckets_max=6, contacts_per_subnet_max=0))
    assert len(table.buckets) == 6
    assert len(table) <= 6 * 20
    table, _ = table_of(3_000)
    assert all(len(bucket.replacement_nodes) <= 20 for bucket in table.buckets)
    assert all(len(bucket) <= 20 for bucket in table.buckets)


def subnet_counts(table: Table) -> int:
    """The most contacts of one public network in one bucket."""
    found = (Counter(net for one in bucket.nodes.values() for net in one.subnets) for bucket in table.buckets)
    return max((max(counts.values(), default=0) for counts in found), default=0)


@pytest.mark.parametrize(
    ("addr", "stays"),
    [("/ip4/8.8.8.{}/tcp/1", 2), ("/ip6/2001:4860::{}/tcp/1", 2), ("/ip6/::ffff:8.8.8.{}/tcp/1", 2),
     ("/ip4/10.0.0.{}/tcp/1", 9), ("/ip4/127.0.0.{}/tcp/1", 9), ("/ip6/fd00::{}/tcp/1", 9)],
)  # fmt: skip
def test_one_public_network_fills_no_bucket(addr: str, stays: int) -> None:
    table = Table(ME, DhtConfig())
    for number in range(1, 10):
        table.offer(contact(number, addr.format(number)), 0)
    assert len(table) == stays
    lab = Table(ME, LAB)
    for number in range(1, 10):
        lab.offer(contact(number, addr.format(number)), 0)
    assert len(lab) == 9


def test_a_contact_that_moves_into_a_full_network_is_dropped() -> None:
    table = Table(ME, DhtConfig())
    for number, addr in enumerate(("/ip4/8.8.8.1/tcp/1", "/ip4/8.8.8.2/tcp/1", "/ip4/9.9.9.9/tcp/1")):
        assert table.offer(contact(number, addr), 0).is_new
    moved = contact(2, "/ip4/8.8.8.3/tcp/1", seq=2)
    assert not table.offer(moved, 0).is_new
    assert table.get(moved.peer) is None


def test_one_network_is_one_whatever_the_form_of_its_addresses() -> None:
    table = Table(ME, DhtConfig())
    for number, addr in enumerate(("/ip4/8.8.8.1/tcp/1", "/ip6/::ffff:8.8.8.2/tcp/1", "/ip4/8.8.8.3/tcp/1")):
        table.offer(contact(number, addr), 0)
    assert len(table) == 2


def test_no_replacement_moves_up_into_a_network_that_has_filled_meanwhile() -> None:
    table = Table(ME, DhtConfig(k=3, buckets_max=1))
    for number, net in enumerate((1, 2, 3, 4, 1)):
        table.offer(contact(number, f"/ip4/8.8.{net}.{number}/tcp/1"), 0)
    assert len(table) == 3
    table.offer(contact(1, "/ip4/8.8.1.9/tcp/1", seq=2), 0)
    table.remove(contact(2).peer)
    assert sorted(one.peer[-1] for one in table.contacts()) == [0, 1, 3], "the second newest, of another network"


def test_a_contact_reads_its_addresses_from_its_signed_record() -> None:
    keys = keypair("signed contact")
    one = Contact(read(peer_wire(keys, ("/ip4/0.0.0.0/tcp/1", "/ip4/1.2.3.4/tcp/5", "/ip4/1.2.3.9/tcp/0"))))
    assert one.addrs == ("/ip4/1.2.3.4/tcp/5",)
    assert one.subnets == ("1.2.3.0/24",)
    assert (one.id, one.peer) == (node_id(keys.public), keys.public)


class TableMachine(RuleBasedStateMachine):
    """Any order of coming, speaking, moving and leaving keeps the invariants."""

    @initialize(k=st.integers(1, 4))
    def begin(self, k: int) -> None:
        self.table = Table(ME, DhtConfig(k=k, buckets_max=8))
        self.now = 0

    @rule(name=st.integers(0, 60), net=st.integers(0, 3), seq=st.integers(1, 3), private=st.booleans())
    def speaks(self, name: int, net: int, seq: int, *, private: bool) -> None:
        self.now += 1
        addr = f"/ip4/{'10.0' if private else '8.8'}.{net}.{name + 1}/tcp/1"
        offer = self.table.offer(contact(name, addr, seq=seq), self.now)
        if offer.ping is not None:
            assert self.table.get(offer.ping.peer) is offer.ping
            assert self.table.get(PeerID(name.to_bytes(32, "big"))) is None

    @rule(name=st.integers(0, 60))
    def leaves(self, name: int) -> None:
        peer = PeerID(name.to_bytes(32, "big"))
        was_here = self.table.get(peer) is not None
        assert self.table.remove(peer) == was_here
        assert self.table.get(peer) is None
        for bucket in self.table.buckets:
            assert node_id(peer) not in bucket.replacement_nodes

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "table"):
            return
        assert subnet_counts(self.table) <= 2
        for bucket in self.table.buckets:
            assert len(bucket.nodes) <= bucket.ksize
            assert len(bucket.replacement_nodes) <= bucket.ksize
        known = self.table.contacts()
        assert len({one.id for one in known}) == len(known)
        target = key_id(self.now.to_bytes(4, "big"))
        assert self.table.neighbours(target, 5) == sorted(known, key=lambda o: distance(o.id, target))[:5]


TestTableMachine: Any = TableMachine.TestCase
