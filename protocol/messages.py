"""Frames: `[kind, fields…]` in canonical msgpack, one frozen dataclass per kind (protocol.md §2).

Kinds are append-only tags. A request and its answer carry one request id as their first field. Every field has
a bound, so a decoded frame is bounded in count and bytes; a frame that does not fit its dataclass raises
`DecodeError`, as does an unknown kind (the sender would have to know from Hello that we speak it).

Ops and records travel as the exact bytes that were signed; they are decoded where they are checked.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from protocol.codec import decode, encode
from protocol.errors import DecodeError
from protocol.op import OP_BYTES_MAX
from protocol.records import Id, Ids, Millis, Sig, SpaceId, Uint
from protocol.transport import FRAME_BYTES_MAX, Lane

_STRICT: Final = ConfigDict(strict=True)

BATCH_OPS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 64 * 1024  # a larger op goes alone
HEADS_MAX: Final = 1024
DIGESTS_MAX: Final = 256
IDS_MAX: Final = 256
RECORD_BYTES_MAX: Final = 8 * 1024
RECORDS_MAX: Final = 8
TAIL_BYTES_MAX: Final = 1024
SHORT_CHARS_MAX: Final = 300
DHT_KEY_BYTES: Final = 20
DHT_PEERS_MAX: Final = 20  # k of Kademlia
DHT_RECORDS_MAX: Final = 16
DHT_PROBE_BYTES_MAX: Final = 4096  # the widest vector of a capability record
PEER_RECORD_BYTES_MAX: Final = 1280  # the longest eight addresses fit; answers are cut to their frame

TOPICS_MAX: Final = 32  # of one link
TOPIC_CHARS_MAX: Final = 64
MESSAGE_ID_BYTES: Final = 20  # replication.md §7
MESSAGE_IDS_MAX: Final = 512
RECORD_BUCKETS_MAX: Final = 1024
FINGERPRINT_BYTES: Final = 8

ReqId = Annotated[int, Field(ge=0, le=2**32 - 1)]
WireOp = Annotated[bytes, Field(max_length=OP_BYTES_MAX)]
Digest12 = Annotated[bytes, Field(min_length=12, max_length=12)]
ShortText = Annotated[str, Field(max_length=SHORT_CHARS_MAX)]
Addr = Annotated[str, Field(max_length=256)]
Topic = Annotated[str, Field(min_length=1, max_length=TOPIC_CHARS_MAX)]
MessageId = Annotated[bytes, Field(min_length=MESSAGE_ID_BYTES, max_length=MESSAGE_ID_BYTES)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Hello:
    """First frame both ways."""

    wire_min: ReqId
    wire_max: ReqId
    swarm_id: Id
    cert_chain: Annotated[tuple[bytes, ...], Field(max_length=2)]
    inst: ReqId
    wall_ms: Millis
    derive_vers: Annotated[tuple[ReqId, ...], Field(max_length=16)]
    roles: Annotated[tuple[ShortText, ...], Field(max_length=16)]
    listen_addrs: Annotated[tuple[Addr, ...], Field(max_length=8)]
    features: Annotated[tuple[ShortText, ...], Field(max_length=32)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Bye:
    """Graceful leave, or a typed refusal before hanging up: `code` is an error code."""

    code: ShortText
    reason: ShortText


@dataclass(frozen=True, slots=True, config=_STRICT)
class Ping:
    """Liveness and clock sample."""

    req: ReqId
    wall_ms: Millis


@dataclass(frozen=True, slots=True, config=_STRICT)
class Pong:
    """Answer to Ping, with the own clock."""

    req: ReqId
    wall_ms: Millis


@dataclass(frozen=True, slots=True, config=_STRICT)
class OpBatch:
    """Ops pushed as they come into being, in the order of their chains."""

    ops: Annotated[tuple[WireOp, ...], Field(min_length=1, max_length=BATCH_OPS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Digests:
    """What the sender holds: a 12-byte digest of the kept ids of each space; the opening of repair."""

    req: ReqId
    spaces: Annotated[tuple[tuple[SpaceId, Digest12], ...], Field(max_length=DIGESTS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Heads:
    """Per author of a space: head sequence number, count and digest of kept ids.

    `want`: the sender asks for the peer's Heads of the same space in return.
    """

    req: ReqId
    space: SpaceId
    want: bool
    authors: Annotated[tuple[tuple[Id, Uint, Uint, Digest12], ...], Field(max_length=HEADS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class GetLog:
    """Ask for an author's kept ops with seq in first..last of one space."""

    req: ReqId
    space: SpaceId
    author: Id
    first: Uint
    last: Uint


