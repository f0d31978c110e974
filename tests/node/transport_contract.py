"""The contract of `protocol.transport.Transport`, as checks that every backend must pass.

A check is `async def check(harness)`; a `Harness` makes nodes and lets time pass. Two kinds plug in:

- Backends on trio: `TrioHarness(make)`, where `make(spec)` builds a Transport. Run a check with
  `async with TrioHarness(make) as harness: await check(harness)`.
- A deterministic simulator, without trio: write a class with the three methods of `Harness`, none of which awaits
  anything real: `node` adds a node to the simulated network, `settle` steps the event heap until the condition
  holds, `idle` steps it for IDLE_S of virtual time. Then `run_plain(check(harness))` runs a check to its end.
  A node is anything with the methods of `Node`; an adapter that turns effects into calls has about 40 lines.

Checks use only what the seam promises. After each check, `harness.finish` holds the whole history of every node
against the grammar of events: per peer (LinkUp (LinkFrame | LinkWritable)* LinkDown)*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeVar, cast

import trio

from gossip.reach import Reached
from node.reach import Outreach
from protocol.peer import Multiaddr, PeerID, PeerInfo, peer_text
from protocol.transport import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES_MAX,
    HelloSource,
    Lane,
    LinkDialFailed,
    LinkDown,
    LinkFrame,
    LinkUp,
    LinkWritable,
    Transport,
    TransportEvent,
)

SETTLE_S = 20.0  # bound of one wait; a healthy backend needs milliseconds
POLL_S = 0.002
IDLE_S = 0.4  # "and nothing else happens"
ROUNDS = 20  # of simultaneous dials (case N3)


class Node(Protocol):
    """One node of a harness: its transport's commands, and every event so far."""

    events: list[TransportEvent]
    hellos: int

    @property
    def peer(self) -> PeerID: ...
    @property
    def addrs(self) -> tuple[str, ...]: ...
    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool: ...
    def connect(self, info: PeerInfo) -> None: ...
    def disconnect(self, peer: PeerID, reason: str) -> None: ...
    def accepted(self, peer: PeerID) -> bool: ...
    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached: ...
    def pause(self) -> None:
        """Stop taking events from the transport."""

    def resume(self) -> None: ...
    async def stop(self) -> None:
        """Leave the transport's context."""


@dataclass(frozen=True)
class Spec:
    """What a node of a check needs."""

    number: int
    swarm_key: bytes | None = None


class Harness(Protocol):
    """A small network of nodes on one backend."""

    async def node(self, *, swarm_key: bytes | None = None, hello: HelloSource | None = None) -> Node:
        """A running node with the next number. Its Hello is `hello N.count` unless given."""
        ...

    async def settle(self, until: Callable[[], bool]) -> None:
        """Let time pass until the condition holds; fails after SETTLE_S."""
        ...

    async def idle(self) -> None:
        """Let IDLE_S pass."""
        ...


Check = Callable[[Harness], Coroutine[object, object, None]]
E_ = TypeVar("E_", LinkUp, LinkFrame, LinkDown, LinkWritable, LinkDialFailed)


def run_plain(check: Coroutine[object, object, None]) -> None:
    """Run a check whose harness never suspends, without an event loop."""
    try:
        check.send(None)
    except StopIteration:
        return
    check.close()
    raise AssertionError("the harness suspended: it must step its own time")


def seen(node: Node, kind: type[E_], peer: PeerID | None = None) -> list[E_]:
    """The node's events of one kind, and about one peer if given."""
    return [e for e in node.events if isinstance(e, kind) and peer in (None, e.peer)]


def bodies(node: Node, peer: PeerID, lane: Lane) -> list[bytes]:
    """What has arrived from a peer on a lane, in order."""
    return [e.frame for e in seen(node, LinkFrame, peer) if e.lane is lane]


def info(node: Node, *first: str) -> PeerInfo:
    """How to reach a node, with other addresses before its own."""
    return PeerInfo(node.peer, (*first, *node.addrs))


async def reach(harness: Harness, count: int, kind: type[E_], *nodes: Node) -> None:
    """Wait until each node has seen exactly so many events of a kind."""
    await harness.settle(lambda: all(len(seen(node, kind)) == count for node in nodes))


