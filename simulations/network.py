"""The simulated network: links as TCP gives them, over a world that delays, loses and cuts.

It keeps the rules of protocol/transport.py (tests/node/transport_contract.py runs against it) and models what a
connection does to frames:

- **Delay**: per pair a one-way mean drawn once (minimum plus exponential), jitter per frame, and the time that the
  bytes take. Frames of a lane stay in order; the lanes of a link do not wait for each other.
- **Loss** of a packet is a retransmission: the frame, and what is behind it, comes later (a doubling timeout). A frame
  lost `retries_max` times in a row ends the link. No single frame vanishes silently, because no TCP link does that.
- **Drop** is the exception, off by default: a taken frame vanishes. It is harsher than any link, to put load on repair.
- **Partition** stalls links: nothing is delivered, nothing ends; what is queued stays queued. Who hangs up meanwhile
  leaves the other end half-open, which learns of it (a reset) when the network is whole again.
- **Crash** of a process ends its links at the peers after one latency. A power cut says nothing to anybody.
- A link comes about in one step, so of two simultaneous dials the first makes it and the second finds it. A new
  connection from a peer that has lost its end takes the place of the old link.

Queues are bounded as in the real transport: a frame counts until the other side has taken it. Everything that a
transport reports is delivered within the network's own entries on the heap, never inside a call of its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from protocol.peer import Multiaddr, PeerID
from protocol.transport import (
    DIAL_TIMEOUT_S,
    QUEUE_FRAMES_MAX,
    Lane,
    LinkDown,
    LinkFrame,
    LinkUp,
    LinkWritable,
    TransportEvent,
)  # fmt: skip
from simulations.heap import EventHeap
from simulations.link import Delivery, End, NetConfig
from simulations.rng import stream
from simulations.sim_transport import SimTransport

FLUSH_US: Final = 2_000_000  # for what is queued, when a link is ended on purpose (node/link.py)
DIAL_LATENCIES: Final = 6  # one-way trips until both Hellos are there: TCP, Noise, Yamux [judgement]
_PORT: Final = 4001
_DIAL_TIMEOUT_US: Final = int(DIAL_TIMEOUT_S * 1e6)


class SimNetwork:
    """Where simulated transports find each other."""

    def __init__(self, heap: EventHeap, config: NetConfig, seed: int) -> None:
        self.heap = heap
        self.config = config
        self.watch: Callable[[Delivery], None] = lambda _: None
        self.counters: dict[str, int] = {}
        self._seed = seed
        self._rng = stream(seed, "network")
        self._listening: dict[Multiaddr, SimTransport] = {}
        self._hosts: dict[PeerID, Multiaddr] = {}
        self._peer_at: dict[Multiaddr, PeerID] = {}
        self._dark: dict[PeerID, None] = {}  # hosts without power: they answer nothing at all
        self._group: dict[PeerID, int] = {}
        self._latency: dict[tuple[PeerID, PeerID], int] = {}

    # ---- the world

    def transport(self, peer: PeerID, emit: Callable[[TransportEvent], None], key: bytes | None = None) -> SimTransport:
        """A transport for one life of a peer; `emit` is called with each of its events."""
        self.address(peer)
        if peer in self._dark:
            del self._dark[peer]
            self._wake()
        return SimTransport(self, peer, emit, key)

    def address(self, peer: PeerID) -> Multiaddr:
        """Where a peer listens, in every life."""
        if peer not in self._hosts:
            number = len(self._hosts) + 1
            addr = Multiaddr(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", _PORT)
            self._hosts[peer], self._peer_at[addr] = addr, peer
        return self._hosts[peer]

    def partition(self, groups: Sequence[Collection[PeerID]]) -> None:
        """Cut the network: peers reach each other within their group only; who is in no group reaches nobody."""
        self._group = {peer: number for number, group in enumerate(groups) for peer in group}
        for number, peer in enumerate(self._hosts):
            self._group.setdefault(peer, len(groups) + number)
        self._wake()

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self._group = {}
        self._wake()

    def reachable(self, a: PeerID, b: PeerID) -> bool:
        """Whether a packet from one host gets to the other now."""
        return self._group.get(a) == self._group.get(b) and a not in self._dark and b not in self._dark

    def count(self, name: str) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + 1

    def latency_us(self, a: PeerID, b: PeerID) -> int:
        """The one-way mean of a pair, both ways alike."""
        pair = (min(a, b), max(a, b))
        if pair not in self._latency:
            extra = stream(self._seed, "pair", pair[0].hex(), pair[1].hex()).expovariate(1.0)
            self._latency[pair] = self.config.latency_min_us + int(self.config.latency_us * extra)
        return self._latency[pair]

    def set_latency(self, a: PeerID, b: PeerID, us: int) -> None:
        """Say what the one-way mean of a pair is, from now on."""
        self._latency[min(a, b), max(a, b)] = us

    def _wake(self) -> None:
        """The world changed: frames that stalled may go on, and half-open links may learn the truth."""
        for transport in list(self._listening.values()):
            for end in list(transport.ends.values()):
                self.heap.after(self.latency_us(end.owner.local_peer, end.peer), partial(self._revive, end))

    def _revive(self, end: End) -> None:
        far = end.far
        assert far is not None
        if end.gone or not self.reachable(end.owner.local_peer, end.peer):
            return
        if far.gone:
            self.down(end, "connection reset")
            return
        for lane in Lane:
            self.pump(end, lane)
        self.closed(end)

    # ---- listening and linking

    def listen(self, transport: SimTransport) -> Multiaddr:
        """Make a transport reachable."""
        addr = self._hosts[transport.local_peer]
        assert addr not in self._listening, "one life at a time"
        self._listening[addr] = transport
        return addr

    def unlisten(self, transport: SimTransport) -> None:
        """Nobody answers at a transport's address any more."""
        self._listening.pop(self._hosts[transport.local_peer], None)

    def silence(self, transport: SimTransport, *, power: bool) -> None:
        """A transport is gone without a word of its own; with `power` its host is gone too."""
        self.unlisten(transport)
        if power:
            self._dark[transport.local_peer] = None
        for end in list(transport.ends.values()):
            end.gone = True
            self._tell_far(end)
        transport.ends.clear()

    def answer(self, dialler: SimTransport, peer: PeerID, addr: Multiaddr) -> tuple[int, bool]:
        """How long a dial of an address takes, and whether anything answers there at all."""
        listener = self._listening.get(addr)
        host = self._peer_at.get(addr)
        if host is not None and not self.reachable(dialler.local_peer, host):
            return _DIAL_TIMEOUT_US, False
        trip = self.latency_us(dialler.local_peer, peer) + self._rng.randrange(self.config.jitter_us + 1)
        return trip * (DIAL_LATENCIES if listener is not None else 2), listener is not None

    def link(self, dialler: SimTransport, peer: PeerID, addr: Multiaddr) -> str | None:
        """Link a dialler with whoever listens at an address; why not, otherwise."""
        listener = self._listening.get(addr)
        if listener is None:
            return "connection refused"
        if not self.reachable(dialler.local_peer, listener.local_peer):
            return "no answer"
        if listener.swarm_key != dialler.swarm_key:
            return "no common swarm key"
        if listener.local_peer != peer:
            self.count("wrong_identity")
            return "another identity answers there"
        ours, theirs = dialler.hello_for(peer), listener.hello_for(dialler.local_peer)
        if ours is None or theirs is None:
            return "no Hello"
        stale = listener.ends.get(dialler.local_peer)
        if stale is not None:
            self.down(stale, "replaced by a newer connection")
        near, far = End(dialler, peer), End(listener, dialler.local_peer)
        near.far, far.far = far, near
        dialler.ends[peer], listener.ends[dialler.local_peer] = near, far
        self.count("links")
        listener.emit(LinkUp(dialler.local_peer, ours))
        dialler.emit(LinkUp(peer, theirs))
        return None

    # ---- frames

    def carry(self, end: End, lane: Lane, frame: bytes) -> None:
        """A link has taken a frame: decide when it arrives."""
        config, pipe = self.config, end.pipes[lane]
        if config.drop and self._rng.random() < config.drop:
            self.count("frames_dropped")
            return
        wait = self.latency_us(end.owner.local_peer, end.peer) + self._rng.randrange(config.jitter_us + 1)
        lost = 0
        while config.loss and self._rng.random() < config.loss:
            wait += config.rto_us << lost
            lost += 1
            if lost > config.retries_max:
                self.count("links_lost")
                self.heap.after(wait, partial(self._reset, end))
                return
        arrival = max(pipe.last_us, self.heap.now_us + wait) + len(frame) * 1_000_000 // config.bytes_per_s
        pipe.last_us = arrival
        pipe.frames.append((arrival, self.heap.now_us, frame))
        self._schedule(end, lane)

    def _schedule(self, end: End, lane: Lane) -> None:
        pipe = end.pipes[lane]
        if pipe.frames and not pipe.pumping:
            pipe.pumping = True
            self.heap.at(pipe.frames[0][0], partial(self._pumped, end, lane))

    def _pumped(self, end: End, lane: Lane) -> None:
        end.pipes[lane].pumping = False
        self.pump(end, lane)

    def pump(self, end: End, lane: Lane) -> None:
        """Deliver the next frame of a lane if it is there and the way is free; else wait to be woken."""
        far, pipe = end.far, end.pipes[lane]
        assert far is not None
        source, target = end.owner.local_peer, end.peer
        if end.gone or not self.reachable(source, target):
            return
        if far.gone:  # nobody there: the first packet is answered by a reset
            self.heap.after(self.latency_us(source, target), partial(self._reset, end))
            return
        if far.owner.paused or not pipe.frames:
            return
        arrival, sent_us, frame = pipe.frames[0]
        if arrival > self.heap.now_us:
            self._schedule(end, lane)
            return
        pipe.frames.popleft()
        self.watch(Delivery(source, target, lane, sent_us, self.heap.now_us))
        far.owner.emit(LinkFrame(source, lane, frame))
        if pipe.full and 2 * len(pipe.frames) <= QUEUE_FRAMES_MAX:
            pipe.full = False
            if not end.gone:
                end.owner.emit(LinkWritable(target))
        self._schedule(end, lane)
        if end.finishing and end.drained:
            self.heap.after(0, partial(self.closed, end))

    # ---- the end of a link

    def finish(self, end: End, reason: str) -> None:
        """End a link on purpose: send what is queued, at most FLUSH_US long."""
        end.finishing, end.reason = True, end.reason or reason
        fin_us = self.heap.now_us + self.latency_us(end.owner.local_peer, end.peer)
        end.fin_us = max(fin_us, *(pipe.last_us for pipe in end.pipes.values()))
        self.heap.at(end.fin_us, partial(self.closed, end))
        self.heap.after(FLUSH_US, partial(self.down, end, reason))

    def closed(self, end: End) -> None:
        """If a side has finished, and everything before the end of its stream was taken, the other side ends."""
        far = end.far
        assert far is not None
        if end.gone or far.gone or not end.finishing or not end.drained or far.owner.paused:
            return
        if self.heap.now_us < end.fin_us:
            return
        if self.reachable(end.owner.local_peer, end.peer):
            self.down(far, "closed by the peer")

    def _reset(self, end: End) -> None:
        self.down(end, "connection reset")

    def down(self, end: End, reason: str) -> None:
        """One side of a link is over; the other learns of it if a packet gets there."""
        if end.gone:
            return
        end.gone = True
        if end.owner.ends.get(end.peer) is end:
            del end.owner.ends[end.peer]
        self._tell_far(end)
        end.owner.emit(LinkDown(end.peer, end.reason or reason))

    def _tell_far(self, end: End) -> None:
        far = end.far
        assert far is not None
        if not far.gone and self.reachable(end.owner.local_peer, end.peer):
            wait_us = self.latency_us(end.owner.local_peer, end.peer)
            self.heap.after(wait_us, partial(self.down, far, "closed by the peer"))