@dataclass(frozen=True, slots=True, config=_STRICT)
class GetOps:
    """Ask for ops by id."""

    req: ReqId
    space: SpaceId
    ids: Annotated[tuple[Id, ...], Field(min_length=1, max_length=IDS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class GetIds:
    """Ask for the ids of an author's kept ops with seq ≥ first (chains that differ below their heads)."""

    req: ReqId
    space: SpaceId
    author: Id
    first: Uint


@dataclass(frozen=True, slots=True, config=_STRICT)
class IdList:
    """Answer to GetIds; `more` is the seq to go on from, nil at the end."""

    req: ReqId
    space: SpaceId
    author: Id
    ids: Ids
    more: Uint | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class Fetched:
    """Answer to GetLog and GetOps.

    `ops` holds what the sender holds; `forks` pairs of ops that prove why an asked op was dropped; `stubs`
    [id, hlc] of pruned ops. `more`: the answer was cut at the frame's size, ask again from the next seq.
    """

    req: ReqId
    space: SpaceId
    ops: Annotated[tuple[WireOp, ...], Field(max_length=BATCH_OPS_MAX)]
    forks: Annotated[tuple[tuple[WireOp, WireOp], ...], Field(max_length=16)]
    stubs: Annotated[tuple[tuple[Id, Uint], ...], Field(max_length=BATCH_OPS_MAX)]
    more: bool


@dataclass(frozen=True, slots=True, config=_STRICT)
class Receipt:
    """The sender holds these ops on its disk; signed over space ‖ level ‖ ids under `receipt`."""

    space: SpaceId
    level: ReqId
    ids: Annotated[tuple[Id, ...], Field(min_length=1, max_length=IDS_MAX)]
    sig: Sig


@dataclass(frozen=True, slots=True, config=_STRICT)
class Records:
    """Signed capability and peer records, pushed as they change."""

    records: Annotated[
        tuple[Annotated[bytes, Field(max_length=RECORD_BYTES_MAX)], ...],
        Field(min_length=1, max_length=RECORDS_MAX),
    ]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Watch:
    """Ask for the progress of a task; `on` False ends it."""

    space: SpaceId
    on: bool


@dataclass(frozen=True, slots=True, config=_STRICT)
class Progress:
    """Partial output of a running turn: unreliable, at most 4 a second, never in the log."""

    space: SpaceId
    step: Uint
    claim: Id
    tokens: Uint
    tail: Annotated[str, Field(max_length=TAIL_BYTES_MAX)]


DhtKey = Annotated[bytes, Field(min_length=DHT_KEY_BYTES, max_length=DHT_KEY_BYTES)]
PeerRecord = Annotated[bytes, Field(max_length=PEER_RECORD_BYTES_MAX)]
PeerRecords = Annotated[tuple[PeerRecord, ...], Field(max_length=DHT_PEERS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class FindNode:
    """Ask for the serving nodes closest to a place in the id space of the DHT."""

    req: ReqId
    target: DhtKey


@dataclass(frozen=True, slots=True, config=_STRICT)
class FoundNodes:
    """Answer to FindNode: the signed peer records of the closest that the sender knows, best first."""

    req: ReqId
    peers: PeerRecords


@dataclass(frozen=True, slots=True, config=_STRICT)
class FindValue:
    """Ask for the records under a key.

    `probe` is empty, or an int8 vector: of more records than fit the answer, those nearest to it are wanted.
    """

    req: ReqId
    key: DhtKey
    probe: Annotated[bytes, Field(max_length=DHT_PROBE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class FoundValue:
    """Answer to FindValue: what the sender holds under the key, and whom it knows closer to it."""

    req: ReqId
    records: Annotated[
        tuple[Annotated[bytes, Field(max_length=RECORD_BYTES_MAX)], ...], Field(max_length=DHT_RECORDS_MAX)
    ]
    peers: PeerRecords


@dataclass(frozen=True, slots=True, config=_STRICT)
class StoreRecord:
    """Ask to hold a signed record under a key: its own slot, or a centroid of the capability directory."""

    req: ReqId
    key: DhtKey
    record: Annotated[bytes, Field(max_length=RECORD_BYTES_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Stored:
    """Answer to StoreRecord. `ok`: the sender holds this version or a greater one; else `reason` is a code.

    `retry_after_ms` above 0: the same request may succeed after that time.
    """

    req: ReqId
    ok: bool
    reason: ShortText
    retry_after_ms: ReqId


@dataclass(frozen=True, slots=True, config=_STRICT)
class Busy:
    """Answer to any request that is not served now; ask again after this time, or ask somebody else."""

    req: ReqId
    retry_after_ms: ReqId


@dataclass(frozen=True, slots=True, config=_STRICT)
class Introduce:
    """The sender serves the DHT, under its own signed peer record; said once per link and when it changes."""

    record: PeerRecord


@dataclass(frozen=True, slots=True, config=_STRICT)
class Subscribe:
    """Topics that the sender wants (`True`) or wants no more; said once per link and when it changes."""

    topics: Annotated[tuple[tuple[Topic, bool], ...], Field(min_length=1, max_length=TOPICS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Graft:
    """The sender forwards the topic's messages to the receiver from now on, and wants the same."""

    topic: Topic


@dataclass(frozen=True, slots=True, config=_STRICT)
class Prune:
    """The end of a Graft, or its refusal; do not graft again before `backoff_s`."""

    topic: Topic
    backoff_s: ReqId


@dataclass(frozen=True, slots=True, config=_STRICT)
class IHave:
    """Messages of a topic that the sender can give for a while, by id."""

    topic: Topic
    ids: Annotated[tuple[MessageId, ...], Field(min_length=1, max_length=MESSAGE_IDS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class IWant:
    """Ask for messages of a topic by id; answered by Spread as far as they are still there."""

    topic: Topic
    ids: Annotated[tuple[MessageId, ...], Field(min_length=1, max_length=MESSAGE_IDS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class IDontWant:
    """The sender has these messages: sending them to it is waste."""

    topic: Topic
    ids: Annotated[tuple[MessageId, ...], Field(min_length=1, max_length=MESSAGE_IDS_MAX)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Spread:
    """Messages of a topic. The id of one is the hash of topic and content (`message_id`), so no copy hides another.

    `wide`: the sender, who is their origin, sent them to every member of the swarm itself. It is a hint that saves
    forwarding; who lies costs the swarm a heartbeat, until the ids are offered.
    """

    topic: Topic
    wide: bool
    items: Annotated[
        tuple[Annotated[bytes, Field(max_length=OP_BYTES_MAX)], ...], Field(min_length=1, max_length=BATCH_OPS_MAX)
    ]


@dataclass(frozen=True, slots=True, config=_STRICT)
class ProbeFor:
    """Ask a peer to ping another for the sender, who got no answer."""

    req: ReqId
    target: Id


@dataclass(frozen=True, slots=True, config=_STRICT)
class ProbedFor:
    """Answer to ProbeFor; `alive` False when the target was silent to this peer too, or is not linked to it."""

    req: ReqId
    target: Id
    alive: bool


@dataclass(frozen=True, slots=True, config=_STRICT)
class RecordDigests:
    """What the sender holds of the map of signed records: a fingerprint per bucket (gossip/record_digests.py)."""

    buckets: Annotated[bytes, Field(max_length=RECORD_BUCKETS_MAX * FINGERPRINT_BYTES)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class DialBack:
    """Ask a peer to try whether these addresses of the sender can be dialled from where it is."""

    req: ReqId
    addrs: Annotated[tuple[Addr, ...], Field(min_length=1, max_length=8)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class DialedBack:
    """Answer to DialBack: the addresses at which the sender was reached, and why not at the others."""

    req: ReqId
    reached: Annotated[tuple[Addr, ...], Field(max_length=8)]
    reason: ShortText


Frame = (
    Hello | Bye | Ping | Pong | OpBatch | Digests | Heads | GetLog | GetOps | GetIds | IdList | Fetched | Receipt
    | Records | Watch | Progress | FindNode | FoundNodes | FindValue | FoundValue | StoreRecord | Stored | Busy
    | Introduce | Subscribe | Graft | Prune | IHave | IWant | IDontWant | Spread | ProbeFor | ProbedFor | RecordDigests
    | DialBack | DialedBack
)  # fmt: skip

# Append only: a tag is never used again for something else.
_KINDS: Final[tuple[tuple[int, type[Any], Lane], ...]] = (
    (1, Hello, Lane.CONTROL),
    (2, Bye, Lane.CONTROL),
    (3, Ping, Lane.CONTROL),
    (4, Pong, Lane.CONTROL),
    (5, OpBatch, Lane.BULK),
    (6, Digests, Lane.BULK),
    (7, Heads, Lane.BULK),
    (8, GetLog, Lane.BULK),
    (9, GetOps, Lane.BULK),
    (10, GetIds, Lane.BULK),
    (11, IdList, Lane.BULK),
    (12, Fetched, Lane.BULK),
    (13, Receipt, Lane.CONTROL),
    (14, Records, Lane.BULK),
    (15, Watch, Lane.CONTROL),
    (16, Progress, Lane.CONTROL),
    (17, FindNode, Lane.CONTROL),
    (18, FoundNodes, Lane.CONTROL),
    (19, FindValue, Lane.CONTROL),
    (20, FoundValue, Lane.CONTROL),
    (21, StoreRecord, Lane.CONTROL),
    (22, Stored, Lane.CONTROL),
    (23, Busy, Lane.CONTROL),
    (24, Introduce, Lane.CONTROL),
    (25, Subscribe, Lane.CONTROL),
    (26, Graft, Lane.CONTROL),
    (27, Prune, Lane.CONTROL),
    (28, IHave, Lane.CONTROL),
    (29, IWant, Lane.CONTROL),
    (30, IDontWant, Lane.CONTROL),
    (31, Spread, Lane.BULK),
    (32, ProbeFor, Lane.CONTROL),
    (33, ProbedFor, Lane.CONTROL),
    (34, RecordDigests, Lane.BULK),
    (35, DialBack, Lane.CONTROL),
    (36, DialedBack, Lane.CONTROL),
)
_CLASS_OF: Final[dict[int, type[Any]]] = {tag: cls for tag, cls, _ in _KINDS}
_TAG_OF: Final[dict[type[Any], int]] = {cls: tag for tag, cls, _ in _KINDS}
_FIELDS: Final[dict[type[Any], tuple[dataclasses.Field[Any], ...]]] = {
    cls: dataclasses.fields(cls) for _, cls, _ in _KINDS
}
LANE_OF: Final[dict[type[Any], Lane]] = {cls: lane for _, cls, lane in _KINDS}


def encode_frame(message: Frame) -> bytes:
    """The canonical bytes of a frame, without length prefix."""
    values = [getattr(message, field.name) for field in _FIELDS[type(message)]]
    return encode((_TAG_OF[type(message)], *values))


def decode_frame(data: bytes, lane: Lane) -> Frame:
    """The frame behind bytes that came on a lane.

    Raises:
        DecodeError: not canonical, unknown kind, wrong lane, or fields that do not fit.
    """
    value = decode(data, bytes_max=FRAME_BYTES_MAX[lane])
    if not isinstance(value, tuple) or not value or not isinstance(value[0], int):
        raise DecodeError("a frame is an array that starts with its kind")
    cls = _CLASS_OF.get(value[0])
    if cls is None or isinstance(value[0], bool):
        raise DecodeError(f"unknown frame kind {value[0]}")
    if LANE_OF[cls] is not lane:
        raise DecodeError(f"{cls.__name__} on lane {lane.name}")
    if len(value) - 1 != len(_FIELDS[cls]):
        raise DecodeError(f"{cls.__name__} with {len(value) - 1} fields")
    try:
        message: Frame = cls(*value[1:])
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise DecodeError(f"{cls.__name__}: {first['loc']}: {first['msg']}") from exc
    return message


def receipt_bytes(space: bytes, level: int, ids: tuple[bytes, ...]) -> bytes:
    """What a receipt's signature covers, under the purpose `receipt`."""
    return encode((space, level, ids))


def message_id(topic: str, item: bytes) -> bytes:
    """The id of a message: SHA-256 over the framed topic and the content (replication.md §7, case S2)."""
    name = topic.encode()
    return hashlib.sha256(len(name).to_bytes(2, "big") + name + item).digest()[:MESSAGE_ID_BYTES]
