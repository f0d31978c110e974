"""Both sides of a simulated link, and what the world may do to it (simulations/network.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.peer import PeerID
from protocol.transport import Lane

if TYPE_CHECKING:  # a transport holds its ends
    from simulations.sim_transport import SimTransport


@dataclass(frozen=True, slots=True)
class NetConfig:
    """The world between the nodes; times are one way, in microseconds."""

    latency_min_us: int = 2_000
    latency_us: int = 20_000  # mean of the exponential part, drawn once per pair
    jitter_us: int = 5_000  # uniform, per frame
    loss: float = 0.0  # share of frames that need a retransmission
    rto_us: int = 200_000  # first retransmission timeout; doubles
    retries_max: int = 8  # lost so often in a row: the link ends
    drop: float = 0.0  # share of frames that vanish on a healthy link
    bytes_per_s: int = 12_500_000
    nat: frozenset[int] = frozenset()  # hosts that nobody can dial, by the order in which the network met them
    nat_fraction: float = 0.0  # the same for a share of all hosts, drawn once for each


@dataclass(frozen=True, slots=True)
class Delivery:
    """A frame at the moment in which its receiver takes it."""

    source: PeerID
    target: PeerID
    lane: Lane
    sent_us: int
    at_us: int


@dataclass(slots=True)
class Pipe:
    """Frames of one lane on their way in one direction: (arrival, sent, bytes)."""

    frames: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    last_us: int = 0
    full: bool = False
    pumping: bool = False


@dataclass(slots=True, eq=False)
class End:
    """One side of a link, with the frames that it has sent.

    Attributes:
        far: the other side.
        finishing: its owner has said that nothing more comes; `fin_us`: when the other side learns of that.
        gone: this side is over, told to its owner or with it.
        accepted: the other side dialled.
        relay: the life of the relay that carries the link, if one does.
    """

    owner: SimTransport
    peer: PeerID
    far: End | None = None
    pipes: dict[Lane, Pipe] = field(default_factory=lambda: {lane: Pipe() for lane in Lane})
    reason: str | None = None
    finishing: bool = False
    fin_us: int = 0
    gone: bool = False
    accepted: bool = False
    relay: SimTransport | None = None

    @property
    def drained(self) -> bool:
        """True when everything that was sent is taken."""
        return not any(pipe.frames for pipe in self.pipes.values())
