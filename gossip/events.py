"""What the machines of one node tell each other (carried by `Local` effects)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossip.space_log import Added
from protocol.capability import SignedRecord, Value
from protocol.messages import Hello
from protocol.peer import PeerID


@dataclass(frozen=True, slots=True)
class Linked:
    """A peer passed the Hello check: it is of this swarm, speaks a common version, holds a valid certificate."""

    peer: PeerID
    hello: Hello


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A linked peer is gone. `in_order`: one side had links enough and let this one go; it says nothing of the peer."""

    peer: PeerID
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Sign and spread a record of this node; an equal value that is already published does nothing."""

    value: Value


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Spread the end of this node's agent record."""

    agent: str


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A record came, changed or ended (`live` false)."""

    record: SignedRecord
    live: bool


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A peer gave a record that is signed with this node's key; from this life, an earlier one, or another node.

    `newer`: than what this node had of its own.
    """

    record: SignedRecord
    newer: bool


@dataclass(frozen=True, slots=True)
class SpaceChanged:
    """Ops of a space were accepted."""

    space: bytes
    added: Added


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer sent ops that stand on ops which are not here."""

    source: PeerID
    space: bytes
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HeadUnsure:
    """A peer told of a space that the store of an uncleanly stopped node does not know: ask it for the own head."""

    source: PeerID
    space: bytes


@dataclass(frozen=True, slots=True)
class Durable:
    """Own ops are on this node's disk; only now may anybody rely on them."""

    space: bytes
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SpaceOpened:
    """A space may be written again (after an unclean stop: peers were asked for the own head)."""

    space: bytes


@dataclass(frozen=True, slots=True)
class Acked:
    """Another node holds these own ops on its disk, by its signed receipt."""

    space: bytes
    holder: bytes
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """Everything that had to be written and pushed before stopping is; say goodbye now."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Spread messages of this node to everybody who wants the topic (gossip/mesh/)."""

    topic: str
    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    """Messages of a topic that this node has not judged yet. Whoever understands them answers with `Judged`."""

    peer: PeerID
    topic: str
    items: tuple[bytes, ...]


Verdict = Literal["accept", "ignore", "reject", "later"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What messages are worth, by `message_id`: forward them, keep them to oneself, or blame who brought them.

    `accept`: forwarded. `reject`: wrong for everybody; who brought it is blamed. `ignore`: fine and nothing new here; a
    copy within two minutes is not asked about again. `later`: it might be accepted, but there is no room or no time for
    it now; the mesh forgets it at its next heartbeat, and asks anew about a copy that comes after that. What waits for
    something that is under way stays without a verdict: it can be judged for half a minute, then it is forgotten too.
    A verdict on what the mesh does not hold does nothing.
    """

    topic: str
    verdicts: tuple[tuple[bytes, Verdict], ...]


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A member of the swarm is alive, linked or not."""

    peer: PeerID


@dataclass(frozen=True, slots=True)
class MemberDown:
    """A member is suspected, dead or has left; it comes back with MemberUp."""

    peer: PeerID
    why: str
