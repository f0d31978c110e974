"""Nodes made of the DHT machine alone, in virtual time.

A link opens when a dial reaches a living node, and carries frames with a fixed latency per pair. Every
`CHECK_EVERY`-th frame is encoded, checked against its lane and decoded again, as on a wire. A killed node answers
nothing; who is linked to it hears of that only when the world says so. Pings are answered by the world, as the links
of a whole node would.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dht import events as e
from dht.behaviour import Dht
from dht.config import DhtConfig
from dht.terms import Terms
from protocol.capability import AgentValue, PeerValue, SignedRecord, Value, make_record
from protocol.clock import SwarmClock
from protocol.identity import KeyPair, verify_raw
from protocol.machine import (
    Boot,
    CancelTimer,
    Count,
    Dial,
    DialFailed,
    Effect,
    Local,
    Received,
    Send,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import LANE_OF, Frame, Ping, Pong, decode_frame, encode_frame
from protocol.peer import PeerID
from tests.strategies import keypair

WALL_MS = 1_700_000_000_000
CHECK_EVERY = 64
DIAL_REFUSED_US = 700_000  # a refused loopback dial (libp2p.md §5)
SECOND = 1_000_000

ALWAYS = (0, 2**48)


class AnyLength(Terms):
    """Takes vectors of any length of its encoder: for tests where they mean nothing."""

    __slots__ = ()

    def fits(self, record: SignedRecord) -> bool:
        value = record.value
        return not isinstance(value, AgentValue) or value.vector is None or value.encoder == self.encoder


def terms(dim: int | None = None, **changes: Any) -> Terms:
    """A swarm that admits everybody, with the encoder `enc`; of any length where none is said."""
    fields = {"verify": verify, "admitted": lambda _key: True, "admission": lambda _key, _chain: ALWAYS, **changes}
    return AnyLength("enc", 0, **fields) if dim is None else Terms("enc", dim, **fields)


verify = lru_cache(maxsize=100_000)(verify_raw)


def peer_wire(keys: KeyPair, addrs: tuple[str, ...], *, seq: int = WALL_MS, issued_ms: int = WALL_MS) -> bytes:
    return make_record(keys, PeerValue(addrs=addrs), seq=seq, issued_ms=issued_ms)


def read(wire: bytes) -> SignedRecord:
    return SignedRecord.from_wire(wire, verify)


@dataclass
class Node:
    """One machine with what the world knows about it."""

    keys: KeyPair
    dht: Dht
    addrs: tuple[str, ...]
    alive: bool = True
    linked: dict[PeerID, None] = field(default_factory=dict)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    done: dict[int, Any] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)

    @property
    def peer(self) -> PeerID:
        return PeerID(self.keys.public)


class World:
    """The network."""

    def __init__(self, seed: int = 0, *, dim: int | None = None) -> None:
        self.terms = terms(dim)
        self.now_us = 0
        self.rng = random.Random(seed)
        self.nodes: dict[PeerID, Node] = {}
        self.counts: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.cut: Callable[[PeerID, PeerID, Frame], bool] = lambda _source, _target, _frame: False
        self._latency: dict[tuple[PeerID, PeerID], int] = {}
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._requests = itertools.count(1)
        self._frames = 0

    # ---- people

    def add(self, name: str, config: DhtConfig | None = None, *, addrs: tuple[str, ...] | None = None) -> Node:
        keys = keypair(name)
        number = len(self.nodes)
        addrs = (f"/ip4/10.0.{number // 250}.{number % 250 + 1}/tcp/4001",) if addrs is None else addrs
        node = Node(keys, self._machine(keys, config or DhtConfig()), addrs)
        self.nodes[node.peer] = node
        self._boot(node)
        return node

    def _machine(self, keys: KeyPair, config: DhtConfig) -> Dht:
        seed = self.rng.randbytes(16)
        return Dht(PeerID(keys.public), SwarmClock(WALL_MS * 1000), config, random.Random(seed), terms=self.terms)

    def _boot(self, node: Node) -> None:
        self.give(node, Boot(1, WALL_MS * 1000, clean=True))
        now_ms = WALL_MS + self.now_us // 1000
        self.give(node, e.OwnRecord(read(peer_wire(node.keys, node.addrs, seq=now_ms, issued_ms=now_ms))))

    def restart(self, node: Node) -> None:
        """A killed node comes back with nothing but its key."""
        node.dht = self._machine(node.keys, node.dht._config)
        node.alive = True
        node.linked.clear()
        self._boot(node)

    def agent(
        self, node: Node, agent: str, vector: bytes, *, seq: int | None = None, books: tuple[bytes, ...] = ()
    ) -> SignedRecord:
        value = AgentValue(agent=agent, roles=("r",), vector=vector, encoder="enc", codebooks=books)
        return self.sign(node, value, seq=seq)

    def sign(self, node: Node, value: Value, *, seq: int | None = None, ttl_ms: int = 6 * 3_600_000) -> SignedRecord:
        now_ms = WALL_MS + self.now_us // 1000
        return read(make_record(node.keys, value, seq=now_ms if seq is None else seq, issued_ms=now_ms, ttl_ms=ttl_ms))

    # ---- links

    def link(self, one: Node, other: Node) -> None:
        if one is other or other.peer in one.linked or not (one.alive and other.alive):
            return
        one.linked[other.peer] = None
        other.linked[one.peer] = None
        self.give(one, e.PeerSeen(other.peer))
        self.give(other, e.PeerSeen(one.peer))

    def unlink(self, one: Node, other: Node, *, in_order: bool = False) -> None:
        for node, gone in ((one, other), (other, one)):
            if gone.peer in node.linked:
                del node.linked[gone.peer]
                if node.alive:
                    self.give(node, e.PeerGone(gone.peer, in_order))

    def kill(self, nodes: list[Node]) -> None:
        """They answer nothing any more; nobody is told."""
        for node in nodes:
            node.alive = False
            node.timers.clear()

    def notice(self, nodes: list[Node]) -> None:
        """Everybody hears that the links to these are gone."""
        for node in nodes:
            for peer in list(node.linked):
                self.unlink(self.nodes[peer], node)

    # ---- time

    def at(self, when_us: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_us, next(self._order), what))

    def run(self, seconds: float) -> None:
        end = self.now_us + int(seconds * SECOND)
        while self._heap and self._heap[0][0] <= end:
            self.now_us, _, what = heapq.heappop(self._heap)
            what()
        self.now_us = end

    def until(self, true: Callable[[], bool], seconds: float = 120) -> None:
        end = self.now_us + int(seconds * SECOND)
        while not true():
            assert self._heap, "nothing will happen any more"
            assert self._heap[0][0] <= end, "not within the time"
            self.now_us, _, what = heapq.heappop(self._heap)
            what()

    # ---- steps

    def give(self, node: Node, event: object) -> None:
        self.apply(node, node.dht.handle(event, self.now_us))

    def apply(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer, lane, frame, _):
                    assert LANE_OF[type(frame)] is lane
                    self._send(node, self.nodes[peer], frame)
                case Dial(info):
                    assert info.addrs == self.nodes[info.peer].addrs, "dialled what its owner did not sign"
                    self._dial(node, self.nodes[info.peer])
                case SetTimer(key, at_us):
                    node.timers[key] = at_us
                    self.at(at_us, lambda node=node, key=key, at_us=at_us: self._fire(node, key, at_us))
                case CancelTimer(key):
                    node.timers.pop(key, None)
                case Local(event):
                    node.done[event.request] = event  # type: ignore[attr-defined]
                case Count(name, n):
                    self.counts[name] += n
                case _:
                    raise AssertionError(effect)

    def _fire(self, node: Node, key: TimerKey, at_us: int) -> None:
        if node.alive and node.timers.get(key) == at_us:
            del node.timers[key]
            self.give(node, TimerFired(key))

    def latency(self, one: PeerID, other: PeerID) -> int:
        pair = (min(one, other), max(one, other))
        if pair not in self._latency:
            self._latency[pair] = self.rng.randrange(5_000, 40_000)
        return self._latency[pair]

    def _send(self, source: Node, target: Node, frame: Frame) -> None:
        self.sent[type(frame).__name__] += 1
        self._frames += 1
        if self._frames % CHECK_EVERY == 0:
            lane = LANE_OF[type(frame)]
            assert decode_frame(encode_frame(frame), lane) == frame
        if target.peer in source.linked and not self.cut(source.peer, target.peer, frame):
            self.at(self.now_us + self.latency(source.peer, target.peer), lambda: self._arrive(source, target, frame))

    def _arrive(self, source: Node, target: Node, frame: Frame) -> None:
        if not target.alive or source.peer not in target.linked:
            return
        target.served[type(frame).__name__] += 1
        if isinstance(frame, Ping):
            self._send(target, source, Pong(frame.req, frame.wall_ms))
        else:
            self.give(target, Received(source.peer, frame))

    def _dial(self, node: Node, target: Node) -> None:
        def answer() -> None:
            if target.alive:
                self.link(node, target)
            elif node.alive:
                self.give(node, DialFailed(target.peer, "refused"))

        wait = 3 * self.latency(node.peer, target.peer) if target.alive else DIAL_REFUSED_US
        self.at(self.now_us + wait, answer)

    # ---- commands

    def ask(self, node: Node, make: Callable[[int], e.Command]) -> int:
        request = next(self._requests)
        self.give(node, make(request))
        return request

    def answer(self, node: Node, make: Callable[[int], e.Command], seconds: float = 60) -> Any:
        request = self.ask(node, make)
        self.until(lambda: request in node.done, seconds)
        return node.done[request]


def swarm(
    count: int, config: DhtConfig | None = None, *, seed: int = 0, every_us: int = 50_000, dim: int | None = None
) -> World:
    """So many serving nodes, each of which joined through one of those before it, settled."""
    world = World(seed, dim=dim)
    nodes: deque[Node] = deque()
    for number in range(count):
        world.now_us = max(world.now_us, 0)
        node = world.add(f"dht node {number}", config)
        if nodes:
            world.link(node, world.rng.choice(list(nodes)))
        nodes.append(node)
        world.run(every_us / SECOND)
    world.run(60)
    return world
