"""The one seam to the network: messages in bytes, addressed by authenticated PeerID.

Rules of the seam, the same for every backend (one contract suite runs against all):

- `send` never blocks and never raises for a peer's reasons. True: the frame is queued on an open link, in
  order per lane. False: no link, queue full, or frame over the lane's cap; the caller counts it as dropped.
  True promises nothing about arrival.
- A link is announced by exactly one `LinkUp`, which carries the peer's first frame (its Hello), and ended by
  exactly one `LinkDown`. `LinkFrame`s of a peer arrive only between the two, in order per lane.
- The local Hello is asked for anew at each link, because it carries the time and the addresses.
- `connect` and `disconnect` return at once; the outcome is an event (`LinkUp`, `DialFailed`, `LinkDown`).
  A second `connect` to a linked peer does nothing. `disconnect` first sends what is queued.
- On simultaneous dials the connection dialled by the smaller PeerID stays (protocol.md §2).
- A frame that breaks the framing rules, a peer without the swarm's key or a raising handler end that link at
  most; the transport serves on and counts it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from protocol.peer import PeerID, PeerInfo


class Lane(IntEnum):
    """CONTROL for small and urgent frames, BULK for large ones, so that bulk never blocks control."""

    CONTROL = 0
    BULK = 1


FRAME_BYTES_MAX: Final = {Lane.CONTROL: 16 * 1024, Lane.BULK: 256 * 1024}  # protocol.md §2
QUEUE_FRAMES_MAX: Final = 1024  # per peer and lane; above it `send` answers False
HELLO_TIMEOUT_S: Final = 5.0  # protocol.md §2
DIAL_TIMEOUT_S: Final = 5.0  # libp2p.md P20: a wrong swarm key shows only after 41 s without it


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both lanes to `peer` are open; `hello` is its first CONTROL frame, undecoded."""

    peer: PeerID
    hello: bytes


@dataclass(frozen=True, slots=True)
class LinkFrame:
    """One whole frame from `peer`, without its length prefix."""

    peer: PeerID
    lane: Lane
    frame: bytes


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link to `peer` is gone."""

    peer: PeerID
    reason: str


@dataclass(frozen=True, slots=True)
class LinkWritable:
    """A queue to `peer` that had been full has room again."""

    peer: PeerID


@dataclass(frozen=True, slots=True)
class LinkDialFailed:
    """No address of `peer` gave a link; `reason` names each address with its cause."""

    peer: PeerID
    reason: str


TransportEvent = LinkUp | LinkFrame | LinkDown | LinkWritable | LinkDialFailed
HelloSource = Callable[[PeerID], bytes]


class Transport(Protocol):
    """What the driver needs of a network. See the rules of this module."""

    @property
    def local_peer(self) -> PeerID:
        """The PeerID that others see."""
        ...

    def listen_addrs(self) -> tuple[str, ...]:
        """Addresses to announce; dialable by construction (never a wildcard, never port 0)."""
        ...

    def run(self, hello: HelloSource) -> AbstractAsyncContextManager[None]:
        """Serve inside the context; `hello(peer)` gives the local first frame for each new link."""
        ...

    def events(self) -> AsyncIterator[TransportEvent]:
        """All events, one consumer; ends when the context is left."""
        ...

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        """Queue a frame; see the rules."""
        ...

    def connect(self, info: PeerInfo) -> None:
        """Start dialling, best address first."""
        ...

    def disconnect(self, peer: PeerID, reason: str) -> None:
        """End the link after what is queued is sent."""
        ...
