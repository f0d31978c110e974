"""Who is known, kept as k-buckets by XOR distance: `kademlia` 2.2.3 with its oddities put right (libp2p.md §8).

Buckets, splitting and the replacement cache are the package's. What it leaves wrong or open is overridden here:

  find_neighbors   walks buckets left and right, not in XOR order; recall is .82-.85 at 30-100 contacts [measured].
                   `neighbours` is exact
  full bucket      it schedules a ping on an event loop that is not there. `offer` returns the head to ping instead:
                   alive, it keeps its place (`offer` it again); dead, `remove` it and a replacement moves up
  time             `time.monotonic` becomes the time of the last call
  boundaries       an id equal to a bucket's upper end was filed one bucket too high
  own id           was taken as a contact, as were ids of any length
  exclusion        compared ip and port: contacts carry their peer id in `ip`

Diversity: at most `contacts_per_subnet_max` public contacts of one /24 (IPv6: /48) stand in one bucket, so that one
network cannot surround a key; private and loopback addresses are exempt. A replacement moves up under the same rule.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kademlia.node import Node
from kademlia.routing import KBucket, RoutingTable

from dht.config import DhtConfig
from dht.key import ID_BYTES, node_id
from protocol.capability import PeerValue, SignedRecord
from protocol.peer import Multiaddr, PeerID

_SPACE: Final = (0, 2 ** (8 * ID_BYTES))


class Contact(Node):  # type: ignore[misc]  # kademlia has no types
    """A serving node, as its own signed peer record describes it."""

    id: bytes
    long_id: int

    def __init__(self, record: SignedRecord) -> None:
        self.peer = PeerID(record.publisher)
        super().__init__(node_id(self.peer), self.peer, None)
        self.record = record
        value = record.value
        assert isinstance(value, PeerValue), "a contact is made of a peer record"
        self.addrs = tuple(text for text in value.addrs if Multiaddr.parse(text).dialable)
        self.subnets = _subnets(self.addrs)


def _subnets(addrs: tuple[str, ...]) -> tuple[str, ...]:
    """The public networks that addresses lie in, each once."""
    found: dict[str, None] = {}
    for text in addrs:
        ip = ipaddress.ip_address(Multiaddr.parse(text).host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if ip.is_global:
            found[str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))] = None
    return tuple(found)


class Bucket(KBucket):  # type: ignore[misc]  # kademlia has no types
    """A k-bucket with an injected clock and the rule of diversity."""

    nodes: OrderedDict[bytes, Contact]
    replacement_nodes: OrderedDict[bytes, Contact]
    range: tuple[int, int]
    last_updated: int

    def __init__(self, span: tuple[int, int], config: DhtConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        super().__init__(*span, config.k, config.replacements_per_bucket)

    def touch_last_updated(self) -> None:
        """Something was heard of this part of the space."""
        self.last_updated = self._clock()

    def split(self) -> tuple[Bucket, Bucket]:
        """Two halves that share the contacts; the upper ends belong to the lower half, as in the package."""
        low, high = self.range
        middle = (low + high) // 2
        halves = (
            Bucket((low, middle), self._config, self._clock),
            Bucket((middle + 1, high), self._config, self._clock),
        )
        for node in [*self.nodes.values(), *self.replacement_nodes.values()]:
            halves[node.long_id > middle].add_node(node)
        return halves

    def crowded(self, contact: Contact) -> bool:
        """True if enough others of one of its public networks are here."""
        bound = self._config.contacts_per_subnet_max
        if not bound:
            return False
        others = [node for node in self.nodes.values() if node.id != contact.id]
        return any(sum(subnet in other.subnets for other in others) >= bound for subnet in contact.subnets)

    def add_node(self, node: Contact) -> bool:
        """As the package's, but a contact is never in both lists, and a crowded one is in neither."""
        if self.crowded(node):
            self.nodes.pop(node.id, None)  # it moved into a network that is full here
            self.replacement_nodes.pop(node.id, None)
            return True
        added: bool = super().add_node(node)
        if added:
            self.replacement_nodes.pop(node.id, None)
        return added

    def remove_node(self, node: Contact) -> None:
        """Drop a contact; the newest replacement that fits moves up."""
        self.replacement_nodes.pop(node.id, None)
        if self.nodes.pop(node.id, None) is None:
            return
        for other in reversed(list(self.replacement_nodes.values())):
            if not self.crowded(other):
                del self.replacement_nodes[other.id]
                self.nodes[other.id] = other
                return


