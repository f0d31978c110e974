"""Nodes made of links and membership alone, in virtual time; a trivial flood stands in for the mesh.

Frames go over links with a latency and are lost where `loss` says so. A crash resets its links, unless it is silent
(the power is gone): then others learn of it by silence alone. A flood forwards what a node judged `accept`, once.
Every flip of a view is recorded, and has to alternate with the one before.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from gossip.config import GossipConfig
from gossip.events import Arrived, Broadcast, Judged, Leaving, MemberDown, MemberUp
from gossip.links import Links
from gossip.membership.behaviour import Membership
from gossip.membership.config import MemberConfig
from gossip.membership.statement import read_statement
from protocol import versions
from protocol.clock import SwarmClock
from protocol.identity import KeyPair
from protocol.machine import (
    Boot,
    CancelTimer,
    Count,
    Dial,
    DialFailed,
    Effect,
    Hangup,
    Local,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SendDropped,
    SetTimer,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import Frame, Hello, Spread, message_id
from protocol.peer import PeerID, peer_text
from tests.gossip_world import GENESIS, NOW_MS, hello, seconds, verify
from tests.strategies import keypair

LATENCY_US = 5_000
DIAL_TIMEOUT_US = 2_000_000
Loss = Callable[[int, int, Frame], bool]  # (source, target, frame)


def no_loss(_source: int, _target: int, _frame: Frame) -> bool:
    return False


@dataclass(slots=True)
class Node:
    """One node over all its lives."""

    index: int
    keys: KeyPair
    neighbours: tuple[int, ...]
    skew_ms: int = 0
    inst: int = 0
    running: bool = False
    links: Links = field(init=False)
    members: Membership = field(init=False)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    seen: dict[bytes, None] = field(default_factory=dict)
    arriving: dict[bytes, bytes] = field(default_factory=dict)  # statements that are being judged
    source: int = -1  # who brought them
    up: dict[PeerID, int] = field(default_factory=dict)  # since when, by flips alone
    flips: list[tuple[int, PeerID, str]] = field(default_factory=list)  # time, who, "up" or why it is down
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def peer(self) -> PeerID:
        return PeerID(self.keys.public)


class World:
    """`neighbours`: who dials whom, by index; None: everybody dials everybody."""

    def __init__(
        self,
        size: int,
        *,
        neighbours: Callable[[int], tuple[int, ...]] | None = None,
        config: MemberConfig | None = None,
        seed: int = 1,
        skews_ms: tuple[int, ...] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.config = config or MemberConfig()
        self.gossip = GossipConfig(dial_backoff_max_us=8_000_000)
        self.now_us = 0
        self.loss: Loss = no_loss
        self.connected: dict[tuple[int, int], None] = {}
        self._linked: list[dict[int, None]] = [{} for _ in range(size)]
        self.frames: Counter[str] = Counter()
        self.said: list[tuple[int, int, str]] = []  # time, node, kind of what it broadcast
        self.denied: dict[bytes, None] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._n = 0
        everybody = tuple(range(size))
        self.nodes = [
            Node(
                index,
                keypair(f"member {index}"),
                neighbours(index) if neighbours is not None else tuple(i for i in everybody if i != index),
                skews_ms[index] if index < len(skews_ms) else 0,
            )
            for index in everybody
        ]
        self.index_of = {node.peer: node.index for node in self.nodes}
        for node in self.nodes:
            self._at(self.rng.randrange(500_000), partial(self.start, node.index))

    # ---- what a test does

    def run(self, amount: float) -> None:
        """Let so many seconds pass."""
        until = self.now_us + seconds(amount)
        while self._queue and self._queue[0][0] <= until:
            self.now_us, _, action = heapq.heappop(self._queue)
            action()
        self.now_us = until

    def run_until(self, holds: Callable[[], bool], within: float, step: float = 0.1) -> float:
        """Seconds until a condition holds; fails if it does not in time."""
        began = self.now_us
        while not holds():
            assert self.now_us - began < seconds(within), f"not within {within} s"
            self.run(step)
        return (self.now_us - began) / 1e6

    def start(self, index: int) -> None:
        """A life begins; the ones before are over."""
        node = self.nodes[index]
        for other in self._peers_of(index):
            self._disconnect(index, other, "half-open link of an earlier life")
        node.inst += 1
        node.running = True
        node.timers, node.seen, node.up = {}, {}, {}
        offset_us = (NOW_MS + node.skew_ms) * 1000
        clock = SwarmClock(offset_us)
        rng = random.Random(self.rng.randrange(2**32))
        node.links = Links(node.peer, GENESIS, clock, self.gossip, rng)
        node.links.add_bootstrap(
            tuple(f"/ip4/10.0.0.1/tcp/{4001 + i}/p2p/{peer_text(self.nodes[i].peer)}" for i in node.neighbours)
        )
        admitted = lambda peer: peer in self.index_of and peer not in self.denied  # noqa: E731 - one line
        node.members = Membership(node.keys, clock, self.config, rng, verify=verify, admitted=admitted)
        self._tell(node, Boot(node.inst, offset_us, clean=False))

    def crash(self, index: int, *, silent: bool = False) -> None:
        """The process is gone; `silent`: so is the machine, and nothing resets its links."""
        node = self.nodes[index]
        node.running = False
        if not silent:
            for other in self._peers_of(index):
                self._disconnect(index, other, "reset")

    def leave(self, index: int) -> None:
        """The operator stops it: Stopping, half a second of last writes, Leaving, gone."""
        node = self.nodes[index]
        self._tell(node, Stopping(self.now_us + seconds(5)))
        self._at(seconds(0.5), lambda: self._tell(node, Leaving()))
        self._at(seconds(0.6), lambda: self.crash(index))

    def suspend(self, index: int, amount: float) -> None:
        """A node slept for so long: its timers and frames come late, all at once."""
        self._tell(self.nodes[index], Suspended(seconds(amount)))

    def spread(self, index: int, *items: bytes) -> None:
        """A node puts statements of a test's making into the flood."""
        node = self.nodes[index]
        for item in items:
            node.seen[message_id("members", item)] = None
        self._flood(node, items)

    def tell(self, index: int, event: object) -> None:
        """Any event, to one node."""
        self._tell(self.nodes[index], event)

    # ---- what a test sees

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def view(self, index: int) -> list[int]:
        """Whom a node takes for up, by index."""
        return sorted(self.index_of[peer] for peer in self.nodes[index].members.alive())

    def exact(self) -> bool:
        """Every running node sees exactly the other running nodes."""
        alive = {node.index for node in self.running}
        return bool(alive) and all(set(self.view(index)) == alive - {index} for index in alive)

    def knows_down(self, index: int) -> bool:
        """No running node takes this one for up."""
        return all(index not in self.view(node.index) for node in self.running if node.index != index)

    def downs(self, of: int, since_us: int = 0) -> list[tuple[int, str]]:
        """Who saw a node go down since, and why."""
        peer = self.nodes[of].peer
        return [
            (node.index, why)
            for node in self.nodes
            for at_us, who, why in node.flips
            if who == peer and why != "up" and at_us >= since_us
        ]

    # ---- how it goes on

    def _at(self, after_us: int, action: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._queue, (self.now_us + after_us, self._n, action))

    def _tell(self, node: Node, event: object) -> None:
        if not node.running:
            return
        flips = len(node.flips)
        todo: deque[object] = deque([event])
        while todo:
            current = todo.popleft()
            for machine in (node.links, node.members):
                for effect in machine.handle(current, self.now_us):
                    todo += self._do(node, effect)
        if len(node.flips) != flips:
            assert sorted(node.up) == node.members.alive(), "flips and view differ"

    def _do(self, node: Node, effect: Effect) -> Iterator[object]:
        match effect:
            case Local(event):
                self._note(node, event)
                yield event
            case Send(peer, _, frame, ref):
                yield from self._send(node, self.index_of[peer], frame, ref)
            case SetTimer(key, at_us):
                node.timers[key] = at_us
                inst = node.inst
                self._at(max(0, at_us - self.now_us), lambda: self._fire(node, key, at_us, inst))
            case CancelTimer(key):
                node.timers.pop(key, None)
            case Dial(info):
                self._dial(node.index, self.index_of[info.peer])
            case Hangup(peer, reason):
                self._disconnect(node.index, self.index_of[peer], reason)
            case Count(name, n):
                node.counts[name] += n
            case _:
                pass

    def _note(self, node: Node, event: object) -> None:
        match event:
            case MemberUp(peer):
                assert peer not in node.up, "up twice"
                node.up[peer] = self.now_us
                node.flips.append((self.now_us, peer, "up"))
            case MemberDown(peer, why):
                assert peer in node.up, "down twice"
                assert why
                del node.up[peer]
                node.flips.append((self.now_us, peer, why))
            case Broadcast(_, items):
                for item in items:
                    said = read_statement(item)
                    self.said.append((self.now_us, node.index, said.kind))
                    node.seen[message_id("members", item)] = None
                self._flood(node, items)
            case Judged(_, verdicts):
                good = [mid for mid, verdict in verdicts if verdict == "accept"]
                self._flood(node, tuple(node.arriving[mid] for mid in good), node.source)
            case _:
                pass

    def _flood(self, node: Node, items: tuple[bytes, ...], source: int = -1) -> None:
        for other in self._peers_of(node.index) if items else ():
            if other != source:
                list(self._send(node, other, Spread("members", wide=False, items=items), None))

    def _send(self, node: Node, target: int, frame: Frame, ref: object) -> Iterator[object]:
        self.frames[type(frame).__name__] += 1
        link = _pair(node.index, target)
        if link not in self.connected:
            yield SendDropped(self.nodes[target].peer, type(frame).__name__, ref)
        elif not self.loss(node.index, target, frame):
            self._at(LATENCY_US, lambda: self._arrive(node.index, target, frame))

    def _arrive(self, source: int, target: int, frame: Frame) -> None:
        node = self.nodes[target]
        if not node.running or _pair(source, target) not in self.connected:
            return
        peer = self.nodes[source].peer
        self._tell(node, Received(peer, frame))
        if isinstance(frame, Spread):
            fresh = {message_id("members", item): item for item in frame.items}
            fresh = {mid: item for mid, item in fresh.items() if mid not in node.seen}
            if fresh:
                node.seen |= dict.fromkeys(fresh)
                node.arriving, node.source = fresh, source
                self._tell(node, Arrived(peer, "members", tuple(fresh.values())))

    def _fire(self, node: Node, key: TimerKey, at_us: int, inst: int) -> None:
        if node.running and node.inst == inst and node.timers.get(key) == at_us:
            del node.timers[key]
            self._tell(node, TimerFired(key))

    def _hello(self, node: Node) -> Hello:
        wall_ms = NOW_MS + node.skew_ms + self.now_us // 1000
        return replace(hello(node.keys), inst=node.inst, wall_ms=wall_ms, features=versions.FEATURES)

    def _dial(self, source: int, target: int) -> None:
        if _pair(source, target) in self.connected:
            return
        one, two = self.nodes[source], self.nodes[target]
        frame = self._hello(one)
        passes = not (self.loss(source, target, frame) or self.loss(target, source, frame))
        if not (two.running and passes):
            wait_us = LATENCY_US if passes else DIAL_TIMEOUT_US
            self._at(wait_us, lambda: self._tell(one, DialFailed(two.peer, "no answer")))
            return
        self.connected[_pair(source, target)] = None
        self._linked[source][target] = self._linked[target][source] = None
        lives = (one.inst, two.inst)

        def come_up() -> None:
            if _pair(source, target) in self.connected and (one.inst, two.inst) == lives:
                self._tell(one, PeerUp(two.peer, self._hello(two)))
                self._tell(two, PeerUp(one.peer, self._hello(one)))

        self._at(2 * LATENCY_US, come_up)

    def _disconnect(self, source: int, target: int, reason: str) -> None:
        """`source` ends the link; the other side hears of it if its packets get there, by a reset or by silence."""
        if _pair(source, target) not in self.connected:
            return
        del self.connected[_pair(source, target)], self._linked[source][target], self._linked[target][source]
        for index, other in ((source, target), (target, source)):
            node, peer, inst = self.nodes[index], self.nodes[other].peer, self.nodes[index].inst

            def go_down(node: Node = node, peer: PeerID = peer, inst: int = inst) -> None:
                if node.inst == inst:
                    self._tell(node, PeerDown(peer, reason))

            self._at(LATENCY_US, go_down)

    def _peers_of(self, index: int) -> list[int]:
        return list(self._linked[index])


def _pair(one: int, two: int) -> tuple[int, int]:
    return (one, two) if one < two else (two, one)


def ring_and_chords(size: int, links: int, seed: int = 3) -> Callable[[int], tuple[int, ...]]:
    """Neighbours of a connected graph in which each node has about so many links."""
    rng = random.Random(seed)
    dials: dict[int, list[int]] = {index: [(index + 1) % size] for index in range(size)}
    for index in range(size):
        others = [i for i in range(size) if i != index and i not in dials[index]]
        dials[index] += rng.sample(others, links // 2 - 1)
    return lambda index: tuple(dials[index])
