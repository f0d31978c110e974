"""MemoryTransport: the transport seam inside one trio process, without sockets, bytes on a wire or keys.

For service tests: a swarm of real nodes under trio's virtual clock. A `MemoryNetwork` makes transports that
deliver into each other; it knows no latency and no loss (the deterministic simulator has those).

Rules of the file:

- A link has two ends, one per transport. Each end's task pulls the frames that the other end has queued and
  emits every event of its own side, so the order LinkUp, frames, LinkDown needs no further care.
- A link comes about in one step, so of two simultaneous dials the first makes it and the second finds it.
- The queues are those of the real transport: QUEUE_FRAMES_MAX frames per peer and lane, LinkWritable after a
  refusal once half is free; a slow consumer of events stops the pulling.
- A transport with another swarm key, or with none, gets no link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from gossip.reach import Reached, Reserved
from node.dialer import usable_addresses
from node.reach import knock_all
from protocol.errors import PeerUnreachable, UsageError
from protocol.peer import Multiaddr, PeerID, PeerInfo
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
    TransportEvent,
)

EVENTS_MAX: Final = 256
FLUSH_S: Final = 2.0  # for what is queued, when a link is ended on purpose
_FIRST_PORT: Final = 4001


class MemoryNetwork:
    """Where memory transports find each other. Addresses are loopback ports, given in order."""

    def __init__(self) -> None:
        self._listening: dict[Multiaddr, MemoryTransport] = {}
        self._next_port = _FIRST_PORT

    def transport(self, peer: PeerID, swarm_key: bytes | None = None) -> MemoryTransport:
        """A new transport of this network."""
        return MemoryTransport(self, peer, swarm_key)

    def listen(self, transport: MemoryTransport) -> Multiaddr:
        """Make a transport reachable; gives its address."""
        addr = Multiaddr("127.0.0.1", self._next_port)
        self._next_port += 1
        self._listening[addr] = transport
        return addr

    def close(self, addr: Multiaddr) -> None:
        """Make an address dead."""
        del self._listening[addr]

    def at(self, addr: Multiaddr) -> MemoryTransport | None:
        """Who listens there."""
        return self._listening.get(addr)


class _Queue:
    """Frames of one lane in one direction."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.full = False
        self.finished = False
        self.changed = trio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class _End:
    """One side of a link. `queues` hold what this side has sent and the other has not yet pulled."""

    def __init__(self, transport: MemoryTransport, peer: PeerID, hello: bytes, *, accepted: bool) -> None:
        self.transport = transport
        self.peer = peer
        self.hello = hello
        self.accepted = accepted
        self.queues = {lane: _Queue() for lane in Lane}
        self.reason: str | None = None
        self.over = trio.Event()
        self.down = trio.Event()

    def finish(self) -> None:
        """Send what is queued and nothing more."""
        for queue in self.queues.values():
            queue.finished = True
            queue.notify()

    def end(self, reason: str) -> None:
        """End now; the first reason stays."""
        self.reason = self.reason or reason
        self.finish()
        self.over.set()


