"""One life's transport in a simulated network: the seam of protocol/transport.py without a task behind it.

`emit` takes the place of the iterator of events, `open`, `close` and `kill` that of the context. What happens on the
way is simulations/network.py's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gossip.reach import REACH_S, Reached, ReachTest, Reserve, Reserved, testable
from node.dialer import usable_addresses
from protocol.errors import PeerUnreachable, UsageError
from protocol.peer import Multiaddr, PeerID, PeerInfo
from protocol.transport import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES_MAX,
    HelloSource,
    Lane,
    LinkDialFailed,
    TransportEvent,
)  # fmt: skip
from simulations.link import End

PLACE_US: Final = 1_800_000_000  # node/relay.py
_REACH_US: Final = int(REACH_S * 1e6)
Found = Callable[[Reached | Reserved | PeerUnreachable], None]

if TYPE_CHECKING:  # the network makes its transports
    from simulations.network import SimNetwork


class SimTransport:
    """One life's transport in a SimNetwork; `emit` takes the place of the iterator of events.

    Attributes:
        paused: its owner takes no events; frames stay with their senders, other events wait here.
        ends: links by peer; the network's business.
        serves_circuits: it is a relay. Set it before `open`.
    """

    def __init__(
        self, network: SimNetwork, peer: PeerID, emit: Callable[[TransportEvent], None], key: bytes | None
    ) -> None:
        self.swarm_key = key
        self.paused = False
        self.ends: dict[PeerID, End] = {}
        self.serves_circuits = False
        self._network = network
        self._peer = peer
        self._emit = emit
        self._held: deque[TransportEvent] = deque()
        self._hello: HelloSource | None = None
        self._addr: Multiaddr | None = None
        self._open = False
        self._killed = False
        self._dials: dict[PeerID, int] = {}
        self._dial_count = 0

    @property
    def local_peer(self) -> PeerID:
        """See Transport."""
        return self._peer

    def listen_addrs(self) -> tuple[str, ...]:
        """See Transport. Empty before `open`."""
        return (str(self._addr),) if self._addr is not None else ()

    def open(self, hello: HelloSource) -> None:
        """Serve from now on; `hello(peer)` gives the local first frame for each new link.

        Raises:
            UsageError: this object has run before.
        """
        if self._hello is not None:
            raise UsageError("a transport runs once; build a new one")
        self._hello, self._open = hello, True
        self._addr = self._network.listen(self)

    def close(self) -> None:
        """Stop in order: take no more dials, end every link after what is queued."""
        self._open = False
        self._dials.clear()
        self._network.unlisten(self)
        for peer in list(self.ends):
            self.disconnect(peer, "node stops")

    def kill(self, *, power: bool = False) -> None:
        """The process, or its whole host, is gone."""
        self._open, self._killed = False, True
        self._held.clear()
        self._dials.clear()
        self._network.silence(self, power=power)

    @property
    def idle(self) -> bool:
        """True when no link is left."""
        return not self.ends

    # ---- the seam

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        """See Transport."""
        end = self.ends.get(peer)
        if end is None or end.finishing:
            self._network.count("send_no_link")
            return False
        if not 0 < len(frame) <= FRAME_BYTES_MAX[lane]:
            self._network.count("send_oversize")
            return False
        pipe = end.pipes[lane]
        if len(pipe.frames) >= QUEUE_FRAMES_MAX:
            pipe.full = True
            self._network.count("send_full")
            return False
        self._network.carry(end, lane, frame)
        return True

    def connect(self, info: PeerInfo) -> None:
        """See Transport. Nothing for our own PeerID, and nothing unless open."""
        if not self._open or info.peer == self._peer or info.peer in self.ends or info.peer in self._dials:
            return
        self._dial_count += 1
        self._dials[info.peer] = self._dial_count
        usable, reasons = usable_addresses(info, lambda addr: addr == self._addr)
        self._dial(info.peer, self._dial_count, usable, reasons)

    def disconnect(self, peer: PeerID, reason: str) -> None:
        """See Transport."""
        if self._dials.pop(peer, None) is not None:
            self._network.heap.after(0, partial(self._give_up, peer, "given up"))
        end = self.ends.get(peer)
        if end is not None and not end.finishing:
            self._network.finish(end, reason)

    # ---- reachability, as in node/reach.py

    def accepted(self, peer: PeerID) -> bool:
        """See Outreach."""
        end = self.ends.get(peer)
        return end is not None and end.accepted and end.relay is None

    def reach_out(self, spec: ReachTest | Reserve, done: Found) -> None:
        """Carry out a job of gossip/reachability.py; `done` is called later, unless this life is over by then."""
        wait_us, found = self._reach(spec) if isinstance(spec, ReachTest) else self._reserve(spec.relay)
        self._network.heap.after(wait_us, lambda: done(found) if self._open else None)

    def _reach(self, spec: ReachTest) -> tuple[int, Reached]:
        end = self.ends.get(spec.peer)
        if end is None:
            return 0, Reached((), "not linked", tried=False)
        host = self._network.address(spec.peer).host if end.relay is None else None
        usable, reasons = testable(spec.peer, spec.addrs, host)
        knocks = [(text, addr, *self._network.knock(self, spec.peer, addr)) for text, addr in usable]
        reasons += [f"{addr}: {refusal}" for _, addr, _, refusal in knocks if refusal is not None]
        reached = tuple(text for text, _, _, refusal in knocks if refusal is None)
        return min(_REACH_US, max((us for _, _, us, _ in knocks), default=0)), Reached(reached, "; ".join(reasons))

    def _reserve(self, relay: PeerID) -> tuple[int, Reserved | PeerUnreachable]:
        place = self._network.place(self, relay, PLACE_US)
        if isinstance(place, str):
            return 0, PeerUnreachable(place)
        return 2 * self._network.latency_us(self._peer, relay), Reserved((str(place),), PLACE_US)

    # ---- for the network

    def emit(self, event: TransportEvent) -> None:
        """Report an event to the owner."""
        if self.paused:
            self._held.append(event)
        elif not self._killed:
            self._emit(event)

    def hello_for(self, peer: PeerID) -> bytes | None:
        """The local Hello for a new link, or None when its source raises: that link's end (P1)."""
        assert self._hello is not None
        try:
            return self._hello(peer)
        except Exception:  # noqa: BLE001 - the guard (P1): a raising Hello source costs one link
            self._network.count("handler_errors")
            return None

    def pause(self) -> None:
        """Take no more events."""
        self.paused = True

    def resume(self) -> None:
        """Take what was held back, then everything else."""
        self.paused = False
        while self._held and not self.paused:
            self._emit(self._held.popleft())
        for end in list(self.ends.values()):
            if end.far is not None:
                for lane in Lane:
                    self._network.pump(end.far, lane)
                self._network.closed(end.far)

    # ---- dialling

    def _dial(self, peer: PeerID, token: int, addrs: list[Multiaddr], reasons: list[str]) -> None:
        if not addrs:
            self._network.heap.after(0, partial(self._dial_over, peer, token, "; ".join(reasons) or "no address known"))
            return
        wait_us, answered = self._network.answer(self, peer, addrs[0])
        self._network.heap.after(wait_us, partial(self._answered, peer, token, addrs, reasons, answered=answered))

    def _answered(
        self, peer: PeerID, token: int, addrs: list[Multiaddr], reasons: list[str], *, answered: bool
    ) -> None:
        if self._dials.get(peer) != token:
            return
        if peer in self.ends:  # the peer's own dial was quicker
            self._dials.pop(peer, None)
            return
        refusal = self._network.link(self, peer, addrs[0]) if answered else "connection refused or timed out"
        if refusal is None:
            self._dials.pop(peer, None)
            return
        self._dial(peer, token, addrs[1:], [*reasons, f"{addrs[0]}: {refusal}"])

    def _dial_over(self, peer: PeerID, token: int, reason: str) -> None:
        if self._dials.get(peer) == token:
            self._dials.pop(peer, None)
            self._give_up(peer, reason)

    def _give_up(self, peer: PeerID, reason: str) -> None:
        if peer not in self.ends and self._open:
            self._network.count("dials_failed")
            self.emit(LinkDialFailed(peer, reason))