def check_grammar(node: Node) -> None:
    """Per peer: a link is announced once, ended once, and all else lies between."""
    up: set[PeerID] = set()
    for event in node.events:
        match event:
            case LinkUp(peer):
                assert peer not in up, "LinkUp of a linked peer"
                up.add(peer)
            case LinkFrame(peer) | LinkWritable(peer):
                assert peer in up, f"{type(event).__name__} outside a link"
            case LinkDown(peer):
                assert peer in up, "LinkDown of an unlinked peer"
                up.discard(peer)
            case LinkDialFailed(peer):
                assert peer not in up, "LinkDialFailed of a linked peer"


async def linked(harness: Harness, a: Node, b: Node) -> None:
    """Link two nodes, dialled by the first."""
    ups = len(seen(a, LinkUp, b.peer)), len(seen(b, LinkUp, a.peer))
    a.connect(info(b))
    await harness.settle(lambda: len(seen(a, LinkUp, b.peer)) > ups[0] and len(seen(b, LinkUp, a.peer)) > ups[1])


async def check_exchange(harness: Harness) -> None:
    """Frames of both lanes arrive once, whole and in order per lane, in both directions."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    frames = [bytes([n]) * (1 + n * 7) for n in range(60)]
    for frame in frames:
        for lane in Lane:
            assert a.send(b.peer, lane, frame)
            assert b.send(a.peer, lane, frame[::-1])
    await harness.settle(lambda: len(seen(a, LinkFrame)) == len(seen(b, LinkFrame)) == 2 * len(frames))
    for lane in Lane:
        assert bodies(b, a.peer, lane) == frames
        assert bodies(a, b.peer, lane) == [frame[::-1] for frame in frames]


async def check_one_link_up_with_hello(harness: Harness) -> None:
    """Each side announces the link once, with the other's Hello of this link; a second connect does nothing."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    a.connect(info(b))
    b.connect(info(a))
    await harness.idle()
    assert seen(a, LinkUp) == [LinkUp(b.peer, b"hello 2.1")]
    assert seen(b, LinkUp) == [LinkUp(a.peer, b"hello 1.1")]
    a.disconnect(b.peer, "again")
    await harness.settle(lambda: bool(seen(a, LinkDown) and seen(b, LinkDown)))
    await linked(harness, b, a)
    assert seen(a, LinkUp)[1].hello > b"hello 2.1"
    assert seen(b, LinkUp)[1].hello > b"hello 1.1"


async def check_send_refuses(harness: Harness) -> None:
    """No link, an empty frame and a frame over the cap are refused at once; the cap itself arrives (case W6)."""
    a, b = await harness.node(), await harness.node()
    assert not a.send(b.peer, Lane.CONTROL, b"x")
    await linked(harness, a, b)
    for lane in Lane:
        assert not a.send(b.peer, lane, b"")
        assert not a.send(b.peer, lane, bytes(FRAME_BYTES_MAX[lane] + 1))
        assert a.send(b.peer, lane, bytes(FRAME_BYTES_MAX[lane]))
    await harness.settle(lambda: len(seen(b, LinkFrame)) == len(Lane))
    assert {len(e.frame) for e in seen(b, LinkFrame)} == set(FRAME_BYTES_MAX.values())