class MemoryTransport:
    """One node's transport in a MemoryNetwork. See protocol.transport for the rules it keeps.

    Attributes:
        counters: `links_up`, `dials_failed`, `wrong_identity`, `handler_errors`, `send_*` as in the real one.
    """

    def __init__(self, network: MemoryNetwork, peer: PeerID, swarm_key: bytes | None) -> None:
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "links_up",
                "dials_failed",
                "wrong_identity",
                "handler_errors",
                "send_no_link",
                "send_full",
                "send_oversize",
            ),
            0,
        )
        self._network = network
        self._peer = peer
        self.swarm_key = swarm_key
        self._ends: dict[PeerID, _End] = {}
        self._dials: dict[PeerID, trio.CancelScope] = {}
        self._addr: Multiaddr | None = None
        self._hello: HelloSource | None = None
        self._nursery: trio.Nursery | None = None
        self._events_send, self._events = trio.open_memory_channel[TransportEvent](EVENTS_MAX)

    @property
    def local_peer(self) -> PeerID:
        """See Transport."""
        return self._peer

    def listen_addrs(self) -> tuple[str, ...]:
        """See Transport. Empty before `run`."""
        return (str(self._addr),) if self._addr is not None else ()

    def events(self) -> AsyncIterator[TransportEvent]:
        """See Transport."""
        return self._events

    @asynccontextmanager
    async def run(self, hello: HelloSource) -> AsyncIterator[None]:
        """See Transport.

        Raises:
            UsageError: this object has run before.
        """
        if self._hello is not None:
            raise UsageError("a transport runs once; build a new one")
        self._hello = hello
        self._addr = self._network.listen(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    yield
                finally:
                    self._nursery = None
                    self._network.close(self._addr)
                    with trio.move_on_after(FLUSH_S) as stop:
                        stop.shield = True
                        for end in tuple(self._ends.values()):
                            self.disconnect(end.peer, "node stops")
                            await end.down.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self._events_send.close()

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        """See Transport."""
        end = self._ends.get(peer)
        if end is None or end.queues[lane].finished:
            self.counters["send_no_link"] += 1
            return False
        if not 0 < len(frame) <= FRAME_BYTES_MAX[lane]:
            self.counters["send_oversize"] += 1
            return False
        queue = end.queues[lane]
        if len(queue.frames) >= QUEUE_FRAMES_MAX:
            queue.full = True
            self.counters["send_full"] += 1
            return False
        queue.frames.append(frame)
        queue.notify()
        return True

    def connect(self, info: PeerInfo) -> None:
        """See Transport. Nothing for our own PeerID, and nothing outside `run`."""
        if self._nursery is None or info.peer == self._peer:
            return
        if info.peer in self._ends or info.peer in self._dials:
            return
        scope = trio.CancelScope()
        self._dials[info.peer] = scope
        self._nursery.start_soon(self._dial, info, scope)

    def disconnect(self, peer: PeerID, reason: str) -> None:
        """See Transport."""
        if peer in self._dials:
            self._dials[peer].cancel()
        end = self._ends.get(peer)
        if end is not None:
            end.reason = end.reason or reason
            end.finish()

    # -- reachability -------------------------------------------------------------------------------

    def accepted(self, peer: PeerID) -> bool:
        """See Outreach."""
        end = self._ends.get(peer)
        return end is not None and end.accepted

    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached:
        """See Outreach."""
        if peer not in self._ends:
            return Reached((), "not linked", tried=False)

        async def knock(addr: Multiaddr) -> None:
            await trio.lowlevel.checkpoint()
            other = self._network.at(addr)
            if other is None or other.local_peer != peer:
                raise PeerUnreachable("connection refused" if other is None else "another identity answers there")

        return await knock_all(peer, addrs, "127.0.0.1", knock)

    async def reserve(self, relay: PeerID) -> Reserved:
        """See Outreach; there are no relays here."""
        await trio.lowlevel.checkpoint()
        raise PeerUnreachable(f"no circuits in memory, not through {relay.hex()[:8]} either")

    # -- dialling -----------------------------------------------------------------------------------

    def _is_own(self, addr: Multiaddr) -> bool:
        return addr == self._addr

    async def _dial(self, info: PeerInfo, scope: trio.CancelScope) -> None:
        usable, reasons = usable_addresses(info, self._is_own)
        with scope:
            await trio.lowlevel.checkpoint()  # a dial takes at least a turn of the loop
            for addr in usable:
                reason = self._try(info.peer, addr)
                if reason is None:
                    break
                reasons.append(f"{addr}: {reason}")
        if self._dials.get(info.peer) is scope:
            del self._dials[info.peer]
        if info.peer not in self._ends:
            self.counters["dials_failed"] += 1
            failure = "given up" if scope.cancelled_caught else "; ".join(reasons) or "no address known"
            await self._events_send.send(LinkDialFailed(info.peer, failure))

    def _try(self, peer: PeerID, addr: Multiaddr) -> str | None:
        """Link with whoever listens at `addr`; why not, otherwise."""
        if peer in self._ends:
            return None
        other = self._network.at(addr)
        if other is None:
            return "connection refused"
        if other.swarm_key != self.swarm_key:
            return "no common swarm key"
        if other.local_peer != peer:
            self.counters["wrong_identity"] += 1
            return "another identity answers there"
        ours, theirs = self.hello_for(peer), other.hello_for(self._peer)
        if ours is None or theirs is None:
            return "no Hello"
        self._link(other, ours, theirs)
        return None

    def hello_for(self, peer: PeerID) -> bytes | None:
        """The local Hello for a new link, or None when its source raises: that link's end (P1)."""
        assert self._hello is not None
        try:
            return self._hello(peer)
        except Exception:  # noqa: BLE001 - the guard (P1): a raising Hello source costs one link
            self.counters["handler_errors"] += 1
            return None

    def _link(self, other: MemoryTransport, ours: bytes, theirs: bytes) -> None:
        if self._nursery is None or other._nursery is None:
            return
        near, far = _End(self, other.local_peer, theirs, accepted=False), _End(other, self._peer, ours, accepted=True)
        self._ends[near.peer], other._ends[far.peer] = near, far
        self._nursery.start_soon(self._run_end, near, far)
        other._nursery.start_soon(other._run_end, far, near)

    # -- one end of a link --------------------------------------------------------------------------

    async def _run_end(self, end: _End, far: _End) -> None:
        try:
            await self._events_send.send(LinkUp(end.peer, end.hello))
            self.counters["links_up"] += 1
            async with trio.open_nursery() as nursery:
                for lane in Lane:
                    nursery.start_soon(self._announce_room, end, lane)
                nursery.start_soon(self._wind_up, end, far)
                nursery.start_soon(self._pull_all, end, far)
                await end.over.wait()
                nursery.cancel_scope.cancel()
            del self._ends[end.peer]
            await self._events_send.send(LinkDown(end.peer, end.reason or "closed by the peer"))
        finally:
            self._ends = {peer: each for peer, each in self._ends.items() if each is not end}
            end.end("transport stopped")
            end.down.set()

    async def _pull_all(self, end: _End, far: _End) -> None:
        async with trio.open_nursery() as nursery:
            for lane in Lane:
                nursery.start_soon(self._pull, end, lane, far.queues[lane])
        end.end("closed by the peer")

    async def _pull(self, end: _End, lane: Lane, queue: _Queue) -> None:
        while True:
            while not queue.frames:
                if queue.finished:
                    return
                await queue.changed.wait()
            await self._events_send.send(LinkFrame(end.peer, lane, queue.frames[0]))
            queue.frames.popleft()
            queue.notify()

    async def _announce_room(self, end: _End, lane: Lane) -> None:
        queue = end.queues[lane]
        while not queue.finished:
            if queue.full and 2 * len(queue.frames) <= QUEUE_FRAMES_MAX:
                queue.full = False
                await self._events_send.send(LinkWritable(end.peer))
            else:
                await queue.changed.wait()

    async def _wind_up(self, end: _End, far: _End) -> None:
        """After `finish`: end once the other side has pulled all and ended, or after FLUSH_S."""
        while not end.queues[Lane.CONTROL].finished:
            await end.queues[Lane.CONTROL].changed.wait()
        with trio.move_on_after(FLUSH_S):
            await far.over.wait()
        end.over.set()