@dataclass(frozen=True, slots=True)
class Offer:
    """What became of a contact. `ping`: its bucket is full, and this is who was heard of longest ago."""

    is_new: bool
    ping: Contact | None = None


class Table(RoutingTable):  # type: ignore[misc]  # kademlia has no types
    """The contacts of one node."""

    buckets: list[Bucket]
    node: Any  # the own place, as the package calls it

    def __init__(self, me: PeerID, config: DhtConfig) -> None:
        self._config = config
        self._now_us = 0
        self._flat: dict[int, Contact] | None = None  # all contacts by place; made anew after a change
        super().__init__(None, config.k, Node(node_id(me), me))

    @property
    def place(self) -> bytes:
        """Where this node stands."""
        place: bytes = self.node.id
        return place

    def flush(self) -> None:
        """Forget everybody."""
        self._flat = None
        self.buckets = [Bucket(_SPACE, self._config, self._clock)]

    def _clock(self) -> int:
        return self._now_us

    def __len__(self) -> int:
        return len(self._by_place())

    def contacts(self) -> list[Contact]:
        """Everybody, bucket by bucket, longest unheard first."""
        return [node for bucket in self.buckets for node in bucket.nodes.values()]

    def get(self, peer: PeerID) -> Contact | None:
        """The contact of a peer."""
        place = node_id(peer)
        return self.buckets[self._index(int.from_bytes(place, "big"))].nodes.get(place)

    def get_bucket_for(self, node: Any) -> int:  # noqa: ANN401 - the package's own signature
        """Index of the bucket in whose range a place lies."""
        return self._index(node.long_id)

    def _index(self, place: int) -> int:
        return next(index for index, bucket in enumerate(self.buckets) if place <= bucket.range[1])

    def offer(self, contact: Contact, now_us: int) -> Offer:
        """Something was heard from a contact: it is taken, renewed, or put among the replacements.

        The newest signed record of a peer is kept, whoever brought which.
        """
        self._now_us = now_us
        if len(contact.id) != ID_BYTES or contact.id == self.node.id or not contact.addrs:
            return Offer(is_new=False)
        while True:
            index = self.get_bucket_for(contact)
            bucket = self.buckets[index]
            bucket.touch_last_updated()
            old = bucket.nodes.get(contact.id)
            if old is not None and old.record.version >= contact.record.version:
                bucket.nodes.move_to_end(contact.id)
                return Offer(is_new=False)
            if bucket.add_node(contact):
                self._flat = None
                return Offer(is_new=old is None and contact.id in bucket.nodes)
            if not self._may_split(bucket):
                return Offer(is_new=False, ping=bucket.head())
            self.split_bucket(index)
            self._flat = None

    def _may_split(self, bucket: Bucket) -> bool:
        """Section 4.2 of the paper, b = 5: around the own place, and where the depth is no multiple of five."""
        if len(self.buckets) >= self._config.buckets_max:
            return False
        return bool(bucket.has_in_range(self.node)) or bucket.depth() % 5 != 0

    def remove(self, peer: PeerID) -> bool:
        """Forget a peer; True if it was a contact."""
        found = self.get(peer)
        self._flat = None
        place = Node(node_id(peer), peer)
        self.buckets[self.get_bucket_for(place)].remove_node(place)
        return found is not None

    def neighbours(self, target: bytes, count: int, exclude: PeerID | None = None) -> list[Contact]:
        """The contacts closest to a place, closest first: exact."""
        place = int.from_bytes(target, "big")
        known = {far ^ place: node for far, node in self._by_place().items()}  # ids differ, so distances do
        if exclude is not None:
            known.pop(int.from_bytes(node_id(exclude), "big") ^ place, None)
        return [known[far] for far in sorted(known)[:count]]  # below 2,000 contacts faster than a heap

    def closer_than_me(self, target: bytes) -> int:
        """How many contacts are closer to a place than this node."""
        place = int.from_bytes(target, "big")
        mine = self.node.long_id ^ place
        return len([None for far in self._by_place() if far ^ place < mine])

    def _by_place(self) -> dict[int, Contact]:
        if self._flat is None:
            self._flat = {node.long_id: node for node in self.contacts()}
        return self._flat

    def lonely(self, now_us: int) -> list[Bucket]:
        """Buckets of which nothing was heard for long, longest first."""
        found = [b for b in self.buckets if now_us - b.last_updated >= self._config.lonely_after_us]
        return sorted(found, key=lambda bucket: (bucket.last_updated, bucket.range))
