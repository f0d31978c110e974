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
- **NAT**: a dial to such a host is never answered; what it dials itself works like any link.
- **Relay**: a circuit address leads through a relay that serves, holds a place for the target and is linked to it. The
  link takes the time of both legs and ends with the relay, or with the target's link to it.
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
        self._nat: dict[PeerID, bool] = {}
        self._places: dict[tuple[PeerID, PeerID], int] = {}  # (relay, target): until when

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
            drawn = stream(self._seed, "nat", peer.hex()).random() < self.config.nat_fraction
            self._nat[peer] = drawn or number - 1 in self.config.nat
        return self._hosts[peer]

    def behind_nat(self, peer: PeerID) -> bool:
        """Whether nobody can dial a peer."""
        return self._nat.get(peer, False)

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

    def trip_us(self, end: End) -> int:
        """The one-way mean of a link: of both legs where a relay carries it."""
        if end.relay is None:
            return self.latency_us(end.owner.local_peer, end.peer)
        return self._legs_us(end.owner.local_peer, end.relay.local_peer, end.peer)

    def _legs_us(self, a: PeerID, relay: PeerID, b: PeerID) -> int:
        return self.latency_us(a, relay) + self.latency_us(relay, b)

    def _open_way(self, end: End) -> bool:
        """Whether a packet of a link gets to its other end now."""
        if end.relay is None:
            return self.reachable(end.owner.local_peer, end.peer)
        relay = end.relay.local_peer
        return self.reachable(end.owner.local_peer, relay) and self.reachable(relay, end.peer)

    def _lost_relay(self, end: End) -> bool:
        """Whether the life of the relay that carried a link is over."""
        relay = end.relay
        return relay is not None and self._listening.get(self._hosts[relay.local_peer]) is not relay

    def set_latency(self, a: PeerID, b: PeerID, us: int) -> None:
        """Say what the one-way mean of a pair is, from now on."""
        self._latency[min(a, b), max(a, b)] = us

    def _wake(self) -> None:
        """The world changed: frames that stalled may go on, and half-open links may learn the truth."""
        for transport in list(self._listening.values()):
            for end in list(transport.ends.values()):
                self.heap.after(self.trip_us(end), partial(self._revive, end))

    def _revive(self, end: End) -> None:
        far = end.far
        assert far is not None
        if end.gone or not self._open_way(end):
            return
        if far.gone or self._lost_relay(end):
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
        """Nobody answers at a transport's address any more, and what it carried for others ends."""
        self._listening.pop(self._hosts[transport.local_peer], None)
        if transport.serves_circuits:
            self._places = {pair: us for pair, us in self._places.items() if pair[0] != transport.local_peer}
            self._end_circuits(transport)

    def silence(self, transport: SimTransport, *, power: bool) -> None:
        """A transport is gone without a word of its own; with `power` its host is gone too."""
        if power:
            self._dark[transport.local_peer] = None
        self.unlisten(transport)
        for end in list(transport.ends.values()):
            end.gone = True
            self._tell_far(end)
        transport.ends.clear()

    def answer(self, dialler: SimTransport, peer: PeerID, addr: Multiaddr) -> tuple[int, bool]:
        """How long a dial of an address takes, and whether anything answers there at all."""
        listener = self._listening.get(addr.base)
        host = self._peer_at.get(addr.base)
        if host is not None and (self.behind_nat(host) or not self.reachable(dialler.local_peer, host)):
            return _DIAL_TIMEOUT_US, False
        me, jitter_us = dialler.local_peer, self._rng.randrange(self.config.jitter_us + 1)
        trip = self.latency_us(me, peer) if addr.relay is None else self._legs_us(me, addr.relay, peer)
        return (trip + jitter_us) * (DIAL_LATENCIES if listener is not None else 2), listener is not None

    def link(self, dialler: SimTransport, peer: PeerID, addr: Multiaddr) -> str | None:
        """Link a dialler with whoever listens at an address, or is reached through it; why not, otherwise."""
        relay = self._listening.get(addr.base) if addr.relay is not None else None
        listener = self._listening.get(addr.base if addr.relay is None else self.address(peer))
        refusal = self._refusal(dialler, peer, addr, listener)
        if refusal is not None or listener is None:
            return refusal
        ours, theirs = dialler.hello_for(peer), listener.hello_for(dialler.local_peer)
        if ours is None or theirs is None:
            return "no Hello"
        stale = listener.ends.get(dialler.local_peer)
        if stale is not None:
            self.down(stale, "replaced by a newer connection")
        near = End(dialler, peer, relay=relay)
        far = End(listener, dialler.local_peer, near, relay=relay, accepted=True)
        near.far = far
        dialler.ends[peer], listener.ends[dialler.local_peer] = near, far
        self.count("links" if relay is None else "circuits")
        listener.emit(LinkUp(dialler.local_peer, ours))
        dialler.emit(LinkUp(peer, theirs))
        return None

    def _refusal(
        self, dialler: SimTransport, peer: PeerID, addr: Multiaddr, listener: SimTransport | None
    ) -> str | None:
        at = self._listening.get(addr.base)
        if at is None or listener is None:
            return "connection refused" if at is None else "refused: connection_failed"
        if self.behind_nat(at.local_peer) or not self.reachable(dialler.local_peer, at.local_peer):
            return "no answer"
        if at.swarm_key != dialler.swarm_key or listener.swarm_key != dialler.swarm_key:
            return "no common swarm key"
        if at.local_peer != (addr.relay or peer):
            self.count("wrong_identity")
            return "another identity answers there"
        if addr.relay is None:
            return None
        until_us = self._places.get((addr.relay, peer), 0)
        if not at.serves_circuits or until_us <= self.heap.now_us or not self._direct(at, peer):
            return "refused: no_reservation"
        return None if self.reachable(at.local_peer, peer) else "refused: connection_failed"

    # ---- reachability

    def knock(self, dialler: SimTransport, peer: PeerID, addr: Multiaddr) -> tuple[int, str | None]:
        """How long it takes to dial a peer at an address without linking, and why that does not succeed."""
        wait_us, answered = self.answer(dialler, peer, addr)
        refusal = self._refusal(dialler, peer, addr, self._listening.get(addr))
        return wait_us, refusal if answered else "no answer"

    def place(self, client: SimTransport, relay: PeerID, ttl_us: int) -> str | Multiaddr:
        """Take or renew a place at a relay: the address that leads through it, or why there is none."""
        end = client.ends.get(relay)
        if end is None or end.accepted or end.relay is not None or not self._open_way(end):
            return "a relay is a peer that this node has dialled and is linked to"
        if end.far is None or end.far.gone or not end.far.owner.serves_circuits:
            return "refused: no relay"
        self._places[relay, client.local_peer] = self.heap.now_us + ttl_us
        at = self._hosts[relay]
        return Multiaddr(at.host, at.port, client.local_peer, relay)

    def _direct(self, transport: SimTransport, peer: PeerID) -> bool:
        end = transport.ends.get(peer)
        return end is not None and end.relay is None and not end.finishing

    def _end_circuits(self, relay: SimTransport, target: PeerID | None = None) -> None:
        """The circuits of a relay that is gone end, or those to a target whose link with it is."""
        for transport in list(self._listening.values()):
            for end in list(transport.ends.values()):
                if end.relay is relay and end.accepted and target in (None, transport.local_peer):
                    for side in (end, end.far):
                        if side is not None and self.reachable(side.owner.local_peer, relay.local_peer):
                            wait_us = self.latency_us(side.owner.local_peer, relay.local_peer)
                            self.heap.after(wait_us, partial(self.down, side, "the relay ended the circuit"))

    # ---- frames

    def carry(self, end: End, lane: Lane, frame: bytes) -> None:
        """A link has taken a frame: decide when it arrives."""
        config, pipe = self.config, end.pipes[lane]
        if config.drop and self._rng.random() < config.drop:
            self.count("frames_dropped")
            return
        wait = self.trip_us(end) + self._rng.randrange(config.jitter_us + 1)
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
        if end.gone or not self._open_way(end):
            return
        if far.gone or self._lost_relay(end):  # nobody there: the first packet is answered by a reset
            self.heap.after(self.trip_us(end), partial(self._reset, end))
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
        fin_us = self.heap.now_us + self.trip_us(end)
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
        if self._open_way(end):
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
        if end.owner.serves_circuits and end.relay is None:
            self._end_circuits(end.owner, end.peer)
        self._tell_far(end)
        end.owner.emit(LinkDown(end.peer, end.reason or reason))

    def _tell_far(self, end: End) -> None:
        far = end.far
        assert far is not None
        if not far.gone and self._open_way(end):
            self.heap.after(self.trip_us(end), partial(self.down, far, "closed by the peer"))