async def check_payload_sizes(harness: Harness) -> None:
    """Around every limit of the layers below, both ways: the same bytes, or a refusal before sending (W6)."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    sizes = (0, 1, 65518, 65519, 65520, 65534, 65535, 65536, 65537, 131038, 262143, 262144, 262145, 1048576)
    for sender, receiver in ((a, b), (b, a)):
        sent = []
        for size in sizes:
            body = bytes((i * 31 + 7) % 256 for i in range(256)) * (size // 256 + 1)
            if sender.send(receiver.peer, Lane.BULK, body[:size]):
                sent.append(hashlib.sha256(body[:size]).digest())
        assert len(sent) == sum(0 < size <= FRAME_BYTES_MAX[Lane.BULK] for size in sizes)
        await reach(harness, len(sent), LinkFrame, receiver)
        assert [hashlib.sha256(e.frame).digest() for e in seen(receiver, LinkFrame)] == sent


async def check_disconnect_flushes(harness: Harness) -> None:
    """What was queued before `disconnect` arrives before the other side's LinkDown."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    for n in range(200):
        assert a.send(b.peer, Lane.CONTROL, b"%d" % n)
        assert n >= 20 or a.send(b.peer, Lane.BULK, bytes([n]) * 100_000)
    a.disconnect(b.peer, "leaving")
    assert not a.send(b.peer, Lane.CONTROL, b"too late")
    await harness.settle(lambda: bool(seen(a, LinkDown) and seen(b, LinkDown)))
    assert bodies(b, a.peer, Lane.CONTROL) == [b"%d" % n for n in range(200)]
    assert bodies(b, a.peer, Lane.BULK) == [bytes([n]) * 100_000 for n in range(20)]
    assert seen(a, LinkDown) == [LinkDown(b.peer, "leaving")]


