"""What the DHT hears from the other machines of its node, and what it tells them (carried by `Local` effects)."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.capability import SignedRecord
from protocol.errors import SwarmError
from protocol.peer import PeerID

# ---- in


@dataclass(frozen=True, slots=True)
class PeerSeen:
    """A link to an admitted peer is open. Its addresses come from its signed record alone."""

    peer: PeerID


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The link to an admitted peer is gone. `in_order`: it was let go, and the peer is as good as before."""

    peer: PeerID
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A record that this node signed: published until it ends. The newest version of a slot replaces the others."""

    record: SignedRecord


@dataclass(frozen=True, slots=True)
class Serving:
    """The verdict on reachability: True serves, False is client mode and drops what is held for others."""

    on: bool


@dataclass(frozen=True, slots=True)
class UseCodebook:
    """The codebook in force, in wire form; the one before it stays live beside it."""

    wire: bytes


@dataclass(frozen=True, slots=True)
class Lookup:
    """Find the serving nodes closest to a key."""

    request: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Store a record under its own slot at the nodes closest to it."""

    request: int
    record: SignedRecord


@dataclass(frozen=True, slots=True)
class Get:
    """Find the newest record of a slot (`record_key` of protocol/capability.py)."""

    request: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Find:
    """Find the agents whose vectors are nearest to an int8 vector, through the directory."""

    request: int
    encoder: str
    probe: bytes
    limit: int


Command = Lookup | Put | Get | Find

# ---- out


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command cost: requests sent, and the length of the longest chain of them."""

    rpcs: int
    rounds: int


@dataclass(frozen=True, slots=True)
class LookupDone:
    """The closest nodes that answered, closest first; `error` when nobody could be asked."""

    request: int
    peers: tuple[PeerID, ...]
    cost: Cost
    error: SwarmError | None


@dataclass(frozen=True, slots=True)
class PutDone:
    """`confirmed` of the `asked` nodes hold the record; fewer than a majority is an error."""

    request: int
    confirmed: int
    asked: int
    cost: Cost
    error: SwarmError | None


@dataclass(frozen=True, slots=True)
class GetDone:
    """The newest record that a quorum of the closest nodes knows, if it is live; `asked` answered."""

    request: int
    record: SignedRecord | None
    asked: int
    cost: Cost
    error: SwarmError | None


@dataclass(frozen=True, slots=True)
class FindDone:
    """(score in millionths, record), best first, one per publisher and agent; all live when found."""

    request: int
    found: tuple[tuple[int, SignedRecord], ...]
    cost: Cost
    error: SwarmError | None


Done = LookupDone | PutDone | GetDone | FindDone
