"""Iterative look-up as a pure machine: whom to ask next, and when the answer stands.

The shortlists are the package's `NodeHeap`, bounded, and with membership by id instead of by scan. A look-up asks the
closest unasked node of a shortlist while fewer than `alpha` requests are in flight, pushes what the answers name, and
drops who failed. It is done when the `need` closest of every path have answered; who is farther, though asked, is not
waited for. `need` is k for a look-up of nodes, and the read quorum for a look-up of values.

Who is slow leaves the shortlist as if it had failed, so that the dead cost a second and not a timeout each; an answer
that still comes puts it back. Slow ones are waited for only while they outnumber those that answered: then the network
is slow, and not the node.

Disjoint paths (S/Kademlia): the seeds are dealt out to `paths` shortlists, and no node is asked on two of them, so a
liar bends one path only. Caps: requests in all, and the length of a chain of referrals.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from kademlia.node import Node, NodeHeap

from dht.routing_table import Contact
from protocol.peer import PeerID

CANDIDATES_PER_NEED = 8  # a shortlist remembers so many times the nodes it needs; failures move the rest up


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of one look-up."""

    need: int
    alpha: int
    paths: int
    rpcs_max: int
    rounds_max: int


class _Shortlist(NodeHeap):  # type: ignore[misc]  # kademlia has no types
    """The closest candidates of one path. The package's own heap grows without bound and scans at each push."""

    heap: list[tuple[int, Contact]]

    def __init__(self, target: Any, need: int) -> None:  # noqa: ANN401 - a Node of the package
        super().__init__(target, need)
        self._ids: dict[bytes, None] = {}

    def push(self, nodes: list[Contact]) -> None:
        """Take candidates that are not here; the farthest fall off."""
        for node in nodes:
            if node.id not in self._ids:
                self._ids[node.id] = None
                heapq.heappush(self.heap, (self.node.distance_to(node), node))
        bound = self.maxsize * CANDIDATES_PER_NEED
        if len(self.heap) > bound:
            self.heap = heapq.nsmallest(bound, self.heap)  # ascending, so still a heap

    def put_back(self, node: Contact) -> None:
        """A candidate that was dropped counts again."""
        heapq.heappush(self.heap, (self.node.distance_to(node), node))

    def visible(self) -> list[Contact]:
        """The `need` closest that have not failed."""
        return list(self)


class Query:
    """One look-up. The owner asks whom `take` names, and reports each answer or failure exactly once."""

    def __init__(self, target: bytes, seeds: list[Contact], me: PeerID, shape: Shape) -> None:
        self.target = target
        self.rpcs = 0
        self.rounds = 0
        self._me = me
        self._shape = shape
        self._answered: dict[PeerID, Contact] = {}
        self._failed: dict[PeerID, None] = {}
        self._in_flight: dict[PeerID, int] = {}  # to the index of its path
        self._slow: dict[PeerID, int] = {}
        self._asked: dict[PeerID, int] = {}
        self._depth: dict[PeerID, int] = {contact.peer: 1 for contact in seeds}
        self._paths = [_Shortlist(Node(target), shape.need) for _ in range(shape.paths)]
        for index, path in enumerate(self._paths):
            path.push([contact for contact in seeds[index :: shape.paths] if contact.peer != me])

    @property
    def done(self) -> bool:
        """True when nothing that could change the result is awaited or left to ask."""
        if len(self._slow) > len(self._answered):
            return False
        if self._exhausted:
            return not self._in_flight
        return all(contact.peer in self._answered for path in self._paths for contact in path.visible())

    @property
    def _exhausted(self) -> bool:
        return self.rpcs >= self._shape.rpcs_max

    @property
    def in_flight(self) -> list[PeerID]:
        """Who was asked and may still answer soon."""
        return list(self._in_flight)

    def closest(self, count: int) -> list[Contact]:
        """The closest that answered, closest first."""
        place = int.from_bytes(self.target, "big")
        return heapq.nsmallest(count, self._answered.values(), key=lambda contact: contact.long_id ^ place)

    def take(self) -> list[Contact]:
        """Whom to ask now; counted as asked."""
        chosen: list[Contact] = []
        per_path = -(-self._shape.alpha // self._shape.paths)
        for index, path in enumerate(self._paths):
            free = per_path - sum(path_of == index for path_of in self._in_flight.values())
            for contact in path.visible():
                if free <= 0 or len(self._in_flight) >= self._shape.alpha or self._exhausted:
                    break
                if contact.peer not in self._asked:
                    self._ask(contact.peer, index)
                    chosen.append(contact)
                    free -= 1
        return chosen

    def _ask(self, peer: PeerID, index: int) -> None:
        self._asked[peer] = self._in_flight[peer] = index
        self.rpcs += 1
        self.rounds = max(self.rounds, self._depth[peer])

    def on_answer(self, contact: Contact, closer: list[Contact]) -> None:
        """A node answered and named others, at most as many as a frame carries."""
        index = self._in_flight.pop(contact.peer, None)
        if index is None:
            index = self._slow.pop(contact.peer, None)
            if index is None:
                return
            self._paths[index].put_back(contact)
        self._answered[contact.peer] = contact
        depth = self._depth[contact.peer] + 1
        if depth > self._shape.rounds_max:
            return
        fresh = [other for other in closer if other.peer != self._me and other.peer not in self._failed]
        for other in fresh:
            self._depth.setdefault(other.peer, depth)
        self._paths[index].push(fresh)

    def on_failure(self, peer: PeerID) -> None:
        """A node did not answer, or not in order: nobody waits for it, and others move up."""
        if self._slow.pop(peer, None) is None:
            if self._in_flight.pop(peer, None) is None:
                return
            self._pass_over(peer)
        self._failed[peer] = None

    def on_slow(self, peer: PeerID) -> None:
        """A node takes long: others move up, and its answer is still welcome."""
        index = self._in_flight.pop(peer, None)
        if index is not None:
            self._slow[peer] = index
            self._pass_over(peer)

    def _pass_over(self, peer: PeerID) -> None:
        for path in self._paths:
            path.heap = [(far, contact) for far, contact in path.heap if contact.peer != peer]
            heapq.heapify(path.heap)