async def check_dial_failure_names_addresses(harness: Harness) -> None:
    """A peer that nobody answers for is one LinkDialFailed, which names each address."""
    a = await harness.node()
    ghost = PeerInfo(PeerID(bytes(32)), ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2", "/ip4/0.0.0.0/tcp/3"))
    a.connect(ghost)
    await harness.settle(lambda: bool(seen(a, LinkDialFailed)))
    await harness.idle()
    (failed,) = a.events
    assert isinstance(failed, LinkDialFailed)
    assert all(addr in failed.reason for addr in ghost.addrs)


async def check_addresses_best_first(harness: Harness) -> None:
    """A good address is reached behind dead, malformed, own and wrong-identity ones, ten times (N2, P4, P5)."""
    a, b, c = await harness.node(), await harness.node(), await harness.node()
    bad = ("/ip4/127.0.0.1/tcp/1", "/dns4/example.org/tcp/1", *a.addrs, *c.addrs)
    for n in range(10):
        a.connect(info(b, *bad))
        await reach(harness, n + 1, LinkUp, a, b)
        a.disconnect(b.peer, "next")
        await reach(harness, n + 1, LinkDown, a, b)
    assert not seen(a, LinkDialFailed)
    assert not c.events


async def check_self_is_never_dialled(harness: Harness) -> None:
    """Neither the own PeerID nor an own address under another name gives a link with ourselves."""
    a = await harness.node()
    a.connect(PeerInfo(a.peer, a.addrs))
    a.connect(PeerInfo(PeerID(b"\x07" * 32), a.addrs))
    await harness.settle(lambda: bool(seen(a, LinkDialFailed)))
    await harness.idle()
    assert [type(e) for e in a.events] == [LinkDialFailed]


async def check_simultaneous_dials(harness: Harness, rounds: int = ROUNDS) -> None:
    """Both dial at once: one link, one LinkUp on each side, one request answered each way (case N3)."""
    a, b = await harness.node(), await harness.node()
    for n in range(1, rounds + 1):
        first, second = (a, b) if n % 2 else (b, a)
        first.connect(info(second))
        second.connect(info(first))
        await reach(harness, n, LinkUp, a, b)
        assert a.send(b.peer, Lane.CONTROL, b"from a %d" % n)
        assert b.send(a.peer, Lane.CONTROL, b"from b %d" % n)
        await reach(harness, n, LinkFrame, a, b)
        a.disconnect(b.peer, "round over")
        await reach(harness, n, LinkDown, a, b)
    assert not seen(a, LinkDialFailed)
    assert not seen(b, LinkDialFailed)


async def check_full_queue_and_writable(harness: Harness) -> None:
    """A queue that takes no more answers False, loses nothing it took, and says when it has room again."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    b.pause()
    taken = 0
    for _ in range(200):
        while a.send(b.peer, Lane.CONTROL, b"%08d" % taken * 512):
            taken += 1
            assert taken <= 40 * QUEUE_FRAMES_MAX, "the queue has no bound"
        before = taken
        await harness.idle()
        if not a.send(b.peer, Lane.CONTROL, b"%08d" % taken * 512):
            break
        taken += 1
        assert taken > before
    assert taken >= QUEUE_FRAMES_MAX
    b.resume()
    await harness.settle(lambda: len(seen(b, LinkFrame)) == taken)
    assert bodies(b, a.peer, Lane.CONTROL) == [b"%08d" % n * 512 for n in range(taken)]
    await harness.settle(lambda: bool(seen(a, LinkWritable)))
    assert a.send(b.peer, Lane.CONTROL, b"again")


async def check_slow_consumer_loses_nothing(harness: Harness) -> None:
    """While the consumer takes no events, the peer is held back; after that everything is there."""
    a, b = await harness.node(), await harness.node()
    await linked(harness, a, b)
    b.pause()
    frames = [bytes([n]) * 200_000 for n in range(100)]
    assert all(a.send(b.peer, Lane.BULK, frame) for frame in frames)
    await harness.idle()
    assert not seen(b, LinkFrame)
    b.resume()
    await harness.settle(lambda: len(seen(b, LinkFrame)) == len(frames))
    assert bodies(b, a.peer, Lane.BULK) == frames


async def check_peer_stops(harness: Harness) -> None:
    """A peer that stops is one LinkDown; the node goes on to serve others, and the same peer's place is free."""
    a, b, c = await harness.node(), await harness.node(), await harness.node()
    await linked(harness, a, b)
    await linked(harness, a, c)
    await b.stop()
    await harness.settle(lambda: bool(seen(a, LinkDown, b.peer)))
    assert not a.send(b.peer, Lane.CONTROL, b"anyone?")
    assert a.send(c.peer, Lane.CONTROL, b"still here")
    await harness.settle(lambda: bool(seen(c, LinkFrame)))
    assert not seen(a, LinkDown, c.peer)
    a.connect(info(b))
    await harness.settle(lambda: bool(seen(a, LinkDialFailed, b.peer)))


async def check_swarm_key(harness: Harness) -> None:
    """Without the swarm's key there is no link, and who has it is served the next moment."""
    key = bytes(range(32))
    a, b = await harness.node(swarm_key=key), await harness.node(swarm_key=key)
    stranger, wrong = await harness.node(), await harness.node(swarm_key=bytes(32))
    stranger.connect(info(a))
    wrong.connect(info(a))
    await harness.settle(lambda: bool(seen(stranger, LinkDialFailed) and seen(wrong, LinkDialFailed)))
    await linked(harness, b, a)
    assert [e.peer for e in seen(a, LinkUp)] == [b.peer]


async def check_raising_hello(harness: Harness) -> None:
    """A Hello source that raises for one peer costs that link and nothing else, on either side of the dial."""
    broken: list[PeerID] = []

    def hello(peer: PeerID) -> bytes:
        if peer in broken:
            raise RuntimeError("planted")
        return b"fine"

    a, b, c = await harness.node(hello=hello), await harness.node(), await harness.node()
    broken.append(b.peer)
    b.connect(info(a))
    await harness.settle(lambda: bool(seen(b, LinkDialFailed)))
    a.connect(info(b))
    await harness.settle(lambda: bool(seen(a, LinkDialFailed)))
    await linked(harness, c, a)
    broken.clear()
    await linked(harness, b, a)
    assert not seen(a, LinkDown, c.peer)


async def check_dialling_back(harness: Harness) -> None:
    """Who was dialled knows it; dialling back finds the good addresses and makes, ends and hides no link."""
    a, b, c = await harness.node(), await harness.node(), await harness.node()
    assert await a.reach(b.peer, b.addrs) == Reached((), "not linked", tried=False)
    await linked(harness, a, b)
    assert (a.accepted(b.peer), b.accepted(a.peer)) == (False, True)
    closed = str(Multiaddr(Multiaddr.parse(a.addrs[0]).host, 1))
    asked = (closed, *a.addrs, *c.addrs, "/ip4/8.8.8.8/tcp/1", "/ip4/0.0.0.0/tcp/1", "nonsense")
    found = await b.reach(a.peer, asked)
    assert found.addrs == a.addrs
    assert all(addr in found.reason for addr in (closed, *c.addrs, "/ip4/8.8.8.8/tcp/1"))
    assert (await a.reach(b.peer, ())).addrs == ()
    await harness.idle()
    assert [type(event) for event in (*a.events, *b.events, *c.events)] == [LinkUp, LinkUp]
    assert a.send(b.peer, Lane.CONTROL, b"still here")
    await harness.settle(lambda: bool(seen(b, LinkFrame)))


CHECKS: tuple[Check, ...] = (
    check_exchange,
    check_one_link_up_with_hello,
    check_send_refuses,
    check_payload_sizes,
    check_disconnect_flushes,
    check_dial_failure_names_addresses,
    check_addresses_best_first,
    check_self_is_never_dialled,
    check_simultaneous_dials,
    check_full_queue_and_writable,
    check_slow_consumer_loses_nothing,
    check_peer_stops,
    check_swarm_key,
    check_raising_hello,
    check_dialling_back,
)


class TrioNode:
    """A node whose transport runs in a task of the harness."""

    def __init__(self, transport: Transport, number: int, hello: HelloSource | None) -> None:
        self.transport = transport
        self.events: list[TransportEvent] = []
        self.hellos = 0
        self._number = number
        self._source = hello
        self._going = trio.Event()
        self._going.set()
        self._stop = trio.Event()
        self._stopped = trio.Event()

    @property
    def peer(self) -> PeerID:
        return self.transport.local_peer

    @property
    def addrs(self) -> tuple[str, ...]:
        return self.transport.listen_addrs()

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        return self.transport.send(peer, lane, frame)

    def connect(self, info: PeerInfo) -> None:
        self.transport.connect(info)

    def disconnect(self, peer: PeerID, reason: str) -> None:
        self.transport.disconnect(peer, reason)

    def pause(self) -> None:
        self._going = trio.Event()

    def resume(self) -> None:
        self._going.set()

    def accepted(self, peer: PeerID) -> bool:
        return cast("Outreach", self.transport).accepted(peer)

    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached:
        return await cast("Outreach", self.transport).reach(peer, addrs)

    async def stop(self) -> None:
        self._stop.set()
        await self._stopped.wait()

    def _hello(self, peer: PeerID) -> bytes:
        if self._source is not None:
            return self._source(peer)
        self.hellos += 1
        return b"hello %d.%d" % (self._number, self.hellos)

    async def run(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with self.transport.run(self._hello), trio.open_nursery() as nursery:
            nursery.start_soon(self._collect)
            task_status.started()
            await self._stop.wait()
            nursery.cancel_scope.cancel()
        self._stopped.set()

    async def _collect(self) -> None:
        events = self.transport.events()
        while True:
            event = await anext(events)
            await self._going.wait()
            self.events.append(event)


class TrioHarness(AbstractAsyncContextManager["TrioHarness"]):
    """Nodes on a trio backend; `make` builds the transport of a spec."""

    def __init__(self, make: Callable[[Spec], Transport]) -> None:
        self._make = make
        self._nodes: list[TrioNode] = []
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        if exc is None:
            async with trio.open_nursery() as stopping:
                for node in self._nodes:
                    stopping.start_soon(node.stop)
            for node in self._nodes:
                check_grammar(node)
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(kind, exc, trace)

    async def node(self, *, swarm_key: bytes | None = None, hello: HelloSource | None = None) -> TrioNode:
        number = len(self._nodes) + 1
        node = TrioNode(self._make(Spec(number, swarm_key)), number, hello)
        self._nodes.append(node)
        assert self._nursery is not None
        await self._nursery.start(node.run)
        return node

    async def settle(self, until: Callable[[], bool]) -> None:
        deadline = trio.current_time() + SETTLE_S
        while not until():
            await trio.sleep(POLL_S)
            if trio.current_time() > deadline:
                self._unsettled()

    def _unsettled(self) -> NoReturn:
        told = "\n".join(f"{peer_text(n.peer)[-8:]}: {[_brief(e) for e in n.events[-12:]]}" for n in self._nodes)
        raise AssertionError(f"not settled within {SETTLE_S:g} s; last events:\n{told}")

    async def idle(self) -> None:
        await trio.sleep(IDLE_S)


def _brief(event: TransportEvent) -> str:
    text = type(event).__name__
    return f"{text}({len(event.frame)} B)" if isinstance(event, LinkFrame) else f"{text}({event})"[:200]
