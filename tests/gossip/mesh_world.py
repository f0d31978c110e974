"""Nodes made of the mesh machine alone, on a random graph, in virtual time.

A link carries frames with a mean latency per pair plus jitter, in order per lane, and loses a share of them without a
word: harsher than TCP. Each node has a consumer that accepts every message but those that begin with `bad` (rejected)
or `meh` (ignored); of messages that replace each other (`version`) it accepts what is newer than all it had and ignores
the others. Silent nodes subscribe, graft and take; they never give or offer anything but what a test has them `slip` to
somebody. Every `CHECK_EVERY`-th frame is encoded, held against its lane and decoded again, as on a wire. A message
carries its hops out of band.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gossip.events import Arrived, Broadcast, Judged, Linked, MemberDown, MemberUp, Unlinked, Verdict
from gossip.mesh.behaviour import Mesh
from gossip.mesh.config import MeshConfig
from protocol.machine import (
    Boot,
    CancelTimer,
    Count,
    Effect,
    Local,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import (
    LANE_OF,
    Frame,
    Graft,
    Hello,
    IHave,
    IWant,
    Prune,
    Spread,
    Subscribe,
    decode_frame,
    encode_frame,
    message_id,
)
from protocol.peer import PeerID
from protocol.transport import Lane
from protocol.versions import MESH

SECOND = 1_000_000
CHECK_EVERY = 64
TOPIC = "ops"


def peer_of(n: int) -> PeerID:
    return PeerID(n.to_bytes(32, "big"))


def hello(*features: str, addrs: tuple[str, ...] = ()) -> Hello:
    return Hello(1, 1, bytes(32), (), 1, 0, (1,), (), addrs, features or (MESH,))


def verdict_on(item: bytes) -> Verdict:
    if item.startswith(b"bad"):
        return "reject"
    return "ignore" if item.startswith(b"meh") else "accept"


def version(n: int) -> bytes:
    """The n-th message of one slot, such as a word of one node that it is alive."""
    return b"version %d" % n


def judge(arrived: Arrived) -> Judged:
    return Judged(arrived.topic, tuple((message_id(arrived.topic, item), verdict_on(item)) for item in arrived.items))


@dataclass(frozen=True)
class Net:
    """The network of a world. `links`: that each node has at least; 0: everybody is linked to everybody."""

    links: int = 14
    latency_us: int = 50_000
    jitter_us: int = 20_000
    loss: float = 0.0
    judge_us: int = 2_000


@dataclass
class Node:
    peer: PeerID
    mesh: Mesh
    silent: bool = False
    deaf: bool = False  # every frame to it is refused, as by a full queue
    extra_us: int = 0  # latency of all its links beyond the others'
    timers: dict[object, int] = field(default_factory=dict)
    linked: dict[PeerID, None] = field(default_factory=dict)
    got: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # id: when, after how many hops
    newest: int = -1  # of the versions

    def judge(self, arrived: Arrived) -> Judged:
        verdicts: list[tuple[bytes, Verdict]] = []
        for item in arrived.items:
            verdict = verdict_on(item)
            if item.startswith(b"version "):
                n = int(item.split()[1])
                verdict = "accept" if n > self.newest else "ignore"
                self.newest = max(n, self.newest)
            verdicts.append((message_id(arrived.topic, item), verdict))
        return Judged(arrived.topic, tuple(verdicts))


class World:
    """See the module. `seed` decides everything."""

    def __init__(
        self, size: int, *, seed: int, net: Net | None = None, config: MeshConfig | None = None,
        silent: int = 0, topics: tuple[str, ...] = (TOPIC,),
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.net = net or Net()
        self.now_us = 0
        self.heap: list[tuple[int, int, object]] = []
        self.order = itertools.count()
        self.frames: Counter[str] = Counter()
        self.copies: Counter[bytes] = Counter()  # of a message, over all nodes
        self.silent_prunes: list[tuple[int, Node, Node]] = []
        self.log: list[tuple[int, PeerID, PeerID, Frame]] = []
        self.logging = False
        self.lane_busy: dict[tuple[PeerID, PeerID, Lane], int] = {}
        self.latency: dict[frozenset[PeerID], int] = {}
        self.cuts: set[frozenset[PeerID]] = set()
        self.lose_next: list[tuple[PeerID, PeerID]] = []  # the next Spread of these pairs vanishes
        self.counted: dict[PeerID, Counter[str]] = defaultdict(Counter)
        self.nodes: dict[PeerID, Node] = {}
        config = config or MeshConfig()
        for n in range(1, size + 1):
            peer = peer_of(n)
            self.nodes[peer] = Node(peer, Mesh(peer, config, random.Random(seed * 1_000_003 + n), topics))
        everybody = list(self.nodes.values())
        for node in self.rng.sample(everybody, silent):
            node.silent = True
        for node in everybody:
            self.feed(node, Boot(1, 0, clean=True))
        self._link_up(everybody)

    def _link_up(self, everybody: list[Node]) -> None:
        links = self.net.links or len(everybody) - 1
        for node in everybody:
            others = [other for other in everybody if other is not node and other.peer not in node.linked]
            missing = max(0, min(links, len(everybody) - 1) - len(node.linked))
            for other in self.rng.sample(others, missing):
                self.link(node, other)

    # ---- what happens

    @property
    def honest(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.silent]

    def node(self, n: int) -> Node:
        return self.nodes[peer_of(n)]

    def link(self, one: Node, two: Node) -> None:
        for node, other in ((one, two), (two, one)):
            node.linked[other.peer] = None
        mean = self.net.latency_us // 2 + int(self.rng.expovariate(2 / max(1, self.net.latency_us)))
        self.latency[frozenset((one.peer, two.peer))] = mean
        self.feed(one, Linked(two.peer, hello()))
        self.feed(two, Linked(one.peer, hello()))

    def unlink(self, one: Node, two: Node) -> None:
        for node, other in ((one, two), (two, one)):
            del node.linked[other.peer]
            self.feed(node, Unlinked(other.peer))

    def all_alive(self, alive: Iterable[Node] | None = None) -> None:
        """Everybody learns that these members live."""
        members = list(alive if alive is not None else self.nodes.values())
        for node in self.nodes.values():
            for member in members:
                self.feed(node, MemberUp(member.peer))

    def dead(self, peer: PeerID) -> None:
        for node in self.nodes.values():
            self.feed(node, MemberDown(peer, "dead"))

    def publish(self, node: Node, *items: bytes, topic: str = TOPIC) -> list[bytes]:
        ids = [message_id(topic, item) for item in items]
        for mid in ids:
            node.got[mid] = (self.now_us, 0)
        self.feed(node, Broadcast(topic, items))
        return ids

    def feed(self, node: Node, event: object) -> None:
        effects = node.mesh.handle(event, self.now_us)
        for at, effect in enumerate(effects):
            self._do(node, effect, effects[at + 1 :])

    def run(self, seconds: float) -> None:
        self.run_until(self.now_us + int(seconds * SECOND))

    def run_until(self, end_us: int) -> None:
        while self.heap and self.heap[0][0] <= end_us:
            self.now_us, _, what = heapq.heappop(self.heap)
            self._happen(what)
        self.now_us = end_us

    # ---- how

    def _later(self, at_us: int, what: object) -> None:
        heapq.heappush(self.heap, (at_us, next(self.order), what))

    def _do(self, node: Node, effect: Effect, rest: list[Effect]) -> None:
        match effect:
            case SetTimer(key, at_us):
                node.timers[key] = at_us
                self._later(at_us, (node, key, at_us))
            case CancelTimer(key):
                node.timers.pop(key, None)
            case Send():
                self._send(node, effect)
            case Local(Arrived() as arrived):
                for item in arrived.items:
                    mid = message_id(arrived.topic, item)
                    node.got.setdefault(mid, (self.now_us, self._hops(arrived.peer, mid)))
                self._later(self.now_us + self.net.judge_us, (node, node.judge(arrived)))
            case Count(name, n):
                self.counted[node.peer][name] += n
                if name == "mesh_silent_pruned":
                    prune = rest[0]
                    assert isinstance(prune, Send)
                    self.silent_prunes.append((self.now_us, node, self.nodes[prune.peer]))
            case _:
                raise AssertionError(effect)

    def _hops(self, source: PeerID, mid: bytes) -> int:
        return self.nodes[source].got[mid][1] + 1 if mid in self.nodes[source].got else 0

    def _send(self, node: Node, send: Send) -> None:
        frame = send.frame
        assert send.peer in node.linked, "a frame to a peer that is not linked"
        assert send.lane is LANE_OF[type(frame)]
        if node.silent and not isinstance(frame, Subscribe | Graft | Prune | IWant):
            return
        self._carry(node, send)

    def slip(self, node: Node, other: Node, item: bytes) -> None:
        """A node sends one message to one other, past its machine."""
        node.got.setdefault(message_id(TOPIC, item), (self.now_us, 0))
        self._carry(node, Send(other.peer, Lane.BULK, Spread(TOPIC, wide=False, items=(item,))))

    def _carry(self, node: Node, send: Send) -> None:
        frame, other = send.frame, self.nodes[send.peer]
        self.frames[type(frame).__name__] += 1
        if self.logging:
            self.log.append((self.now_us, node.peer, send.peer, frame))
        if sum(self.frames.values()) % CHECK_EVERY == 0:
            assert decode_frame(encode_frame(frame), send.lane) == frame
        if other.deaf:
            self._later(self.now_us, (node, SendDropped(send.peer, type(frame).__name__, send.ref)))
            return
        pair = frozenset((node.peer, send.peer))
        if isinstance(frame, Spread) and (node.peer, send.peer) in self.lose_next:
            self.lose_next.remove((node.peer, send.peer))
            return
        if pair in self.cuts or self.rng.random() < self.net.loss:
            return
        lane = (node.peer, send.peer, send.lane)
        wait = self.latency[pair] + node.extra_us + other.extra_us + self.rng.randrange(self.net.jitter_us + 1)
        at_us = max(self.lane_busy.get(lane, 0), self.now_us + wait)
        self.lane_busy[lane] = at_us
        self._later(at_us, (other, Received(node.peer, frame)))

    def _happen(self, what: object) -> None:
        match what:
            case (Node() as node, TimerKey() as key, int(at_us)):
                if node.timers.get(key) == at_us:
                    del node.timers[key]
                    self.feed(node, TimerFired(key))
            case (Node() as node, Received(peer, frame) as event):
                if peer in node.linked:
                    if isinstance(frame, Spread):
                        self.copies.update(message_id(frame.topic, item) for item in frame.items)
                    self.feed(node, event)
            case (Node() as node, event):
                self.feed(node, event)
            case _:
                raise AssertionError(what)

    # ---- what came of it

    def reached(self, mid: bytes) -> int:
        """How many honest nodes have it."""
        return sum(mid in node.got for node in self.honest)

    def reached_all(self, ids: Iterable[bytes]) -> bool:
        return all(self.reached(mid) == len(self.honest) for mid in ids)

    def hops(self, ids: Iterable[bytes]) -> int:
        return max(node.got[mid][1] for mid in ids for node in self.honest)

    def spread_us(self, ids: Iterable[bytes]) -> int:
        """The longest time from the origin to the last honest node."""
        times = [[node.got[mid][0] for node in self.honest] for mid in ids]
        return max(max(when) - min(when) for when in times)

    def copies_per_node(self, ids: Iterable[bytes]) -> float:
        listed = list(ids)
        return sum(self.copies[mid] for mid in listed) / len(listed) / (len(self.nodes) - 1)

    def degrees(self, topic: str = TOPIC) -> list[int]:
        return [len(node.mesh.mesh(topic)) for node in self.honest]

    def total(self, name: str) -> int:
        return sum(counted[name] for counted in self.counted.values())

    def silent_edges(self, topic: str = TOPIC) -> int:
        """Edges of honest meshes that lead to silent peers."""
        return sum(self.nodes[peer].silent for node in self.honest for peer in node.mesh.mesh(topic))

    def traffic(self, seconds: int, per_s: int = 4, size: int = 40) -> list[bytes]:
        """Messages of random honest origins, evenly over a time; their ids."""
        ids: list[bytes] = []
        for n in range(seconds * per_s):
            origin = self.rng.choice(self.honest)
            item = b"m%d-%d-" % (self.now_us, n) + self.rng.randbytes(size)
            ids += self.publish(origin, item)
            self.run(1 / per_s)
        return ids

    def offers(self) -> list[tuple[PeerID, PeerID, IHave]]:
        return [(one, two, frame) for _, one, two, frame in self.log if isinstance(frame, IHave)]
